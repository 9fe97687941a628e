"""Workers of a hyperparameter search: they go on where others ended, share a study, and none loses anything."""

import subprocess
import sys
import time
import warnings
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from metavib.files import read_json
from metavib.training import loop as train
from metavib.training.fields import override
from metavib.tune import Choices, tune
from metavib.tune import search as searching
from metavib.tune import study as studies
from searches import BASE, SPACE, a_search, faked, stored


def asked(study: optuna.Study) -> tuple[optuna.Trial, dict]:
    """A trial that is under way, and its values."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Heartbeat of storage")  # Optuna: none beats outside Study.optimize
        trial = study.ask()
    return trial, {field: r.suggest(trial, field) for field, r in SPACE.items()}


@pytest.mark.parametrize("storage", [None, "shared.log"])
def test_a_study_goes_on_with_what_is_missing(tmp_path, monkeypatch, storage) -> None:
    """In a database and in a journal file; from another folder, as another machine has it."""
    run = faked(monkeypatch, lambda config, step: config.train.beta)
    url = storage and str(tmp_path / "journal" / storage)
    first = tune(a_search(tmp_path / "one", storage=url, trials=2), quiet=True)
    url = url or f"sqlite:///{tmp_path / 'one' / 'study.db'}"
    both = tune(a_search(tmp_path / "two", storage=url, trials=4, seed=1), quiet=True)
    assert len(run) == len(both.trials) == 4
    assert all(trial in both.trials for trial in first.trials)
    assert tune(a_search(tmp_path / "two", storage=url, trials=4), quiet=True) == both and len(run) == 4
    assert read_json(tmp_path / "two" / "best.json")["train"]["beta"] == max(c.train.beta for c in run)


def test_an_interrupted_trial_goes_on_from_its_checkpoint(tmp_path, monkeypatch) -> None:
    """The study ends as if nothing had happened, bit for bit, and the steps done before are not done again."""
    whole = tune(a_search(tmp_path / "whole", trials=1), quiet=True)
    real, steps = train.train, []

    def interrupted(config, folder, *, watch, **options):
        def stop(step, score):
            watch(step, score)
            if step == 6:
                raise train.Interrupted

        real(config, folder, watch=stop, **options)

    monkeypatch.setattr(searching.training, "train", interrupted)
    with pytest.raises(train.Interrupted, match="the same command goes on"):
        tune(a_search(tmp_path / "cut", trials=1), quiet=True)

    def watched(config, folder, *, watch, **options):
        real(config, folder, watch=lambda step, score: (steps.append(step), watch(step, score)), **options)

    monkeypatch.setattr(searching.training, "train", watched)
    result = tune(a_search(tmp_path / "cut", trials=1), quiet=True)
    assert [t.state for t in result.trials] == ["complete", "failed"]
    again = result.best
    assert (again.values, again.score, again.validation) == (
        whole.best.values,
        whole.best.score,
        whole.best.validation,
    )
    assert steps == [6, 8, 10, 12]  # the last checkpoint was at 4
    assert [p.name for p in (tmp_path / "cut" / "trials").iterdir()] == ["0000"]
    curves = [t.intermediate_values for t in stored(a_search(tmp_path / "cut"))]
    assert curves[1] == stored(a_search(tmp_path / "whole"))[0].intermediate_values


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(("host", "found"), [(searching.socket.gethostname(), True), ("elsewhere", False)])
def test_the_trial_of_a_killed_worker_is_failed_and_tried_again(tmp_path, monkeypatch, host, found) -> None:
    """At once on its own machine; on others a sign of life may still come."""
    run = faked(monkeypatch, lambda config, step: 0.5)
    search = a_search(tmp_path)
    with studies.still():
        killed, values = asked(searching.open_study(search))
        killed.set_user_attr("worker", [host, dead_process()])
    result = tune(search, quiet=True)
    assert (override(BASE, values) in run) == found
    states = sorted(t.state for t in result.trials)
    assert states == (["complete"] * 3 + ["failed"] if found else ["complete"] * 2 + ["running"])


def test_values_that_kill_every_worker_are_given_up(tmp_path) -> None:
    search = a_search(tmp_path)
    with studies.still():
        study = searching.open_study(search)
        for _ in range(studies.CRASHES + 1):
            trial, values = asked(study)
            study.tell(trial, state=TrialState.FAIL)
            studies.try_again(study, study.get_trials()[-1])
    trials = stored(search)
    assert [t.params for t in trials] == [trials[0].params] * (studies.CRASHES + 1)
    assert all(t.state == TrialState.FAIL for t in trials) and values["train.lr"] == BASE.train.lr


def test_a_silent_trial_of_another_machine_is_tried_again(tmp_path, monkeypatch) -> None:
    """Optuna's heartbeats tell: one older than the grace period makes the next worker take over."""
    run = faked(monkeypatch, lambda config, step: 0.5)
    monkeypatch.setattr(studies, "GRACE", 1)
    search = a_search(tmp_path, trials=1)
    with studies.still():
        study = searching.open_study(search)
        silent, values = asked(study)
        study._storage.record_heartbeat(silent._trial_id)
        engine = study._storage._backend.engine
        with engine.begin() as connection:
            connection.exec_driver_sql("update trial_heartbeats set heartbeat = '2020-01-01 00:00:00'")
    assert [t.state for t in tune(search, quiet=True).trials] == ["complete", "failed"]
    assert run == [override(BASE, values)]


