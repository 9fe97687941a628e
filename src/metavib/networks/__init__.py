r"""$\phi(x; \theta)$: networks from the inputs of a task to features.

A backbone is called on `Inputs`, all points of each task at once, and returns `(..., p, M)`. Its weights may carry
leading dimensions, a set a task or a repeat (`metavib.networks.layers`).
"""

from metavib.networks.backbone import MLP as MLP
from metavib.networks.backbone import Backbone as Backbone
from metavib.networks.backbone import Pointwise as Pointwise
from metavib.networks.conv import Conv4 as Conv4
from metavib.networks.conv import StridedConv4 as StridedConv4
from metavib.networks.resnet import ResNet12 as ResNet12
