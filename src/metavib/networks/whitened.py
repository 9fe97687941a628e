r"""What is done to the columns of a table before a kernel compares rows of new classes (`Whitened`).

Where the columns of a table are all there is, nearest centroids and logistic regression on them are hard to beat with
few classes to learn from. `Whitened` starts at the columns themselves and learns the little that other classes can tell
of new ones: in which directions rows of *one* class differ, which then count less. Many classes can tell more: what
tells *them* apart (`WithUnits`).
"""

import torch
from torch import Tensor, nn

from metavib.networks.backbone import Backbone
from metavib.networks.layers import lift
from metavib.tasks.inputs import Inputs

RANK = 500  # directions within classes, at most
ROWS = 20_000  # that these are taken from, at most


class Whitened(Backbone):
    r"""Columns of a table, squashed and whitened by what rows of one class are like.

    With $u = (x - c) / d$ the standardised columns and $s = u / \sqrt{1 + u^2/\rho^2}$ the same with none of them
    beyond the reach $\rho$,

    $$z = g \sqrt M \sum_j \Big(\frac{1 + \lambda}{e_j + \lambda}\Big)^{1/2} q_j q_j^\top s$$

    where $e_j$ and $q_j$ are the eigenvalues and eigenvectors of the covariance within classes, divided so that e is 1
    on average. g and $\lambda$ are learned; a large $\lambda$ leaves the columns as they are. Where there are more
    columns than rows to learn from, all directions that no row has shown have e = 0.

    A column that hardly varies in the classes learned from may vary much in new ones, many standard deviations of what
    has been seen: that is why none may count without bound.

    Args:
        inputs: M, the number of columns.
        rank: how many directions are known within classes.
        reach: $\rho$; infinite to leave the columns as they are.

    Example:
        Two columns with the same spread; rows of one class differ in the first alone, and classes in the second.

        >>> import torch
        >>> from metavib.tasks.inputs import Inputs
        >>> x = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        >>> whitened = Whitened(2, rank=2, reach=float("inf"))
        >>> whitened.look(x, torch.tensor([0, 0, 1, 1]))
        >>> z = whitened(Inputs(x, torch.ones(4, dtype=torch.bool), 0))
        >>> bool(z[0, 1].abs() > 1.5 * z[0, 0].abs())  # the second counts for more
        True
    """

    pointwise = True
    centre: Tensor
    deviation: Tensor
    reach: Tensor
    directions: Tensor
    spread: Tensor

    def __init__(self, inputs: int, *, rank: int, reach: float) -> None:
        super().__init__()
        self.features = inputs
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.register_buffer("reach", torch.tensor(float(reach)))
        self.register_buffer("directions", torch.zeros(inputs, rank))
        self.register_buffer("spread", torch.zeros(rank))
        self.log_ridge = nn.Parameter(torch.zeros(()))  # log lambda
        self.log_gain = nn.Parameter(torch.zeros(()))  # log g

    @torch.no_grad()
    def look(self, x: Tensor, labels: Tensor) -> None:
        """Takes centre, deviations and the covariance within classes from rows `(n, inputs)`, `labels (n,)` from 0."""
        x, labels = x[:ROWS].double(), labels[:ROWS]
        self.centre.copy_(x.mean(0))
        deviation = x.std(0, correction=0)
        self.deviation.copy_(torch.where(deviation > 1e-9, deviation, 1.0))
        s = self.squashed(x)
        counts = labels.bincount().clamp(min=1).to(s)
        means = s.new_zeros(len(counts), s.shape[-1]).index_add_(0, labels, s) / counts.unsqueeze(-1)
        own = s - means[labels]
        level = own.square().sum() / self.features
        if not level > 0:
            return  # no class has two different rows: nothing is known within classes
        _, roots, directions = torch.linalg.svd(own / level.sqrt(), full_matrices=False)
        rank = len(self.spread)
        self.spread[: len(roots)] = roots.square()[:rank]
        self.directions[:, : len(roots)] = directions.mT[:, :rank]

    def squashed(self, x: Tensor) -> Tensor:
        """Standardised columns within their reach, about 1 in size."""
        u = (x - self.centre) / self.deviation
        return u / (1 + (u / self.reach).square()).sqrt()

    def within(self, x: Tensor) -> tuple["Whitened", Tensor]:
        r"""The same for rows that are squashed and turned, $s Q$, into as few coordinates as `x (n, inputs)` need.

        With fewer rows than columns there are n of them. Distances and angles of these rows stay as they are, before
        and after they are whitened: $Q Q^\top$ leaves the rows, and the directions within their classes, alone.

        Example:
            >>> import torch
            >>> from metavib.tasks.inputs import Inputs
            >>> x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
            >>> whole = Whitened(40, rank=6, reach=3.0).double()
            >>> whole.look(x, torch.tensor([0, 0, 0, 1, 1, 1]))
            >>> small, Q = whole.within(x)
            >>> real = torch.ones(6, dtype=torch.bool)
            >>> a, b = whole(Inputs(x, real, 0)), small(Inputs(whole.squashed(x) @ Q, real, 0))
            >>> b.shape[-1], torch.allclose(a @ a.mT, b @ b.mT)
            (6, True)
        """
        Q = torch.linalg.qr(self.squashed(x).mT).Q
        small = Whitened(Q.shape[1], rank=len(self.spread), reach=float("inf")).to(Q)
        small.directions.copy_(Q.mT @ self.directions)
        small.spread.copy_(self.spread)
        return small, Q

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        s = self.squashed(inputs.x)
        ridge = lift(self.log_ridge, 2).exp()
        rest = ((1 + ridge) / ridge).sqrt()  # of directions in which classes do not vary
        more = ((1 + ridge) / (self.spread + ridge)).sqrt() - rest
        return lift(self.log_gain, 2).exp() * (rest * s + ((s @ self.directions) * more) @ self.directions.mT)


