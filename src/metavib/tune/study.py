"""A study as Optuna keeps it: how it is opened, what its trials were, what mattered in them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from metavib.tune.ranges import Space

HEARTBEAT, GRACE = 30, 120  # seconds between signs of life of a trial, and without one until it is given up
CRASHES = 3  # workers that may die over the same parameters before these are given up
ENOUGH = 10  # trials to say anything of importance
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Trial:
    """A trial of a study.

    Args:
        number: in the study.
        state: complete, pruned, diverged, failed, running or waiting.
        values: of the fields that are searched.
        score: on the validation tasks, the larger the better; of a trial that was stopped, its last.
        step: of the model that has it.
        validation: all metrics of that model, where the trial was completed.
        same_as: the earlier trial of the same values, where there is one: nothing was trained anew.

    Example:
        >>> from metavib.tune import Trial
        >>> trial = Trial(3, "complete", {"train.lr": 0.01}, -0.2, 50, {"mse": 0.2}, None)
        >>> trial.values, trial.score
        ({'train.lr': 0.01}, -0.2)
    """

    number: int
    state: str
    values: dict[str, Any]
    score: float | None
    step: int | None
    validation: dict[str, float]
    same_as: int | None


def storage(url: str) -> BaseStorage:
    """Where a study is kept.

    Args:
        url: of a database (`sqlite:///study.db`, `postgresql://...`, `mysql://...`) or of Redis (`redis://...`), or the
            path of a journal file, which may lie in a folder that several machines share.
    """
    with still():
        try:
            if url.startswith("redis"):
                return JournalStorage(JournalRedisBackend(url))
            if "://" not in url:
                Path(url).parent.mkdir(parents=True, exist_ok=True)
                return JournalStorage(JournalFileBackend(url))
            return RDBStorage(
                url, heartbeat_interval=HEARTBEAT, grace_period=GRACE, heartbeat_stale_trial_callback=try_again
            )
        except (SQLAlchemyError, ImportError) as error:
            raise ValueError(
                f"the storage {url.rpartition('@')[2]!r} could not be opened ({str(error).splitlines()[0]}); expected "
                "sqlite:///FILE, postgresql://..., mysql://... or redis://... (with its driver installed), or a file."
            ) from error


def try_again(study: optuna.Study, trial: FrozenTrial, *, crashed: bool = True) -> None:
    """Has the parameters of a trial that did not end tried again, in its own run folder."""
    crashes = trial.user_attrs.get("crashes", 0) + crashed
    if crashes <= CRASHES:
        study.enqueue_trial(trial.params, user_attrs={"folder": folder_number(trial), "crashes": crashes})


def folder_number(trial: FrozenTrial | optuna.Trial) -> int:
    """The number of a trial's run folder: its own, or that of the trial it tries again."""
    return trial.user_attrs.get("folder", trial.number)


def trials(study: optuna.Study, space: Space) -> list[Trial]:
    """All trials of a study, the best first."""
    return [_read(t, space) for t in _ranked(study)]


def importances(study: optuna.Study) -> dict[str, float]:
    """How much each field had to do with a trial being among the best, as shares of one; the largest first.

    PED-ANOVA on the ranks of the trials, pruned ones below all that were completed. Empty where it would say nothing:
    for a single field, or fewer than ten trials.

    References:
        Watanabe et al. (2023), PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces
        (arXiv:2304.10255).
    """
    judged = [t for t in _ranked(study) if t.state in FINISHED and "same_as" not in t.user_attrs]
    if len(judged) < ENOUGH or len(judged[0].params) < 2:
        return {}
    with still():
        ranking = optuna.create_study(direction="maximize")
        for place, t in enumerate(judged):
            ranking.add_trial(optuna.create_trial(params=t.params, distributions=t.distributions, value=-float(place)))
        best = min(0.5, max(0.1, 5 / len(judged)))  # the share of trials that are the best: five at least
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best)
        return optuna.importance.get_param_importances(ranking, evaluator=evaluator)


@contextmanager
def still() -> Iterator[None]:
    """Optuna without its log and its warnings of what is experimental in it; its errors as errors of ours."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    except (OptunaError, SQLAlchemyError) as error:
        raise RuntimeError(f"the study's storage failed: {str(error).splitlines()[0]}") from error
    finally:
        optuna.logging.set_verbosity(level)


def _ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Completed trials by score, then pruned ones by how far they came and by score, then the others."""

    def rank(t: FrozenTrial) -> tuple[float, ...]:
        if t.state == TrialState.COMPLETE:
            assert t.value is not None
            return (0, 0, -t.value, t.number)
        if t.state == TrialState.PRUNED and "diverged" not in t.user_attrs:
            step = t.last_step or 0
            return (1, -step, -t.intermediate_values.get(step, 0.0), t.number)
        return (2 if t.state == TrialState.PRUNED else 3, 0, 0, t.number)

    return sorted(study.get_trials(deepcopy=False), key=rank)


def _read(t: FrozenTrial, space: Space) -> Trial:
    states = {TrialState.COMPLETE: "complete", TrialState.FAIL: "failed", TrialState.PRUNED: "pruned"}
    state = "diverged" if "diverged" in t.user_attrs else states.get(t.state, t.state.name.lower())
    complete = t.state == TrialState.COMPLETE
    score = t.value if complete else None if t.last_step is None else t.intermediate_values[t.last_step]
    return Trial(
        number=t.number,
        state=state,
        values={field: r.value(t.params[field]) for field, r in space.items() if field in t.params},
        score=score,
        step=t.user_attrs["step"] if complete else t.last_step,
        validation=t.user_attrs["validation"] if complete else {},
        same_as=t.user_attrs.get("same_as"),
    )
