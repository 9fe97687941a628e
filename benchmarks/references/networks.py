"""The networks as plain modules."""

from torch import Tensor, nn


def conv4(channels: int, *, width: int = 64) -> nn.Sequential:
    """Four times 3 x 3 convolution, batch-norm, ReLU, 2 x 2 max-pool; flattened."""
    layers: list[nn.Module] = []
    for inputs in (channels, width, width, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


class Regressor(nn.Module):
    """1-40-40-1 with ReLU; `features` is its last hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.head = nn.Linear(40, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(n, 1)` at `x (n, 1)`."""
        return self.head(self.features(x))
