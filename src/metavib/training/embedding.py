r"""What a trained network sees: features of every picture, and how well nearest centroids do on them.

A feature vector is $\phi(x)$ of the centre of a picture, enlarged to the side asked for. A network that was trained on
random crops, which enlarge what they show, does best on pictures somewhat larger than its crops (Touvron et al. 2019);
and the mean over a picture and its mirror image is steadier than either, and so is, for a network that has learned from
turned pictures, the mean over its quarter turns. All this uses one picture at a time, so nothing here looks at the rest
of a task.

References:
    Touvron, Vedaldi, Douze, Jégou. Fixing the train-test resolution discrepancy. arXiv 1906.06423.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metavib.data.augmentations import CentreCrop, Compose, Normalise, Resize, Transform
from metavib.data.labelled import Labelled, Splits
from metavib.networks.weights import Network
from metavib.progress import Bar
from metavib.tasks.episodes import Episodes, fixed
from metavib.tasks.inputs import Inputs
from metavib.training import metrics
from metavib.training.config import TasksConfig
from metavib.training.protocols.experiment import TEST, VALIDATION
from metavib.training.protocols.seen import stored_size

SHOTS, QUERIES = (1, 5), 15
PIXELS = {"cpu": 16 * 84**2, "cuda": 512 * 84**2}  # of one pass through the network: few stay in a CPU's cache


class View(NamedTuple):
    """How a picture is shown to a network at test.

    Args:
        size: the side to which the centre of the picture is brought.
        mirror: average the features of the picture and of its mirror image.
        turns: average them over the picture turned by no, one, two and three quarters.
    """

    size: int
    mirror: bool = False
    turns: bool = False

    def transform(self, tasks: TasksConfig, side: int) -> Transform:
        """What evaluation uses of a picture of some side, all of it or its centre, at this view's size; normalised."""
        if tasks.fit == "whole":
            return Compose((Resize(self.size), Normalise()))
        stored = stored_size(tasks)
        shrink = (Resize(stored),) if side > stored else ()  # training pictures are kept larger, for crops
        return Compose((*shrink, CentreCrop(tasks.size), Resize(self.size), Normalise()))

    def shown(self, x: Tensor) -> list[Tensor]:
        """The pictures `(n, C, H, W)` in each form whose features are averaged."""
        forms = [x.rot90(quarters, (-2, -1)) for quarters in range(4 if self.turns else 1)]
        return forms + [form.flip(-1) for form in forms] if self.mirror else forms


