"""Hyperparameter search: one study, as many workers on as many machines as there are.

A trial trains a config, tells the study its score on the validation tasks as it goes, and is pruned where that lies
below what other trials had by then. The test tasks are never looked at. The folder of a search holds

    study.db              the study, unless it is kept elsewhere
    trials/0007           the run folder of a trial
    best.json             the config of the best trial so far, for `metavib train ... --config`

A study is what its storage holds: a worker that stops loses nothing, and the next one goes on. What a killed worker was
at is tried again, from its last checkpoint where that is at hand.
"""

import multiprocessing
import os
import socket
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from metavib.files import write_json
from metavib.progress import Advance, Bar
from metavib.show.console import note
from metavib.training import build, run_folder
from metavib.training import loop as training
from metavib.training.config import Config
from metavib.training.fields import override, to_dict
from metavib.training.protocols import experiment
from metavib.training.stopping import Interrupted
from metavib.tune.ranges import Space, value_of
from metavib.tune.study import FINISHED, Trial, folder_number, importances, still, storage, trials, try_again

VALIDATIONS = 10  # of a trial, at least: a curve to prune on
LOCAL = ("device", "threads", "tasks.root", "tasks.table.csv")  # may differ between the machines of a study


@dataclass(frozen=True)
class Search:
    """What every worker of a study knows.

    Args:
        config: of all trials, but for the fields that are searched.
        space: the ranges of those, by field.
        folder: where this machine's trials are run.
        study: the name of the study.
        storage: where it is kept (`metavib.tune.study.storage`); None: in a database in the folder.
        trials: how many it is to have, whoever runs them.
        prune: stop trials that are worse than most were at the same step.
        seed: of the choice of values, where the search of a single worker is to be repeatable.

    Example:
        >>> from pathlib import Path
        >>> from metavib.training.recipes import recipe
        >>> from metavib.tune import Interval, Search
        >>> space = {"train.lr": Interval(1e-4, 0.1)}
        >>> search = Search(recipe("sinusoid", "gp-vib"), space, Path("runs/search"), "a-study")
        >>> search.url, search.with_values({"train.lr": 0.01}).train.lr
        ('sqlite:///runs/search/study.db', 0.01)
    """

    config: Config
    space: Space
    folder: Path
    study: str
    storage: str | None = None
    trials: int = 30
    prune: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1; got {self.trials}.")
        if not self.space:
            raise ValueError("there is nothing to search: give a range, such as --range train.lr=1e-4..0.1.")
        if not self.config.train.validate_every:
            raise ValueError("trials are judged on validation tasks: set train.validate_every above 0.")

    @property
    def url(self) -> str:
        """Where the study is kept."""
        return self.storage or f"sqlite:///{self.folder / 'study.db'}"

    def with_values(self, values: dict[str, Any]) -> Config:
        """The config of a trial."""
        return override(self.config, values)


@dataclass(frozen=True)
class Result:
    """What a study found.

    Args:
        trials: all, the best first.
        importances: of the fields that were searched (`metavib.tune.study.importances`).

    Example:
        >>> from metavib.tune import Result, Trial
        >>> pruned = Trial(0, "pruned", {"train.lr": 1.0}, -3.0, 10, {}, None)
        >>> best = Trial(1, "complete", {"train.lr": 0.01}, -0.2, 50, {"mse": 0.2, "score": -0.2}, None)
        >>> result = Result([best, pruned], {})
        >>> result.best.number, result.metric
        (1, ('mse', -1))
    """

    trials: list[Trial]
    importances: dict[str, float]

    @property
    def best(self) -> Trial | None:
        """The completed trial with the largest score."""
        return next((t for t in self.trials if t.state == "complete"), None)

    @property
    def metric(self) -> tuple[str, int]:
        """Which metric the score is, and its sign: that of regression is minus the mean squared error."""
        if self.best is not None and self.best.score is not None:
            for name, value in self.best.validation.items():
                if name != "score" and abs(value) == abs(self.best.score):
                    return name, 1 if value == self.best.score else -1
        return "score", 1


