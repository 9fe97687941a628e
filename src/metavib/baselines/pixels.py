r"""What takes no meta-training at all: each task by itself, from the pixels of its support.

Whoever has a new problem tries these first, so a trained model is shown beside them. Both take tasks side by side, and
pixels as the networks do.

* **Nearest neighbour**: the class of the support picture at the smallest Euclidean distance.
* **Logistic regression** of the pixels, with the penalty of scikit-learn's default (C = 1):
  $\min_{W, b} \sum_j -\log p(y_j \mid W x_j + b) + \frac12 |W|^2$. The solution lies in the span of the support, so
  that the search is over as many coordinates as there are support pictures, whatever the number of pixels: those of
  $Z = Q \Lambda^{1/2}$, where $X X^\top = Q \Lambda Q^\top$ and X is centred. In these coordinates the curvature is at
  most $\frac12 \Lambda + I$ (Böhning 1992), a diagonal, which gives every coordinate its step; Nesterov's momentum does
  the rest.

References:
    Böhning (1992), Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 44.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from metavib.tasks.task import Task

ITERATIONS = 200


def nearest_neighbour(task: Task, ways: int) -> Float[Tensor, "*b v N"]:
    """Certainty for the class of the nearest support picture, `(..., v, ways)`.

    Args:
        task: tasks side by side; the support may have padding.
        ways: N, the number of classes.

    Example:
        >>> import torch
        >>> from metavib.baselines.pixels import nearest_neighbour
        >>> from metavib.tasks.task import Task, examples
        >>> support = examples(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
        >>> nearest_neighbour(Task(support, examples(torch.tensor([[0.9]]), torch.tensor([1]))), 2)
        tensor([[0., 1.]])
    """
    x, at = _flat(task)
    distance = torch.cdist(at, x).masked_fill(~task.support.mask.unsqueeze(-2), float("inf"))
    labels = task.support.y.gather(-1, distance.argmin(-1))
    return F.one_hot(labels, ways).to(x.dtype)


def logistic_regression(task: Task, ways: int) -> Float[Tensor, "*b v N"]:
    """Class probabilities of a logistic regression of each task, `(..., v, ways)`.

    Args:
        task: tasks side by side; the support may have padding.
        ways: N, the number of classes.
    """
    x, at = (t.double() for t in _flat(task))
    real = task.support.mask.unsqueeze(-1)
    centre = (x * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True)
    x, at = (x - centre) * real, at - centre
    eigenvalues, Q = torch.linalg.eigh(x @ x.mT)
    root = eigenvalues.clamp(min=1e-9).sqrt().unsqueeze(-1)
    Z, Y = Q * root.mT * real, F.one_hot(task.support.y, ways) * real
    step_w, step_b = 1 / (root.square() / 2 + 1), 2 / real.sum(-2, keepdim=True)
    w, b = torch.zeros_like(Y, dtype=x.dtype), x.new_zeros(*Y.shape[:-2], 1, ways)
    last_w, last_b = w, b
    for i in range(ITERATIONS):
        onwards = i / (i + 3)
        v, c = w + onwards * (w - last_w), b + onwards * (b - last_b)
        wrong = ((Z @ v + c).softmax(-1) - Y) * real
        last_w, last_b = w, b
        w, b = v - step_w * (Z.mT @ wrong + v), c - step_b * wrong.sum(-2, keepdim=True)
    return (at @ x.mT @ Q @ (w / root) + b).softmax(-1).to(task.query.x.dtype)


def _flat(task: Task) -> tuple[Tensor, Tensor]:
    start = task.support.y.ndim
    return task.support.x.flatten(start), task.query.x.flatten(start)
