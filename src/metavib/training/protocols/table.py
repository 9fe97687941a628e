"""Tasks of one's own: a CSV or Parquet file with a task and an output in each row.

The tasks are divided at random, always in the same way, into those to train on, to select the model on and to test on.
Everything a trained run needs later (what columns become, standardisation, labels) is in its config: `resolve` puts it
there. Errors and densities are in the units of the table.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, inf, isinf, log
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from metavib.data import schema as schemas
from metavib.data.schema import Rows, Schema
from metavib.data.table import Table as Cells
from metavib.data.table import digest, number, read, shown
from metavib.files import naming
from metavib.groups import Learned, LearnedShares, learn_shares
from metavib.groups.class_report import shares
from metavib.groups.outliers import learn_from_right_rows
from metavib.likelihoods import ClassLikelihood, Likelihood, RealLikelihood
from metavib.model import Model
from metavib.networks.repeats import share
from metavib.progress import Bar
from metavib.random import Stream, seeded
from metavib.tasks import scaling as scalings
from metavib.tasks.scaling import Scaling
from metavib.tasks.table import TableTasks, split_tasks
from metavib.tasks.task import Task
from metavib.training import build, metrics
from metavib.training.config import AUTO, BOUND, HIERARCHICAL, Config, TableConfig
from metavib.training.protocols import obvious
from metavib.training.protocols.experiment import TEST, VALIDATION, Experiment
from metavib.training.protocols.regression import LEVELS, score_all, steps_at_test, summarise
from metavib.training.temperature import PLAIN, Temperature

REAL = ("gaussian", "student-t")  # likelihoods whose outputs have units, and are standardised
SHOWN = 20  # input columns that are named, at most
CLASSES = 50  # of a target, at most: more different labels are no classes


class Split(NamedTuple):
    """Rows to train on, to select the model on, and to report on; no task has rows in two of them.

    Example:
        >>> from metavib.training.protocols.table import Split
        >>> Split._fields
        ('train', 'validation', 'test')
    """

    train: Rows
    validation: Rows
    test: Rows


def resolve(config: Config) -> Config:
    """The config with what the file decides filled in: columns, standardisation (of the training tasks), digest.

    Outputs that are labels make the likelihood one of classes, bernoulli for two and softmax for more; so do 0 and 1,
    unless a likelihood is named. Sites that fit the likelihood replace exact ones, which only the Gaussian has.
    Resolving twice changes nothing as long as the file is the same.
    """
    table = config.tasks.table
    if table.csv is None:
        raise ValueError(
            "the experiment table needs a file: pass FILE (or --csv FILE) with --task COLUMN --target COLUMN."
        )
    for name in ("task", "target"):
        if not getattr(table, name):
            raise ValueError(f"the experiment table needs --{name} COLUMN: which column holds the {name} of each row?")
    path = Path(table.csv).absolute()
    cells = _file(replace(table, csv=str(path)))
    if len(several := cells.named(table.target)) > 1:
        raise ValueError(
            f"a run has one target, and {', '.join(several)} are several: metavib.training.targets trains one for each."
        )
    roles = schemas.check_roles(cells, table.features, target=table.target, task=table.task)
    features = cells.features(table.features, drop=(*table.drop, *table.others), beside=roles)
    if not features and config.method != HIERARCHICAL:
        raise ValueError(
            f"{path}: no column is left for the inputs beside {' and '.join(map(repr, (*roles, *table.drop)))}, and a "
            f"network needs some; --method {HIERARCHICAL} learns how groups differ without."
        )
    cells = _told(cells, _complete(cells, table), table)
    config = _with_likelihood(config, cells)
    classes = config.tasks.table.classes
    ids = np.array(cells.ids(table.task))
    with naming(path):
        parts = split_tasks(ids)
    learned_from = parts[0]
    schema = schemas.learn(
        cells.select(learned_from), features, categories=table.categories, groups=ids[learned_from].tolist()
    ).used
    x, y = schema.encode(cells), _values(cells, config)
    with naming(path):
        scalings.check_learnable(x, names=schema.sources)
        scalings.check_finite(x, names=schema.sources, missing=table.missing, lines=cells.lines)
        x_scaling = scalings.columns(x[learned_from], names=schema.sources, missing=table.missing)
    y_scaling = scalings.as_they_are()
    if config.model.likelihood in REAL:
        y_scaling = scalings.outputs(y[learned_from])._replace(**scalings.steps_of(y[learned_from])._asdict())
    table = replace(
        table,
        csv=str(path),
        features=schema.features,
        digest=digest(path),
        columns=() if schema.plain else schema.to_json(),
        classes=classes,
        mean=tuple(x_scaling.mean.tolist()),
        scale=tuple(x_scaling.scale.tolist()),
        flags=tuple(x_scaling.flags.tolist()),
        y_mean=float(y_scaling.mean),
        y_scale=float(y_scaling.scale),
        y_step=float(y_scaling.step),
        y_low=_finite(float(y_scaling.low)),
        y_high=_finite(float(y_scaling.high)),
    )
    return replace(config, tasks=replace(config.tasks, table=table, inputs=x_scaling.width))


def schema(table: TableConfig) -> Schema:
    """What the input columns of a resolved config become as numbers."""
    return Schema.from_json(table.columns) if table.columns else schemas.numbers(table.features)


def check_file(table: TableConfig) -> None:
    """Refuses a file that is not there, or is another one than the run was started with."""
    assert table.csv is not None
    if not Path(table.csv).is_file():
        raise FileNotFoundError(
            f"{table.csv} is not there: a run on a table is trained and tested on the rows of this file. Where it has "
            "moved, say where it is: --csv FILE. (Adapting and predicting need the run folder alone.)"
        )
    if digest(table.csv) != table.digest:
        raise ValueError(f"{table.csv} is not the file this run was started with: its contents have changed.")


def read_table(table: TableConfig) -> Cells:
    """The file of a config, with ids and categories as texts: the rows that have a target and a task."""
    cells = _file(table)
    return cells.select(_complete(cells, table))


def _file(table: TableConfig) -> Cells:
    """All rows of the file of a config."""
    assert table.csv is not None
    texts = (*table.categories, table.task, *(name.strip() for name in table.task.split(",")))
    if table.columns:
        texts += schema(table).texts
    found = read(table.csv, texts=texts)
    if not len(found):
        raise ValueError(f"{table.csv}: the file has a header and no rows.")
    if table.others:
        found.check_present((table.target, *table.others))
    return found


def _complete(cells: Cells, table: TableConfig) -> np.ndarray:
    """Which rows have a target and a task, as a mask: of others there is nothing to learn."""
    kept = np.ones(len(cells), dtype=bool)
    for names in (*((name,) for name in cells.named(table.task)), cells.named(table.target)):
        kept &= np.any([cells.present(name) for name in names], axis=0)
        if not kept.any():
            raise ValueError(
                f"{cells.source}: column {', '.join(map(repr, names))} has no values at all: leave it out."
            )
    return kept


def _told(cells: Cells, kept: np.ndarray, table: TableConfig) -> Cells:
    """Some of the rows; a warning tells of the others, but for those that lack one of several targets."""
    lacking = np.flatnonzero(~kept)
    if len(lacking) and not table.others:
        warnings.warn(
            f"{len(lacking)} of {len(cells)} rows have no {table.target!r} or no {table.task!r}, and are left out; the "
            f"first of them is {cells.place(lacking[0])}.",
            UserWarning,
            stacklevel=3,
        )
    return cells.select(kept)


def _with_likelihood(config: Config, cells: Cells) -> Config:
    """The config with a likelihood, sites and class labels that fit the outputs."""
    model, tasks, target = config.model, config.tasks, config.tasks.table.target
    labelled = schemas.is_text(cells, target)
    name, classes = model.likelihood, tuple[str, ...]()
    if labelled and name not in (AUTO, "gaussian", "bernoulli", "softmax"):
        raise ValueError(f"{cells.source}: column {target!r} holds labels, and {name} takes numbers.")
    if name == AUTO and not labelled:
        name = "bernoulli" if set(cells[target].tolist()) == {0, 1} else "gaussian"
    if labelled or name in ("bernoulli", "softmax"):
        found = set(cells.labels(target))
        if not 2 <= len(found) <= CLASSES and name != "bernoulli":
            raise _no_classes(cells, target, len(found))
        _warn_of_case(cells, target, found)
        if name in (AUTO, "gaussian"):
            name = "bernoulli" if len(found) == 2 else "softmax"
        if name == "bernoulli" and len(found) != 2 and not found <= {"0", "1"}:
            raise ValueError(
                f"{cells.source}: column {target!r} must hold 0 and 1, or two labels, under bernoulli; it has "
                f"{len(found)} different values."
            )
        if name == "softmax" or not found <= {"0", "1"}:
            classes = tuple(sorted(found, key=_numbers_first))
    if config.method == HIERARCHICAL and name not in ("gaussian", "bernoulli", "softmax"):
        raise ValueError(
            f"{HIERARCHICAL} learns numbers and classes; for {name} outputs train a network: --method gp-vib."
        )
    sites = model.sites
    if sites == "exact" and name != "gaussian":
        sites = "simplified" if name == "softmax" else "general"
    ways = len(classes) if name == "softmax" else tasks.ways
    tasks = replace(tasks, table=replace(tasks.table, classes=classes), ways=ways)
    return replace(config, model=replace(model, likelihood=name, sites=sites), tasks=tasks)


def _no_classes(cells: Cells, target: str, found: int) -> ValueError:
    """An error about a target with too many values, or one alone, to be classes."""
    where, what = cells.source, f"column {target!r} has {found} different values, where one of classes has"
    words = [i for i, cell in enumerate(cells.texts(target)) if isinf(number(cell))]
    if words:
        where, what = cells.place(words[0]), f"{shown(cells[target][words[0]])} is no number, and {what}"
    return ValueError(
        f"{where}: {what} between 2 and {CLASSES}. Write numbers as 1234.5, and dates as days since the first one, "
        "for instance."
    )


def _warn_of_case(cells: Cells, target: str, found: set[str]) -> None:
    """Warns of labels that differ in capital letters alone, which are classes of their own."""
    first: dict[str, str] = {}
    for label in sorted(found):
        if first.setdefault(label.lower(), label) != label:
            warnings.warn(
                f"{cells.source}: column {target!r} has the labels {first[label.lower()]!r} and {label!r}, which count "
                "as two classes.",
                UserWarning,
                stacklevel=4,
            )


def _numbers_first(label: str) -> tuple[float, str]:
    """The order of labels: 2 before 10, and numbers before words."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def _finite(end: float) -> float | None:
    """An end of a scale; None where there is none."""
    return None if isinf(end) else end


