"""Mini-batches of all training classes as tasks without a support: phase 1 of Feature Transfer and Baseline++."""

from typing import final

import torch

from metavib.data.augmentations import Transform, unit
from metavib.data.labelled import Labelled
from metavib.random import Stream, draw
from metavib.tasks.task import Examples, Task


@final
class AllWay:
    """Tasks with an empty support, whose query is `batch_size` images of any class with their global labels.

    Images are drawn independently, with replacement, where a loader would shuffle: an epoch has no meaning for a
    source of tasks. Without a support, batch-norm as `support+point` would normalise every image by itself: train on
    these with `running` or `transductive`.

    Args:
        data: the images, on the device to sample on.
        batch_size: images a batch; 16 in Chen et al.
        transform: what turns uint8 images into floats.
    """

    def __init__(self, data: Labelled, *, batch_size: int = 16, transform: Transform = unit) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        if not len(data.labels):
            raise ValueError("there must be at least one image to draw from; got an empty set.")
        self.data, self.batch_size, self.transform = data, batch_size, transform

    @property
    def classes(self) -> int:
        """How many classes there are to tell apart."""
        return len(self.data.names)

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Independent mini-batches in leading dimensions of the given shape; `()` is one."""
        images, labels, _ = self.data
        index = draw(torch.randint, len(labels), (*shape, self.batch_size), stream=generator)
        index = index.to(images.device)
        x = self.transform(images.index_select(0, index.flatten()), generator)
        x, y = x.reshape(*index.shape, *x.shape[1:]), labels[index]
        mask = torch.ones_like(y, dtype=torch.bool)
        nothing = [slice(None)] * len(shape) + [slice(0)]
        return Task(Examples(x[*nothing], y[*nothing], mask[*nothing]), Examples(x, y, mask))
