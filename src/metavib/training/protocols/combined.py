"""Which parts of a config of classes go together: networks and inputs, likelihoods and ways, pictures and shifts."""

from dataclasses import replace

from metavib.data.shifts import OF_CHARACTERS, OF_PHOTOGRAPHS
from metavib.likelihoods import ClassLikelihood
from metavib.training import build
from metavib.training.config import BOUND, EMBEDDINGS, TRANSFER, TUNED, Config


def check_network(config: Config) -> None:
    """Pictures and vectors each have networks of their own, and some methods compare maps or classify all classes."""
    vectors, backbone, method = config.tasks.name == EMBEDDINGS, config.model.backbone, config.method
    if vectors and backbone not in ("embedded", "mlp"):
        raise ValueError(f"model.backbone must be embedded or mlp on embeddings; got {backbone!r}.")
    if vectors and method in (*TRANSFER, "relation-net"):
        raise ValueError(f"{method} learns from pictures; on embeddings take logistic-regression or proto-net.")
    if not vectors and backbone in ("embedded", "mlp"):
        raise ValueError(f"model.backbone = {backbone} takes vectors; images need conv4, strided-conv4 or resnet12.")
    if backbone == "tuned" and method not in TUNED:
        raise ValueError(f"a tuned network learns with {', '.join(TUNED)}; got {method}.")


def check_shifts(config: Config) -> None:
    """Refuses shifts that there are not, or not of such pictures."""
    allowed = OF_CHARACTERS if config.tasks.channels == 1 else OF_PHOTOGRAPHS
    if strange := [name for name in config.test.shifts if name not in allowed or config.tasks.name == EMBEDDINGS]:
        raise ValueError(f"test.shifts of these pictures may be {', '.join(allowed)}; got {', '.join(strange)}.")


def check_likelihood(config: Config, ways: int) -> None:
    """Baselines bring their own likelihood; that of the others must tell the classes of a task apart."""
    if config.method in BOUND:
        likelihood = build.likelihood(replace(config, tasks=replace(config.tasks, ways=ways)))
        if not isinstance(likelihood, ClassLikelihood):
            raise ValueError(f"classification needs a likelihood of classes; got {config.model.likelihood!r}.")
        if likelihood.classes != ways:
            raise ValueError(
                f"model.likelihood = {config.model.likelihood} tells {likelihood.classes} classes apart; "
                f"got tasks of {ways} ways."
            )
