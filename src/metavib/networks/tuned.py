r"""A network of the supervised stage that goes on learning, from tasks (`Tuned`)."""

import torch
from torch import Tensor

from metavib.data.augmentations import Resize
from metavib.networks.backbone import Backbone
from metavib.networks.embedded import Embedded
from metavib.networks.norm import TaskNorm
from metavib.networks.resnet import ResNet12
from metavib.networks.weights import Network
from metavib.tasks.inputs import Inputs


class Tuned(Backbone):
    r"""ResNet-12 whose batch-norm keeps the statistics of its supervised stage, then what `Embedded` does to vectors.

    $$z = \mathrm{Embedded}(\phi(x; \theta))$$

    With the weights $\theta$ of the supervised stage it is the route over frozen features (`metavib embed`), as one
    network whose weights can be learned. Statistics of one task's few pictures would undo much of that stage, so
    running averages take their place in training too, and no picture sees another. At test the picture is enlarged, and
    $\phi$ is the mean over it and its mirror image; in training, crops and mirror images are random anyway. What
    `Embedded` does is never done in half precision.

    Args:
        channels: of a picture.
        widths: channels of the four blocks; the last is M.
        view: side to which pictures are brought at test; 0 leaves them as they are.
        mirror: average over mirror images at test.

    Example:
        >>> import torch
        >>> from metavib.networks.tuned import Tuned
        >>> from metavib.tasks.inputs import Inputs
        >>> phi = Tuned(3, (4, 8, 8, 8), mirror=True).eval()
        >>> x = torch.rand(2, 3, 16, 16)
        >>> torch.allclose(*(phi(Inputs(each, torch.ones(2, dtype=torch.bool), 0)) for each in (x, x.flip(-1))))
        True
    """

    pointwise = True

    def __init__(self, channels: int, widths: tuple[int, ...], *, view: int = 0, mirror: bool = False) -> None:
        super().__init__()
        self.trunk = Network(ResNet12(channels, widths=widths))
        self.features = widths[-1]
        self.head = Embedded(self.features)
        self.view, self.mirror = view, mirror
        self.train(self.training)

    def train(self, mode: bool = True) -> "Tuned":
        """Sets training mode, but not that of batch-norm."""
        super().train(mode)
        for part in self.trunk.modules():
            if isinstance(part, TaskNorm):
                part.eval()
        return self

    def forward(self, inputs: Inputs) -> Tensor:
        r"""Features of pictures `(..., p, channels, h, w)`, or of vectors $\phi$ of theirs `(..., p, M)`."""
        pictures = inputs.x.ndim > inputs.mask.ndim + 1
        vectors = inputs._replace(x=self._vectors(inputs) if pictures else inputs.x)
        if not self.trunk.bf16:
            return self.head(vectors)
        with torch.autocast(inputs.x.device.type, enabled=False):
            return self.head(vectors)

    def _vectors(self, inputs: Inputs) -> Tensor:
        if self.training:
            return self.trunk(inputs)
        x = inputs.x
        if self.view:
            x = Resize(self.view)(x.flatten(0, inputs.mask.ndim - 1)).unflatten(0, inputs.mask.shape)
        phi = self.trunk(inputs._replace(x=x))
        return (phi + self.trunk(inputs._replace(x=x.flip(-1)))) / 2 if self.mirror else phi