class WithUnits(Backbone):
    r"""Columns and, beside them, hidden units of a network that tells some classes apart, whitened together.

    The units are $\max(0, W^\top x + b)$. What tells a dozen classes apart often tells others apart too; where it does
    not, the columns are still there.

    Args:
        inputs: the number of columns.
        units: of the network.
        rank: how many directions are known within classes.
        reach: of columns and units, as in `Whitened`.

    Example:
        One unit, which is on where two columns are both large.

        >>> import torch
        >>> wider = WithUnits(2, units=1, rank=3, reach=float("inf"))
        >>> wider.told(torch.ones(2, 1), torch.tensor([-1.5]))
        >>> wider.beside(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([[1.0000, 0.0000, 0.0000],
                [1.0000, 1.0000, 0.5000]])
    """

    pointwise = True
    W: Tensor
    b: Tensor

    def __init__(self, inputs: int, *, units: int, rank: int, reach: float) -> None:
        super().__init__()
        self.register_buffer("W", torch.zeros(inputs, units))
        self.register_buffer("b", torch.zeros(units))
        self.whitened = Whitened(inputs + units, rank=rank, reach=reach)
        self.features = self.whitened.features

    @torch.no_grad()
    def told(self, W: Tensor, b: Tensor) -> None:
        """Takes the first layer of a network that was trained."""
        self.W.copy_(W)
        self.b.copy_(b)

    def look(self, x: Tensor, labels: Tensor) -> None:
        """As in `Whitened`, of columns and units."""
        self.whitened.look(self.beside(x[:ROWS].double()), labels[:ROWS])

    def beside(self, x: Tensor) -> Tensor:
        """Columns and units of rows `(..., inputs)`."""
        return torch.cat([x, torch.relu(x @ self.W + self.b)], -1)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features of `(..., p, inputs)`."""
        return self.whitened(inputs._replace(x=self.beside(inputs.x)))


def rank_for(rows: int, columns: int) -> int:
    """How many directions within classes are kept, for a table of so many rows and columns."""
    return min(rows, columns, RANK)
