r"""Tasks drawn from a known Gaussian process, which carry their own optimum.

$f \sim GP(0, k)$, $y = f(x) + \epsilon$: no predictor can do better on average than the exact posterior under the same
k and noise, so evaluation can print a model's gap to it.
"""

from dataclasses import dataclass, field
from math import log, pi

import torch
from torch import Tensor

from metavib import linalg
from metavib.kernels import RBF, Kernel, Linear, Matern32, Matern52
from metavib.random import Stream, draw
from metavib.tasks.source import check_sizes, divide
from metavib.tasks.task import Task

KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern32": Matern32, "matern52": Matern52, "linear": Linear}


@dataclass(frozen=True)
class GaussianTasks:
    r"""$y = f(x) + \epsilon$, $f \sim GP(0, k)$, $\epsilon \sim N(0, \sigma^2)$, $x \sim U[-2, 2]$.

    Args:
        kernel: one of `KERNELS`.
        lengthscale: of the stationary kernels.
        noise: $\sigma^2$.
        shots: support points of a task.
        queries: query points of a task.
        min_shots: where set, each task has a number of support points of its own, uniform in [min_shots, shots].
    """

    kernel: str = "rbf"
    lengthscale: float = 0.5
    noise: float = 0.01
    shots: int = 10
    queries: int = 10
    min_shots: int | None = None
    _kernel: Kernel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_sizes(self.shots, self.queries, self.min_shots)
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}; got {self.kernel!r}.")
        if not self.noise > 0:
            raise ValueError(f"the noise variance must be positive; got {self.noise}.")
        kernel = Linear(bias=True) if self.kernel == "linear" else KERNELS[self.kernel](self.lengthscale)
        object.__setattr__(self, "_kernel", kernel.double().requires_grad_(False))

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Independent functions, support and query points drawn alike."""
        n = self.shots + self.queries
        x = 4 * draw(torch.rand, *shape, n, 1, stream=generator, dtype=torch.float64) - 2
        L = linalg.cholesky(self._covariance(x, x) + self.noise * torch.eye(n, dtype=x.dtype, device=x.device))
        y = (L @ draw(torch.randn, *shape, n, 1, stream=generator, dtype=torch.float64)).squeeze(-1)
        return divide(x.float(), y.float(), self.shots, self.min_shots, generator)

    def optimum(self, task: Task) -> Tensor:
        r"""$\log p(y_j \mid D_t)$ of each query point under the process itself: the best there is."""
        task = task.to(torch.float64)
        (x, y, mask), query = task.support, task.query
        both = mask[..., :, None] & mask[..., None, :]
        noise = torch.where(mask, self.noise, 1.0)
        factor = linalg.factorise(self._covariance(x, x) * both + torch.diag_embed(noise))
        L_k = factor.solve(self._covariance(x, query.x) * mask[..., :, None])
        mean = (L_k.mT @ factor.solve(y.unsqueeze(-1))).squeeze(-1)
        var = self._kernel.diagonal(self._kernel.embed(query.x)) - L_k.square().sum(-2) + self.noise
        return -0.5 * (log(2 * pi) + var.log() + (query.y - mean).square() / var)

    def _covariance(self, x: Tensor, x2: Tensor) -> Tensor:
        kernel = self._kernel.to(x.device)
        return kernel.gram(kernel.embed(x), kernel.embed(x2))