@torch.no_grad()
def features(
    network: Network, images: Tensor, tasks: TasksConfig, view: View, *, advance: Callable[[int], object] | None = None
) -> Tensor:
    """Features `(n, M)` of pictures, float32, on the network's device.

    Args:
        network: whose batch-norm must not look at other pictures (`running`, or none).
        images: uint8 `(n, C, H, W)`, on any device.
        tasks: says which part of a picture is its centre.
        view: how pictures are shown.
        advance: told how many pictures are done, now and then.
    """
    network.eval()
    if not network.body.pointwise:
        raise ValueError(
            "features of single pictures need a network that treats them one by one: its batch-norm (model.norm) must "
            "be running or none."
        )
    weight = next(network.parameters())
    transform, stream = view.transform(tasks, images.shape[-1]), torch.Generator()  # from which nothing is drawn
    phi, done = [], 0
    for part in images.split(max(1, PIXELS[weight.device.type] // view.size**2)):
        x = transform(part.to(weight.device), stream).to(weight.dtype)
        phi.append(torch.stack([_phi(network, form) for form in view.shown(x)]).mean(0))
        done += len(part)
        if advance:
            advance(done)
    return torch.cat(phi).float()


def _phi(network: Network, x: Tensor) -> Tensor:
    return network(Inputs(x, torch.ones(len(x), dtype=torch.bool, device=x.device), 0))


def nearest_centroids(data: Labelled, *, ways: int, shots: int, queries: int, episodes: int, seed: int) -> Tensor:
    r"""Accuracy on each of some fixed episodes of the class whose centroid has the largest cosine, `(episodes,)`.

    A centroid is the mean of the support's unit vectors $\phi / |\phi|$ of its class.

    Args:
        data: features in place of images, `(n, M)`.
        ways: classes of an episode.
        shots: support pictures of each class.
        queries: query pictures of each class.
        episodes: how many.
        seed: which; the same as in the test of a meta-trained model give the same episodes.
    """
    source = Episodes(data._replace(images=F.normalize(data.images, dim=-1)), ways=ways, shots=shots, queries=queries)
    hits = []
    for task in fixed(source, count=episodes, seed=seed, batch=100):
        centroids = F.normalize(task.support.x.unflatten(-2, (ways, shots)).mean(-2), dim=-1)
        hits.append(((task.query.x @ centroids.mT).argmax(-1) == task.query.y).float().mean(-1))
    return torch.cat(hits)


def centroid_scores(data: Labelled, *, ways: int, episodes: int, seed: int) -> dict[int, metrics.OverEpisodes]:
    """Accuracy of nearest centroids with its interval over episodes, by the number of shots."""
    sizes: Any = {"ways": ways, "queries": queries_of(data), "episodes": episodes, "seed": seed}
    return {shots: metrics.over_episodes(nearest_centroids(data, shots=shots, **sizes)) for shots in SHOTS}


def queries_of(data: Labelled) -> int:
    """Query pictures of a class: fifteen, or what the smallest class has beside its shots."""
    least = int(data.counts.min())
    if least <= max(SHOTS):
        raise ValueError(
            f"nearest centroids are tested with {max(SHOTS)} shots and a query: each class needs at least "
            f"{max(SHOTS) + 1} pictures; the smallest has {least}."
        )
    return min(QUERIES, least - max(SHOTS))


def embedded(
    network: Network,
    splits: Splits,
    tasks: TasksConfig,
    views: Sequence[View],
    *,
    episodes: int = 3_000,
    quiet: bool = True,
) -> tuple[Splits, dict[str, Any]]:
    """Features of all pictures under the view that is best on the validation classes, and what nearest centroids make.

    Args:
        network: as in `features`.
        splits: the pictures.
        tasks: the experiment they belong to, and the ways of an episode.
        views: to choose from, by the mean accuracy at one and five shots on validation.
        episodes: of the final scores; a third as many choose the view.
        quiet: no progress bar.

    Returns:
        The features in place of the images, and the scores as JSON holds them.
    """
    few = max(2, episodes // 3)
    tried = []
    with Bar("embedding", len(views) + len(splits), show=not quiet) as advance:
        for i, view in enumerate(views):
            phi = splits.validation._replace(images=features(network, splits.validation.images, tasks, view))
            scores = centroid_scores(phi, ways=tasks.ways, episodes=few, seed=1000 * VALIDATION)
            tried.append((sum(s.mean for s in scores.values()) / len(scores), view, scores))
            advance(i + 1)
        _, best, _ = max(tried, key=lambda each: each[0])
        parts = []
        for i, part in enumerate(splits):
            parts.append(
                part._replace(images=features(network, part.images, tasks, best).cpu(), labels=part.labels.cpu())
            )
            advance(len(views) + i + 1)
    test = centroid_scores(parts[-1], ways=tasks.ways, episodes=episodes, seed=1000 * TEST)
    return Splits(*parts), {
        "experiment": tasks.name,
        "view": best._asdict(),
        "validation": [{**view._asdict(), "centroids": _plain(scores)} for _, view, scores in tried],
        "test": {"centroids": _plain(test)},
    }


def _plain(scores: dict[int, metrics.OverEpisodes]) -> dict[str, Any]:
    return {f"{shots}-shot": score._asdict() for shots, score in scores.items()}
