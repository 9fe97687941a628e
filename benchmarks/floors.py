"""The least time that operations and bytes allow, on this machine.

Operations are those of products, convolutions, factorisations and triangular solves in one step as written, forwards
and backwards (`measure.cost`), over the throughput of a large matrix product in the step's precision.

Bytes are those of activations and of parameters, moved as rarely as can be, over the bandwidth of a large copy:

* the output of each linear layer and convolution is written and read once going forwards, read once more going
  backwards, and its gradient is written and read once (5 times its size);
* a parameter is read forwards and backwards, its gradient is written, and Adam reads parameter, gradient and two
  moments and writes all but the gradient (10 times its size).

Both rates are measured in the same run as the steps. The floor is the larger of the two times: nothing is counted for
sampling, normalisation, pooling, the Monte Carlo expectation, or for launching any of it.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.measure import Call, cost, timing
from metavib.networks.layers import Conv2d, Linear

ACTIVATION, PARAMETER = 5, 10  # how often their bytes are moved


class Rates(NamedTuple):
    """What the machine can do: operations and bytes a second."""

    operations: float
    bytes: float


class Work(NamedTuple):
    """What a step must do: operations, and bytes moved."""

    operations: int
    bytes: int

    def seconds(self, rates: Rates) -> float:
        """The floor."""
        return max(self.operations / rates.operations, self.bytes / rates.bytes)

    def limit(self, rates: Rates) -> str:
        """Which of the two it is."""
        return "operations" if self.operations / rates.operations > self.bytes / rates.bytes else "bytes"


def rates(device: str, precision: str) -> Rates:
    """The machine's throughput of matrix products and its bandwidth, with as many threads as are set."""
    cuda = device.startswith("cuda")
    n, size = (8192, 2**30) if cuda else (1536, 2**27)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(n, n, dtype=dtype, device=device) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        product = timing(lambda: a @ b, device=device, repeats=7)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copy = timing(lambda: target.copy_(source), device=device, repeats=7)
    return Rates(2 * n**3 / product.fastest, 2 * size / copy.fastest)


def work(step: Call, model: nn.Module, precision: str) -> Work:
    """What one call of a step as written must do."""
    numbers = 0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal numbers
        numbers += output.numel()

    hooks = [part.register_forward_hook(count) for part in model.modules() if isinstance(part, Linear | Conv2d)]
    try:
        operations = cost(step).flops
    finally:
        for hook in hooks:
            hook.remove()
    width = 2 if precision == "bf16" else 4
    parameters = sum(p.numel() for p in model.parameters())
    return Work(operations, ACTIVATION * width * numbers + PARAMETER * 4 * parameters)