def with_curve(config: Config) -> Config:
    """The config with validations often enough to prune on, which change no training.

    Example:
        >>> from metavib.training.fields import override
        >>> from metavib.training.recipes import recipe
        >>> from metavib.tune import with_curve
        >>> config = override(recipe("sinusoid", "gp-vib"), {"train.steps": 200, "train.validate_every": 100})
        >>> with_curve(config).train.validate_every
        20
    """
    every = max(1, min(config.train.validate_every, config.train.steps // VALIDATIONS))
    return replace(config, train=replace(config.train, validate_every=every))


def tune(search: Search, *, jobs: int = 1, quiet: bool = False) -> Result:
    """Runs what is missing of a study.

    Args:
        search: the study. One that exists goes on, if it was started with the same config and ranges.
        jobs: trials at a time on this machine, each in a process of its own.
        quiet: no progress bar.

    Raises:
        metavib.training.stopping.Interrupted: after Ctrl-C or SIGTERM; the trial it was at is tried again by the next
            worker.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from metavib.training.fields import override
        >>> from metavib.training.recipes import recipe
        >>> from metavib.tune import Choices, Search, tune
        >>> few = {"train.steps": 10, "train.validate_every": 5, "train.validation_tasks": 4}
        >>> config = override(recipe("sinusoid", "gp-vib"), few)
        >>> space = {"train.lr": Choices((0.001, 0.01))}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tune(Search(config, space, Path(folder), "sines", trials=2), quiet=True)
        >>> len(result.trials), result.best.values["train.lr"] in (0.001, 0.01)
        (2, True)
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}.")
    if jobs > 1 and search.seed is not None:
        raise ValueError("a seed makes the search of one worker repeatable, and several try the same: leave it out.")
    build.model(search.config)
    experiment(search.config)  # whatever a config can be refused for is refused here, before there is a study
    with still():
        study = open_study(search)
        helpers = [multiprocessing.get_context("spawn").Process(target=_help, args=(search,)) for _ in range(1, jobs)]
        try:
            for helper in helpers:
                helper.start()
            with Bar("tuning", search.trials, show=not quiet) as advance:
                _work(study, search, advance)
                for helper in helpers:
                    helper.join()
        finally:
            for helper in helpers:
                if helper.is_alive():
                    helper.terminate()  # it saves its state, and its trial is tried again
                    helper.join()
        if any(helper.exitcode for helper in helpers):
            raise RuntimeError("a worker of the study failed, with the error above.")
        _write_best(study, search)
        return Result(trials(study, search.space), importances(study))


def open_study(search: Search) -> optuna.Study:
    """The study, made or joined; an error where it was started with another config or other ranges."""
    search.folder.mkdir(parents=True, exist_ok=True)
    kept = storage(search.url)
    if search.study not in optuna.get_all_study_names(kept) and (search.folder / "trials").exists():
        raise FileExistsError(f"{search.folder / 'trials'} holds trials of another study; name another --out.")
    median = optuna.pruners.MedianPruner(n_warmup_steps=search.config.train.steps // 5)
    study = optuna.create_study(
        study_name=search.study,
        storage=kept,
        sampler=optuna.samplers.TPESampler(seed=search.seed),
        pruner=median if search.prune else optuna.pruners.NopPruner(),
        direction="maximize",
        load_if_exists=True,
    )
    wanted = _flat(to_dict(search.config)) | {f"the range of {field}": str(r) for field, r in search.space.items()}
    wanted = {field: value for field, value in wanted.items() if field not in (*LOCAL, *search.space)}
    started = study.user_attrs.get("search")
    if started is None:
        _try_first(study, search)
        study.set_user_attr("search", wanted)
    elif started != wanted:
        field = next(f for f in {**started, **wanted} if started.get(f) != wanted.get(f))
        raise ValueError(
            f"the study {search.study!r} was started with {field} = {started.get(field)}, not {wanted.get(field)}: "
            "go on with the options it was started with, or give --study another name."
        )
    return study


def _try_first(study: optuna.Study, search: Search) -> None:
    """The first trial is the config itself, where the ranges have it: that is what there is to beat."""
    values = {field: value_of(search.config, field) for field in search.space}
    if all(value in search.space[field] for field, value in values.items()):
        stored = {field: search.space[field].stored(value) for field, value in values.items()}
        study.enqueue_trial(stored, skip_if_exists=True)


def _help(search: Search) -> None:
    """A further worker, in a process of its own that ends with its parent."""
    build.set_torch(search.config)
    try:
        with still():
            _work(open_study(search), search, lambda completed, note=None: None)
    except Interrupted:
        pass
    except Exception as error:  # the parent reports that there was one
        note(f"error in a worker: {error}")
        sys.exit(2)


def _work(study: optuna.Study, search: Search, advance: Advance) -> None:
    """Runs trials until the study has enough of them, finished or under way anywhere."""
    parent = multiprocessing.parent_process()
    _try_orphans_again(study)
    while len(_having(study, *FINISHED, TrialState.RUNNING)) < search.trials and (parent is None or parent.is_alive()):
        lost: list[int] = []
        try:
            study.optimize(partial(_objective, study, search, advance, lost), n_trials=1)
        except (UpdateFinishedTrialError, ValueError):
            if not lost:
                raise
            continue
        _write_best(study, search)
        _try_orphans_again(study)
        advance(len(_having(study, *FINISHED)))


def _objective(study: optuna.Study, search: Search, advance: Advance, lost: list[int], trial: optuna.Trial) -> float:
    """Trains a trial's config; the score of the model that would be tested.

    Args:
        study: the study.
        search: what is searched.
        advance: moves the progress bar.
        lost: gets the trial's number where another worker has taken this one for dead, and its trial over.
        trial: whose values are to be tried.
    """
    trial.set_user_attr("worker", [socket.gethostname(), os.getpid()])
    config = search.with_values({field: r.suggest(trial, field) for field, r in search.space.items()})
    known = next((t for t in _having(study, *FINISHED) if t.params == trial.params), None)
    if known is not None:
        return _same(trial, known)
    folder = search.folder / "trials" / f"{folder_number(trial):04d}"
    finished = len(_having(study, *FINISHED))

    def report(step: int, score: float) -> None:
        if step not in reported:
            reported.add(step)
            try:
                trial.report(score, step)
            except UpdateFinishedTrialError:
                lost.append(trial.number)
                raise

    def watch(step: int, score: float) -> None:
        report(step, score)
        advance(finished, f"trial {trial.number}, step {step:,} of {config.train.steps:,}{_best_so_far(study)}")
        if trial.should_prune():
            raise optuna.TrialPruned

    reported: set[int] = set()
    for line in _validations(folder):  # of the trial that this one tries again
        report(line["step"], line["validation"]["score"])
    try:
        training.train(config, folder, resume=True, quiet=True, watch=watch)
    except FloatingPointError as error:  # as good as pruned: such values are to be avoided
        trial.set_user_attr("diverged", str(error))
        raise optuna.TrialPruned from error
    except (Interrupted, KeyboardInterrupt):
        try_again(study, study.get_trials(deepcopy=False)[trial.number], crashed=False)
        raise Interrupted("the search was stopped; the same command goes on with it.") from None
    lines = _validations(folder)
    chosen = max(lines, key=lambda line: line["validation"]["score"]) if config.train.select == "best" else lines[-1]
    trial.set_user_attr("step", chosen["step"])
    trial.set_user_attr("validation", chosen["validation"])
    return chosen["validation"]["score"]


def _same(trial: optuna.Trial, known: FrozenTrial) -> float:
    """The result of an earlier trial of the same values: training it again would give the same."""
    trial.set_user_attr("same_as", known.user_attrs.get("same_as", known.number))
    for name in ("step", "validation", "diverged"):
        if name in known.user_attrs:
            trial.set_user_attr(name, known.user_attrs[name])
    for step, score in known.intermediate_values.items():
        trial.report(score, step)
    if known.value is None or known.state == TrialState.PRUNED:
        raise optuna.TrialPruned
    return known.value


def _try_orphans_again(study: optuna.Study) -> None:
    """Fails the trials of dead workers, and has them tried again.

    Those of this machine are known at once; Optuna's heartbeats tell of others, after a while and in databases only.
    """
    optuna.storages.fail_stale_trials(study)
    for trial in _having(study, TrialState.RUNNING):
        host, pid = trial.user_attrs.get("worker", (None, None))
        if host == socket.gethostname() and (pid == os.getpid() or not _alive(pid)):
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (UpdateFinishedTrialError, ValueError):
                continue  # another worker was faster
            try_again(study, trial)


def _alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # there, signal 0 is no question but Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _having(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=states)


def _best_so_far(study: optuna.Study) -> str:
    scores = [t.value for t in _having(study, TrialState.COMPLETE) if t.value is not None]
    return f"; best score {max(scores):.4f}" if scores else ""


def _write_best(study: optuna.Study, search: Search) -> None:
    best = Result(trials(study, search.space), {}).best
    if best is not None:
        write_json(search.folder / "best.json", to_dict(search.with_values(best.values)))


def _validations(folder: Path) -> list[dict[str, Any]]:
    return [line for line in run_folder.read_metrics(folder) if "validation" in line]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
