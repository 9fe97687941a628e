"""Experiments that do something more than another one does, for tests."""


class Around:
    """A world around another: what a subclass does not do itself, the other does."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def sample(self, shape, generator):
        return self.inner.sample(shape, generator)

    def validate(self, model):
        return self.inner.validate(model)
