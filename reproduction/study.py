"""What a study is: the runs behind a table or figure, and how their records are shown."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from metavib.show import plots
from metavib.training.config import Config
from metavib.training.fields import override
from reproduction.figures import predictions
from reproduction.store import Records
from reproduction.tables import Grid, row_of, shots_of

SEEDS = 10  # the most trainings that a cell can have: as many as the paper has anywhere


class Run(NamedTuple):
    """A run of a study.

    Args:
        config: what is trained and tested.
        variant: what was changed in the paper's recipe, in a word or two; empty for the recipe itself.

    Example:
        >>> from metavib.training.recipes import recipe
        >>> run = Run(recipe("cub", "gp-vib", shots=5, kernel="cosine"))
        >>> run.cell, run.changed("wide", {"model.width": 128}).cell
        ('gp-vib-cosine-5', 'gp-vib-cosine-wide-5')
    """

    config: Config
    variant: str = ""

    @property
    def cell(self) -> str:
        """The name of its cell: row, variant and shots."""
        config = self.config
        row = row_of(config.method, config.model.kernel, config.tasks.name)
        shots = shots_of(config.tasks.shots, config.tasks.min_shots, config.test.shots)
        return "-".join(filter(None, (row, self.variant, str(shots))))

    def changed(self, variant: str, changes: dict[str, Any]) -> "Run":
        """A variant of it, with some fields of the config changed; its name is added to that of the run's own."""
        return Run(override(self.config, changes), "-".join(filter(None, (self.variant, variant))))


Runs = dict[str, Run]


class Drawing(NamedTuple):
    """A figure of a study.

    Args:
        file: its name.
        caption: what it shows.
        draw: makes it from the records, or None where they have nothing to show.
        model: the run whose trained model it shows instead, where records do not suffice.

    Example:
        >>> from reproduction import figures
        >>> Drawing("beta.png", "Scores against beta", figures.beta).model
        ''
    """

    file: str
    caption: str
    draw: Callable[[Records], Figure | None] | None = None
    model: str = ""


@dataclass(frozen=True)
class Study:
    """A table or figure: all there is to say about it, in one place.

    Args:
        name: the command that makes it is `python -m reproduction NAME`.
        title: the heading of its section in RESULTS.md.
        about: how to read it, in a few sentences.
        runs: makes its runs by name, most telling first, for a number of seeds (None: as many as it has by default).
        tables: makes its tables from its records.
        drawings: its figures.
        quick: patterns of the runs that a quick version makes, separated by commas.
        seeded: whether every seed is a run of its own (sinusoids train their repeats side by side in one run).
        of: the study whose runs and records it shows, where it has none of its own.
        empty: whether its tables say something without any record, such as the paper's numbers.

    Example:
        >>> from reproduction.studies import STUDIES
        >>> run = STUDIES["table-1"].runs(None)["gp-vib-improved"]
        >>> run.variant, run.config.method, run.config.repeats
        ('improved', 'gp-vib', 10)
    """

    name: str
    title: str
    about: str
    runs: Callable[[int | None], Runs]
    tables: Callable[[Records], list[Grid]]
    drawings: tuple[Drawing, ...] = ()
    quick: str = "*"
    seeded: bool = False
    of: str = ""
    empty: bool = False

    @property
    def book(self) -> str:
        """The file of its records."""
        return f"{self.of or self.name}.jsonl"

    @property
    def models(self) -> list[str]:
        """The runs whose trained models its figures show."""
        return [drawing.model for drawing in self.drawings if drawing.model]

    def figures(self, records: Records, folder: Path) -> Iterator[tuple[Drawing, Figure | None]]:
        """Its figures, from its records and the folder of its run folders.

        None stands for one of which nothing is on record, or whose trained model is gone.
        """
        for drawing in self.drawings if records else ():
            yield drawing, drawing.draw(records) if drawing.draw else predictions(folder / drawing.model)

    def show(self, records: Records, folder: Path) -> str:
        """Writes its figures into the folder of its run folders; returns its tables, and these figures, in Markdown."""
        parts = [grid.markdown() for grid in self.tables(records)]
        for drawing, figure in self.figures(records, folder):
            if figure is not None:
                plots.save(figure, folder / drawing.file)
                parts.append(f"![{drawing.caption}]({drawing.file})")
        return "\n\n".join(parts)


def seeded(cells: Runs, trainings: Callable[[Run], int]) -> Runs:
    """Every run on a GPU with the first seed, then those that have more trainings with the next ones.

    Args:
        cells: by the name of a cell, to which the seed is added.
        trainings: how many of them a run has.
    """
    return {
        f"{name}-seed{seed}": Run(_on_gpu(replace(run.config, seed=seed)), run.variant)
        for seed in range(SEEDS)
        for name, run in cells.items()
        if seed < trainings(run)
    }


def _on_gpu(config: Config) -> Config:
    """Photographs keep a GPU busy, which bfloat16 halves; characters hardly do."""
    return replace(config, device="cuda", precision="bf16" if config.tasks.size > 28 else "tf32")
