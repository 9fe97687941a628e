r"""Embeddings in context, for MatchingNet: g(x_j) may know the rest of the support, f(x) all of it.

A context is two maps, `support` from $\phi_t$ to g and `query` from $\phi_v$ (and g) to f. The recurrences are
written out over batched tasks: masked points leave the state as it was, and weights may carry leading dimensions.
"""

from abc import ABC, abstractmethod
from math import sqrt
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from metavib.networks.layers import Linear


class Context(nn.Module, ABC):
    """How features of support and query change in the presence of the support."""

    @abstractmethod
    def support(self, phi: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n m"]:
        """G: support features in context."""

    @abstractmethod
    def query(
        self, phi: Float[Tensor, "*b v m"], g: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]
    ) -> Float[Tensor, "*b v m"]:
        """F: query features in context of the support's."""


@final
class NoContext(Context):
    """Features as they are."""

    def support(self, phi: Tensor, mask: Tensor) -> Tensor:
        """The same features."""
        return phi

    def query(self, phi: Tensor, g: Tensor, mask: Tensor) -> Tensor:
        """The same features."""
        return phi


@final
class FullContext(Context):
    r"""Full-context embeddings: a bidirectional LSTM over the support, an attention LSTM over it for each query.

    $g_j = \phi_j + \overrightarrow{h}_j + \overleftarrow{h}_j$. For the query, from $h_0 = \phi$ and $c_0 = 0$, K
    times:

    $$r_k = \sum_j \mathrm{softmax}_j(h_{k-1} \cdot g_j)\, g_j, \qquad
    h_k = \phi + \mathrm{LSTM}([\phi, r_k]; h_{k-1}, c_{k-1})$$

    This is the wiring of the code behind the published numbers, in which K is the size of the support. The LSTM over
    the support makes g depend on the order its points come in, as it does in the paper.

    Args:
        features: length of $\phi$.
        steps: K; as many as the task has support points where None.
    """

    def __init__(self, features: int, *, steps: int | None = None) -> None:
        super().__init__()
        if steps is not None and steps < 0:
            raise ValueError(f"processing steps must be 0 or more; got {steps}.")
        self.steps = steps
        self.forwards = LSTMCell(features, features)
        self.backwards = LSTMCell(features, features)
        self.attention = LSTMCell(2 * features, features)

    def support(self, phi: Tensor, mask: Tensor) -> Tensor:
        """Each point with what the LSTMs say of its neighbours."""
        return phi + _run(self.forwards, phi, mask) + _run(self.backwards, phi.flip(-2), mask.flip(-1)).flip(-2)

    def query(self, phi: Tensor, g: Tensor, mask: Tensor) -> Tensor:
        """Each query after K glimpses of the support."""
        h, c = phi, torch.zeros_like(phi)
        # A task stops after its own K steps: padding adds none.
        limit = mask.sum(-1)[..., None, None]
        for k in range(g.shape[-2] if self.steps is None else self.steps):
            r = attend(h @ g.mT, mask) @ g
            new_h, new_c = self.attention(torch.cat([phi, r], -1), h, c)
            going = (k < limit) if self.steps is None else torch.ones_like(limit, dtype=torch.bool)
            h, c = torch.where(going, phi + new_h, h), torch.where(going, new_c, c)
        return h


@final
class LSTMCell(nn.Module):
    r"""One step of an LSTM, gates in PyTorch's order (input, forget, cell, output).

    $$(i, f, g, o) = W [x, h] + b, \quad c' = \sigma(f) c + \sigma(i) \tanh g, \quad h' = \sigma(o) \tanh c'$$

    Args:
        inputs: length of x.
        hidden: length of h and c.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = Linear(inputs + hidden, 4 * hidden)
        with torch.no_grad():
            for parameter in self.gates.parameters():
                nn.init.uniform_(parameter, -1 / sqrt(hidden), 1 / sqrt(hidden))

    def forward(
        self, x: Float[Tensor, "*b n i"], h: Float[Tensor, "*b n m"], c: Float[Tensor, "*b n m"]
    ) -> tuple[Float[Tensor, "*b n m"], Float[Tensor, "*b n m"]]:
        """The next h and c."""
        i, f, g, o = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def attend(scores: Float[Tensor, "*b v n"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b v n"]:
    """Softmax over the real points; all zero where there are none."""
    scores = scores.masked_fill(~mask.unsqueeze(-2), -torch.inf)
    # The least finite number beside the scores gives an empty support a finite peak.
    peak = F.pad(scores.detach(), (0, 1), value=torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    w = (scores - peak).exp()
    return w / w.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def _run(cell: LSTMCell, x: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b n m"]:
    h = c = torch.zeros_like(x[..., :1, :])
    outputs = [x[..., :0, :]]
    for j in range(x.shape[-2]):
        here = slice(j, j + 1)
        new_h, new_c = cell(x[..., here, :], h, c)
        real = mask[..., here].unsqueeze(-1)
        h, c = torch.where(real, new_h, h), torch.where(real, new_c, c)
        outputs.append(h)
    return torch.cat(outputs, -2)