def test_a_worker_that_was_taken_for_dead_leaves_its_trial_to_others(tmp_path, monkeypatch) -> None:
    search = a_search(tmp_path)
    taken = []

    def curve(config, step):
        if not taken:
            with studies.still():
                study = optuna.load_study(study_name="a", storage=studies.storage(search.url))
                study.tell(0, state=TrialState.FAIL)
            taken.append(config)
        return 0.5

    faked(monkeypatch, curve)
    states = [t.state for t in tune(search, quiet=True).trials]
    assert states == ["complete"] * 3 + ["failed"]


def test_several_processes_share_a_study(tmp_path, monkeypatch) -> None:
    """This process trains nothing before another has begun."""
    search, real = a_search(tmp_path, trials=4, seed=None), train.train

    def workers() -> set[int]:
        return {t.user_attrs["worker"][1] for t in stored(search) if "worker" in t.user_attrs}

    def patient(*args, **options):
        deadline = time.monotonic() + 120
        while len(workers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        return real(*args, **options)

    monkeypatch.setattr(searching.training, "train", patient)
    result = tune(search, jobs=2, quiet=True)
    complete = [t for t in result.trials if t.state == "complete"]
    assert 4 <= len(complete) <= 5  # two may start the last at the same time
    assert len(workers()) == 2
    with pytest.raises(ValueError, match="one worker repeatable"):
        tune(a_search(tmp_path, seed=0), jobs=2)


def test_a_worker_with_another_config_or_other_ranges_is_refused(tmp_path, monkeypatch) -> None:
    """What may differ between machines may differ."""
    faked(monkeypatch, lambda config, step: 0.5)
    tune(a_search(tmp_path, trials=1), quiet=True)
    with pytest.raises(ValueError, match=r"started with train.steps = 12, not 14: .* --study another name"):
        tune(a_search(tmp_path, config=override(BASE, {"train.steps": 14})))
    with pytest.raises(ValueError, match=r"the range of train.lr = 0.0001, 0.001, 0.01, not 0.0001"):
        tune(a_search(tmp_path, space=SPACE | {"train.lr": Choices((1e-4,))}))
    with pytest.raises(FileExistsError, match="trials of another study"):
        tune(a_search(tmp_path, study="b"))
    assert len(tune(a_search(tmp_path, config=replace(BASE, threads=2)), quiet=True).trials) == 3


def test_a_storage_that_cannot_be_opened_is_named_without_its_password() -> None:
    for url in ("nosuch://me:secret@host/db", "sqlite:////no/such/folder/study.db"):
        with pytest.raises(ValueError, match=r"could not be opened .*; expected sqlite:///FILE") as caught:
            studies.storage(url)
        assert "secret" not in str(caught.value)
