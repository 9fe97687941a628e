r"""$\phi(x; \theta)$: networks from the inputs of a task to features.

A backbone is called on `Inputs`, all points of each task at once, and returns `(..., p, M)`. Its weights may carry
leading dimensions, a set a task or a repeat (`metavib.layers`).
"""

from metavib.backbones.backbone import Backbone as Backbone
from metavib.backbones.conv import Conv4 as Conv4
from metavib.backbones.conv import StridedConv4 as StridedConv4
from metavib.backbones.mlp import MLP as MLP
from metavib.backbones.pointwise import Pointwise as Pointwise
from metavib.backbones.resnet import ResNet12 as ResNet12
