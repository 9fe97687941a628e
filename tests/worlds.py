"""Worlds to train in that do more than their experiment: what they do not change is the experiment's own."""


class Around:
    """A world around another."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def check(self):
        self.inner.check()

    def sample(self, shape, generator):
        return self.inner.sample(shape, generator)

    def validate(self, model):
        return self.inner.validate(model)