def _values(cells: Cells, config: Config) -> np.ndarray:
    """Outputs as numbers, checked: those of the table, or the places of labels among the classes."""
    table = config.tasks.table
    if table.classes:
        place = {label: i for i, label in enumerate(table.classes)}
        return np.array([place[label] for label in cells.labels(table.target)])
    y = cells.outputs(table.target)
    with naming(cells.source):
        scalings.check_finite(y[:, None], names=(table.target,), lines=cells.lines)
        check_outputs(torch.tensor(y), table.target, build.likelihood(config))
    return y


def check_outputs(y: Tensor, target: str, likelihood: Likelihood) -> None:
    """Refuses outputs that a likelihood has no room for, by the name of their column."""
    if isinstance(likelihood, ClassLikelihood):
        if bool(((y != 0) & (y != 1)).any()):
            name = type(likelihood).__name__
            raise ValueError(f"column {target!r} must hold 0 and 1 under a {name} likelihood.")
        return
    try:
        likelihood.check(y)
    except ValueError as error:
        raise ValueError(f"column {target!r}: {error}") from error


def scaling(table: TableConfig) -> Scaling:
    """The standardisation of a resolved config."""
    if not table.digest:
        raise ValueError("this config was not resolved: call metavib.training.protocols.table.resolve on it first.")
    ends = (-inf if table.y_low is None else table.y_low, inf if table.y_high is None else table.y_high)
    of_outputs = (table.y_mean, table.y_scale, table.y_step, *ends)
    outputs = scalings.Outputs(*(torch.tensor(v, dtype=torch.float64) for v in of_outputs))
    mean, scale = (torch.tensor(values, dtype=torch.float64) for values in (table.mean, table.scale))
    flags = torch.tensor(table.flags, dtype=torch.int64)
    return Scaling(scalings.Columns(mean, scale, flags), outputs)


