"""Each table and figure by name: the runs behind it, and how their records are shown."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.show import plots
from metavib.training import checkpoint
from metavib.training.run_folder import LAST
from reproduction import lists, tables
from reproduction.displays import DISPLAYS, Display
from reproduction.lists import SEEDS, Runs

Records = dict[str, Any]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure.

    Args:
        about: what it is, in a line.
        configs: the runs it needs, by name; takes a number of seeds where it is seeded.
        display: how their records are shown.
        quick: patterns of the runs that a quick version makes.
        seeded: whether seeds are runs of their own (sinusoids have their repeats side by side in one run).
        weights: whether the trained models are needed too, and not the records alone.
    """

    about: str
    configs: Callable[..., Runs]
    display: Display
    quick: str = "*"
    seeded: bool = False
    weights: bool = False

    @property
    def of(self) -> str:
        """The reproduction whose runs and records it shows, where it has none of its own."""
        return self.display.of

    def every(self) -> Runs:
        """All runs that may be on record, whatever number of seeds was asked for."""
        return self.configs(SEEDS) if self.seeded else self.configs()

    def show(self, records: Records, folder: Path) -> str:
        """Tables in Markdown, from records alone; figures are drawn into the folder."""
        parts = [tables.grid(grid) for grid in self.display.grids(records)]
        for file, caption, draw in self.display.drawings(records):
            if draw is not None:
                plots.save(draw(), folder / file)
            elif (weights := folder / "runs" / next(iter(records)) / LAST).exists():  # drawn with the trained model
                saved = checkpoint.load(weights)
                plots.save(plots.predictions(checkpoint.restore_model(saved), saved.config), folder / file)
            parts.append(f"![{caption}]({file})")
        return "\n\n".join(parts)


REPRODUCTIONS = {
    "table-1": Reproduction("sinusoids, mean squared error", lists.table_1, DISPLAYS["table-1"]),
    "figure-2": Reproduction("one sinusoid with 1 to 7 points", lists.figure_2, DISPLAYS["figure-2"], weights=True),
    "table-2": Reproduction(
        "5-way classification: CUB, mini-ImageNet, Omniglot to EMNIST, mini-ImageNet to CUB",
        lists.table_2,
        DISPLAYS["table-2"],
        quick="omniglot-emnist/*-5-seed0,*/gp-vib-linear-1-seed0",
        seeded=True,
    ),
    "omniglot": Reproduction(
        "Omniglot 5-way, accuracy and NLL",
        lists.omniglot,
        DISPLAYS["omniglot"],
        quick="gp-vib-linear-1-seed0,stochastic-maml-1-seed0,gp-maml-cosine-1-seed0",
        seeded=True,
    ),
    "augmented-omniglot": Reproduction(
        "20-way 15-shot within alphabets, and 2,000 streamed points",
        lists.augmented_omniglot,
        DISPLAYS["augmented-omniglot"],
        quick="gp-vib-linear-*-seed0,gp-maml-cosine-*-seed0,maml-*-seed0",
        seeded=True,
    ),
    "beta": Reproduction(
        "GP-VIB against beta, on sinusoids and on Omniglot to EMNIST",
        lists.beta,
        DISPLAYS["beta"],
        quick="sinusoid/beta-0.001,sinusoid/beta-1,omniglot-emnist/beta-1-5-seed0",
        seeded=True,
    ),
    "shots": Reproduction(
        "accuracy against K = 1 ... 20 at test, Omniglot to EMNIST",
        lists.shots,
        DISPLAYS["shots"],
        quick="gp-vib-linear-1-seed0,maml-1-seed0",
        seeded=True,
    ),
    "inner-steps": Reproduction(
        "MAML and GP+MAML on Omniglot against inner steps at test",
        lists.inner_steps,
        DISPLAYS["inner-steps"],
        quick="maml-shorter-1-seed0,gp-maml-linear-shorter-1-seed0",
        seeded=True,
    ),
    "calibration": Reproduction(
        "NLL, ECE and reliability of table-2's runs",
        lists.table_2,
        DISPLAYS["calibration"],
        quick="omniglot-emnist/*-5-seed0",
        seeded=True,
    ),
    "improved-sinusoid": Reproduction(
        "what our recipe for sinusoids changed",
        lists.improved_sinusoid,
        DISPLAYS["improved-sinusoid"],
        quick="gp-vib-plain,gp-vib-all",
    ),
    "improved-photographs": Reproduction(
        "what helps on CUB and mini-ImageNet, judged on validation",
        lists.improved_photographs,
        DISPLAYS["improved-photographs"],
        quick="cub/gp-vib-cosine-paper-seed0,cub/gp-vib-cosine-start-splits-full-seed0",
        seeded=True,
    ),
    "starts": Reproduction(
        "the first steps on photographs, by where GP-VIB's sites start",
        lists.starts,
        DISPLAYS["starts"],
        quick="*-seed0",
        seeded=True,
    ),
    "crops": Reproduction(
        "the first steps on mini-ImageNet, by the size of training crops",
        lists.crops,
        DISPLAYS["crops"],
        quick="*-seed0",
        seeded=True,
    ),
    "rates": Reproduction(
        "the first steps of GP+MAML on Augmented Omniglot, by learning rate and order",
        lists.rates,
        DISPLAYS["rates"],
        quick="*-seed0",
        seeded=True,
    ),
    "lengths": Reproduction(
        "GP-VIB on Omniglot against the length of its training, on two splits",
        lists.lengths,
        DISPLAYS["lengths"],
        quick="gp-vib-linear-300-steps-1-seed0",
        seeded=True,
    ),
    "glyphs": Reproduction(
        "built-in characters, every method", lists.glyphs, DISPLAYS["glyphs"], quick="gp-vib-linear-1,proto-net-1"
    ),
}