@final
class Table(Experiment):
    r"""Tasks drawn from the rows of a file.

    Args:
        config: that of the run, as `resolve` completes it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from metavib.random import seeded
        >>> from metavib.training.fields import override
        >>> from metavib.training.protocols.table import Table, resolve
        >>> from metavib.training.recipes import recipe
        >>> rows = [f"{shop},{day},{shop * day}" for shop in range(9) for day in range(6)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "sales.csv"
        ...     _ = path.write_text("\n".join(["shop,day,sold", *rows]))
        ...     named = {"tasks.table.csv": str(path), "tasks.table.task": "shop", "tasks.table.target": "sold"}
        ...     shops = Table(resolve(override(recipe("table", "gp-vib"), named | {"tasks.shots": 3})))
        >>> shops.sample((2,), seeded(0)).support.x.shape[-1]  # the day
        1
    """

    def __init__(self, config: Config) -> None:
        tasks, table = config.tasks, config.tasks.table
        if config.method not in (*BOUND, HIERARCHICAL):
            known = ", ".join((*BOUND, HIERARCHICAL))
            raise ValueError(f"{config.method} is a classifier of images; table takes {known}.")
        if config.model.backbone != "mlp":
            raise ValueError(f"model.backbone must be mlp on table; got {config.model.backbone!r}.")
        if config.device != "cpu":
            raise ValueError(f"tables are drawn from on the CPU: set device = cpu; got {config.device!r}.")
        self.config, self.dtype, self.scaling = config, build.DTYPES[config.precision], scaling(table)
        self._likelihood = build.likelihood(config)
        check_file(table)
        cells, becomes = read_table(table), schema(table)
        rows = Rows(becomes.encode(cells), _values(cells, config), np.array(cells.ids(table.task)), becomes.sources)
        place = "row {}" if cells.lines is None else "line {}"
        numbers = np.arange(1, len(cells) + 1) if cells.lines is None else np.asarray(cells.lines)
        with naming(cells.source):
            self.split = _split(rows)
            self._places = [place.format(n) for part in split_tasks(rows.tasks)[:2] for n in numbers[part]]
            sizes = {"shots": tasks.shots, "queries": tasks.queries}
            self.source = self._tasks(self.split.train, **sizes, min_shots=tasks.min_shots)
            self._validation = self._tasks(self.split.validation, **sizes, min_shots=tasks.min_shots)
            self._tasks(self.split.test, shots=1, queries=1)  # refused now rather than later

    def described(self) -> str:
        """What is learned from, in words: how many rows, and from which columns the outputs are predicted."""
        groups = len(np.unique(np.concatenate([part.tasks for part in self.split[:2]])))
        rows, table = sum(len(part.x) for part in self.split[:2]), self.config.tasks.table
        columns = [_becomes(column) for column in schema(table).columns]
        inputs = ", ".join(columns[:SHOWN]) + f" and {len(columns) - SHOWN} more" * (len(columns) > SHOWN)
        return f"{rows} rows of {groups} groups; {table.target!r} is predicted from {inputs or 'the groups alone'}"

    def learn(self) -> tuple[Learned | LearnedShares, list[str]]:
        """A hierarchical prior, learned from all groups but those to test on: it needs none to select a model by.

        Returns it, and the places of rows that were left out because their outputs cannot be right.
        """
        rows = [self._rows(part) for part in self.split[:2]]
        x, y = (torch.cat(column) for column in zip(*rows, strict=True))
        ids = np.concatenate([part.tasks for part in self.split[:2]])
        options: Any = {"group": np.unique(ids, return_inverse=True)[1], "seed": self.config.seed}
        if isinstance(self._likelihood, ClassLikelihood):
            return learn_shares(x, y, classes=self._likelihood.classes, **options), []
        found, left_out = learn_from_right_rows(x, y, **options, units=self.scaling.y)
        return found, [self._places[i] for i in np.flatnonzero(left_out)]

    def sample(self, shape: tuple[int, ...], generator: Stream) -> Task:
        """Training tasks, drawn with replacement."""
        return self.source.sample(shape, generator).to(self.dtype)

    def validate(self, model: Model) -> dict[str, float]:
        """Means over the validation tasks, which take turns, split as in training; the score is the log density."""
        count = self.config.train.validation_tasks
        tasks = self._validation.split(torch.arange(count) % len(self._validation), seeded(VALIDATION))
        mode = model.training
        scores = self.score(model.eval(), tasks)
        model.train(mode)
        means = {name: float(values.mean()) for name, values in scores.items()}
        return {**means, "score": means["log_density"]}

    def evaluate(self, model: Model, *, temperature: Temperature = PLAIN, quiet: bool = False) -> dict[str, Any]:
        """A row for each number of shots and of inner steps: means over test tasks, each split at random many times.

        The tasks are those that have more rows than shots. The intervals are over tasks: splits of one task are
        averaged first. Beside them stands what takes no meta-learning (`metavib.training.protocols.obvious`, and
        of classes `metavib.groups.class_report.shares`), on the same rows.
        """
        config, test = self.config, self.config.test
        steps, done = steps_at_test(config), 0
        rows: list[dict[str, Any]] = []
        sizes = self._sizes(test.shots or (config.tasks.shots,))
        sources = {k: self._tasks(self.split.test, shots=k, queries=test.queries, more_than=k) for k in sizes}
        splits_of = {k: ceil(test.tasks / len(source)) for k, source in sources.items()}
        whole = len(steps) * sum(splits_of[k] * len(source) for k, source in sources.items())
        with Bar("testing", whole, show=not quiet) as advance:
            for shots, source in sources.items():
                count, splits = len(source), splits_of[shots]
                tasks = source.split(torch.arange(count).repeat(splits), seeded(test.seed, TEST, shots))
                beside = {name: _summaries(scores, splits, count) for name, scores in self._obvious(tasks).items()}
                for inner in steps:
                    tested = build.at_test(model, config, inner_steps=inner)
                    columns = score_all(partial(self.score, tested), tasks, advance, done=done, note=f"K = {shots}")
                    done += splits * count
                    row: dict[str, Any] = {"shots": shots, "tasks": count, "splits": splits}
                    row |= {"metrics": _summaries(columns, splits, count), "obvious": beside}
                    rows.append(row if inner is None else {**row, "inner_steps": inner})
        about = {"experiment": "table", "method": config.method, "repeats": config.repeats}
        return about | {"target": config.tasks.table.target, "rows": rows}

    def _obvious(self, tasks: Task) -> dict[str, dict[str, Tensor]]:
        """Scores `(1, tasks)` of what takes no meta-learning, in the units of the table."""
        (x, y), query = self._rows(self.split.train), tasks.query
        found: dict[str, dict[str, Tensor]] = {}
        if isinstance(self._likelihood, ClassLikelihood):
            for name, p in shares(y, self._likelihood.classes, tasks).items():
                log_p = p.gather(-1, query.y.unsqueeze(-1)).squeeze(-1).log()
                found[name] = {"accuracy": metrics.accuracy(p, query.y, query.mask)}
                found[name] |= {"log_density": metrics.log_density(log_p, query.mask)}
        else:
            for name, mean in obvious.ridges(x, y, tasks).items():
                found[name] = {"mse": self.scaling.y.restore_variance(metrics.mse(mean, query.y, query.mask))}
        return {name: {metric: values[None] for metric, values in scores.items()} for name, scores in found.items()}

    def _sizes(self, shots: Sequence[int]) -> list[int]:
        """Numbers of support points to report on, none above what the largest test task has beside one to predict."""
        assert self.split.test.tasks is not None
        _, counts = np.unique(self.split.test.tasks, return_counts=True)
        return list(dict.fromkeys(min(k, int(counts.max()) - 1) for k in shots))

    @torch.no_grad()
    def score(self, model: Model, tasks: Task) -> dict[str, Tensor]:
        """Scores of each task, `(repeats, tasks)`, in the units of the table."""
        likelihood, repeats, y_scaling = model.likelihood, self.config.repeats, self.scaling.y
        tasks = tasks.to(self.dtype)
        shape = (repeats, *tasks.batch_shape)
        tasks = share(tasks, repeats)
        noise = seeded(self.config.test.seed, TEST)
        q = model(tasks, noise)
        _, y, mask = tasks.query
        log_p = metrics.log_density(likelihood.log_predictive(q, y, noise), mask) - y_scaling.log_scale
        if isinstance(likelihood, RealLikelihood):
            mean, _ = likelihood.predict(q, noise)
            pit = likelihood.predictive_cdf(q, y, noise)
            if y_scaling.stepped:  # as predictions in steps are, whose intervals go by mid-P values
                grid = y_scaling.grid
                mean = mean.clamp(grid.low, grid.high)
                log_p = metrics.log_density(likelihood.log_mass(q, y, grid), mask) - log(float(y_scaling.step))
                pit = torch.stack(likelihood.around(q, y, grid)).mean(0)
            scores = {"mse": y_scaling.restore_variance(metrics.mse(mean, y, mask)), "log_density": log_p}
            scores |= {f"coverage_{round(100 * level)}": metrics.coverage(pit, level, mask) for level in LEVELS}
        else:
            assert isinstance(likelihood, ClassLikelihood)
            p = likelihood.predict(q, noise)
            scores = {
                "accuracy": metrics.accuracy(p, y, mask),
                "log_density": log_p,
                "brier": metrics.brier(p, y, mask),
            }
        return {name: values.reshape(shape) for name, values in scores.items()}

    def _rows(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Standardised inputs and outputs."""
        assert rows.y is not None
        scalings.check_finite(rows.x, names=rows.names, missing=self.config.tasks.table.missing)
        x, y = self.scaling.x.standardise(torch.tensor(rows.x)), torch.tensor(rows.y)
        return x, y.long() if isinstance(self._likelihood, ClassLikelihood) else self.scaling.y.standardise(y)

    def _tasks(
        self, rows: Rows, *, shots: int, queries: int, min_shots: int | None = None, more_than: int = 1
    ) -> TableTasks:
        """The groups that have more rows than some number, and two at least, one to learn from and one to predict."""
        assert rows.tasks is not None
        _, number, counts = np.unique(rows.tasks, return_inverse=True, return_counts=True)
        large = counts > max(1, more_than)
        rows = _select(rows, large[number]) if large.any() else rows
        return TableTasks(*self._rows(rows), rows.tasks, shots=shots, queries=queries, min_shots=min_shots)


def _becomes(column: schemas.Column) -> str:
    """The name of an input column, with what it was taken for where that is no number."""
    if isinstance(column, schemas.Category):
        return f"{column.name} ({len(column.values)} values)"
    return f"{column.name} (dates)" if isinstance(column, schemas.Moment) else column.name


def _summaries(scores: dict[str, Tensor], splits: int, tasks: int) -> dict[str, Any]:
    """Means of scores `(repeats, splits * tasks)`, with intervals over tasks."""
    return {name: summarise(values.unflatten(-1, (splits, tasks)).mean(-2)) for name, values in scores.items()}


def _split(rows: Rows) -> Split:
    return Split(*(_select(rows, part) for part in split_tasks(rows.tasks)))


def _select(rows: Rows, which: np.ndarray) -> Rows:
    assert rows.y is not None and rows.tasks is not None
    return Rows(rows.x[which], rows.y[which], rows.tasks[which], rows.names)
