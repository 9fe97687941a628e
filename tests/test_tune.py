"""Hyperparameter search: what is tried, what is learned from it, and what the program says of it."""

import json
import os
import sys

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

import program
from metavib.show import plots
from metavib.training import config, recipes, run_folder
from metavib.training import loop as train
from metavib.training.config import REGRESSION
from metavib.training.fields import override, to_dict
from metavib.training.protocols import regression
from metavib.tune import Choices, Interval, Result, Trial, paper, parse, tune, with_curve
from metavib.tune import search as searching
from metavib.tune.figure import figure
from searches import BASE, SPACE, a_search, faked, stored

# What the paper's longer version found for stochastic MAML and GP+MAML: outer rate, inner rate, beta.
TUNED = (
    (0.005, 1.5, 1e-7),
    (0.001, 1.5, 1e-6),
    (7.5e-4, 5e-4, 5e-4),
    (0.0025, 0.002, 1e-4),
    (0.001, 5e-4, 5e-5),
    (5e-4, 0.05, 1e-5),
    (0.01, 0.5, 1e-6),
    (0.005, 0.001, 2.5e-4),
)


# Ranges


@pytest.mark.parametrize("method", config.METHODS)
def test_the_papers_ranges_are_those_a_method_has_and_every_value_is_a_config(method) -> None:
    experiment = "sinusoid" if method in config.BOUND else "glyphs"
    base, space = recipes.recipe(experiment, method), paper(method)
    assert ("model.inner_rate" in space) == ("maml" in method)
    assert ("train.beta" in space) == (method in ("gp-vib", "gp-maml", "stochastic-maml"))
    for field, choices in space.items():
        assert choices.values == tuple(sorted(choices.values))
        for value in choices.values:
            assert searching.value_of(override(base, {field: value}), field) == value


def test_the_papers_ranges_are_the_papers() -> None:
    """Ends and sizes of the lists of the paper's longer version; every value its tables chose is among them."""
    space = paper("gp-maml")
    sizes = {field: (len(r.values), r.values[0], r.values[-1]) for field, r in space.items()}
    assert sizes == {"train.lr": (14, 1e-4, 0.1), "model.inner_rate": (14, 1e-4, 2.0), "train.beta": (16, 1e-7, 1.0)}
    for lr, inner, beta in TUNED:
        assert lr in space["train.lr"] and inner in space["model.inner_rate"] and beta in space["train.beta"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=1e-3,1e-4", Choices((1e-4, 1e-3))),
        ("train.lr = 1e-3 , 1e-3", Choices((1e-3,))),
        ("train.lr=1e-4..1", Interval(1e-4, 1.0)),
        ("train.tasks=1..16", Interval(1, 16)),
        ("train.scale_lr=none,0.1", Choices((None, 0.1))),
        ("model.kernel=rbf,linear", Choices(("rbf", "linear"))),
        ("model.bias=true,false", Choices((True, False))),
    ],
)
def test_ranges_are_read_with_the_types_of_their_fields(text, expected) -> None:
    field, found = parse(text, BASE)
    assert field == text.partition("=")[0].strip()
    assert found == expected and repr(found) == repr(expected)  # 1 and 1.0, True and 1 are equal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.lr", "FIELD=A,B,C or FIELD=LOW..HIGH"),
        ("=1,2", "FIELD=A,B,C or FIELD=LOW..HIGH"),
        ("train.rl=1,2", "unknown option 'train.rl'"),
        ("train.lr=1..0.1", "LOW below HIGH"),
        ("train.lr=fast,slow", "expected float; got 'fast'"),
        ("train.lr=-1,1", "train.lr must be positive"),
        ("model.kernel=linear..rbf", "expected two numbers"),
        ("model.widths=40,80", "only fields that hold one value"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(text, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text, BASE)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8, unique=True))
def test_what_a_study_stores_is_the_value(values) -> None:
    choices = Choices(tuple(sorted(values)))
    assert [choices.value(choices.stored(v)) for v in values] == values


def test_numbers_are_searched_in_their_order_and_names_as_names() -> None:
    trial = optuna.trial.FixedTrial({"a": 1, "b": "rbf"})
    assert Choices((0.1, 0.2)).suggest(trial, "a") == 0.2
    assert Choices(("rbf", "linear")).suggest(trial, "b") == "rbf"
    assert isinstance(trial.distributions["a"], optuna.distributions.IntDistribution)


# Searching


def test_the_best_config_reproduces_its_score_and_no_test_task_is_drawn(tmp_path, monkeypatch) -> None:
    """The score of a trial is that of a plain training with best.json, on validation tasks."""

    def refuse(*args, **kwargs):
        raise AssertionError("a search looked at test tasks")

    with monkeypatch.context() as patch:
        patch.setattr(regression.Regression, "evaluate", refuse)
        patch.setattr(regression.Regression, "test_tasks", refuse)
        result = tune(a_search(tmp_path), quiet=True)
    assert [t.state for t in result.trials] == ["complete"] * 3
    assert result.best.score == max(t.score for t in result.trials)
    best = config.read(tmp_path / "best.json")
    assert best == override(BASE, result.best.values)
    scores: list[float] = []
    train.train(best, tmp_path / "again", quiet=True, watch=lambda step, score: scores.append(score))
    assert scores[-1] == result.best.score == result.best.validation["score"]


def test_a_run_that_tests_its_best_model_is_judged_by_that(tmp_path, monkeypatch) -> None:
    faked(monkeypatch, lambda config, step: {4: 0.9}.get(step, 0.5))
    chosen = override(BASE, {"train.select": "best"})
    (trial,) = tune(a_search(tmp_path / "best", config=chosen, trials=1), quiet=True).trials
    assert (trial.score, trial.step) == (0.9, 4)
    (trial,) = tune(a_search(tmp_path / "last", trials=1), quiet=True).trials
    assert (trial.score, trial.step) == (0.5, 12)


def test_the_recipe_is_tried_first_where_the_ranges_have_it(tmp_path, monkeypatch) -> None:
    run = faked(monkeypatch, lambda config, step: 0.5)
    tune(a_search(tmp_path / "a", trials=1), quiet=True)
    assert run == [BASE]
    space = {"train.lr": Choices((5e-3, 1e-2))}
    tune(a_search(tmp_path / "b", trials=1, space=space), quiet=True)
    assert run[1].train.lr in (5e-3, 1e-2)


def test_a_search_finds_the_better_values(tmp_path, monkeypatch) -> None:
    """Of 14 learning rates the best or one beside it, in 20 trials."""
    faked(monkeypatch, lambda config, step: -abs(paper("maml")["train.lr"].stored(config.train.lr) - 8))
    result = tune(
        a_search(tmp_path, space={"train.lr": paper("maml")["train.lr"]}, storage=str(tmp_path / "log"), trials=20),
        quiet=True,
    )
    assert result.best.score >= -1


def test_trials_worse_than_most_are_pruned(tmp_path, monkeypatch) -> None:
    """Once five are complete, a trial below the median stops after the first fifth of its steps."""
    space = {"seed": Interval(0, 10**6)}
    run = faked(monkeypatch, lambda config, step: 0.8 if len(run) <= 5 else 0.1)
    result = tune(a_search(tmp_path, space=space, trials=8), quiet=True)
    assert [t.state for t in result.trials] == ["complete"] * 5 + ["pruned"] * 3
    assert {(t.step, t.score) for t in result.trials[5:]} == {(2, 0.1)}
    run.clear()
    whole = tune(a_search(tmp_path / "whole", space=space, trials=8, prune=False), quiet=True)
    assert [t.state for t in whole.trials] == ["complete"] * 8


def test_a_training_that_diverges_is_a_bad_trial_and_no_error(tmp_path) -> None:
    space = {"train.lr": Choices((1e-3, 1e30))}
    result = tune(a_search(tmp_path, space=space, trials=6), quiet=True)
    states = {t.values["train.lr"]: t.state for t in result.trials}
    assert states == {1e-3: "complete", 1e30: "diverged"}


def test_values_that_were_tried_before_are_not_trained_again(tmp_path, monkeypatch) -> None:
    run = faked(monkeypatch, lambda config, step: config.train.lr)
    result = tune(a_search(tmp_path, space={"train.lr": Choices((1e-3, 1e-2))}, trials=8), quiet=True)
    assert len(run) == 2 and len(result.trials) == 8
    originals = {t.number: t for t in result.trials if t.same_as is None}
    for trial in result.trials:
        original = originals[trial.number if trial.same_as is None else trial.same_as]
        assert (trial.values, trial.score, trial.validation) == (original.values, original.score, original.validation)


def test_an_error_of_ones_own_ends_the_search(tmp_path, monkeypatch) -> None:
    def fail(config):
        raise ValueError("no such thing")

    faked(monkeypatch, lambda config, step: 0.5, ended=fail)
    with pytest.raises(ValueError, match="no such thing"):
        tune(a_search(tmp_path), quiet=True)
    assert [t.state for t in stored(a_search(tmp_path))] == [TrialState.FAIL]


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"space": {}}, "nothing to search"),
        ({"config": override(BASE, {"train.validate_every": 0})}, "validate_every above 0"),
    ],
)
def test_a_search_that_cannot_be_is_refused(tmp_path, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        a_search(tmp_path, **changes)


# What mattered


def made(states: list[tuple[str, float, float, float | None]]) -> Result:
    """A result from states, learning rates, betas and scores."""
    trials = [
        Trial(
            i,
            state,
            {"train.lr": lr, "train.beta": beta},
            score,
            10,
            {"mse": -score} if state == "complete" else {},
            None,
        )
        for i, (state, lr, beta, score) in enumerate(states)
    ]
    return Result(trials, {"train.lr": 0.9, "train.beta": 0.1})


def test_the_field_that_decides_the_score_is_the_important_one(tmp_path, monkeypatch) -> None:
    faked(monkeypatch, lambda config, step: config.train.lr)
    search = a_search(
        tmp_path,
        space={"train.lr": Interval(1e-4, 0.1), "train.beta": Interval(1e-3, 1.0)},
        trials=20,
        storage=str(tmp_path / "log"),
    )
    found = tune(search, quiet=True).importances
    assert sum(found.values()) == pytest.approx(1) and found["train.lr"] > 0.6
    assert tune(a_search(tmp_path / "few", trials=3), quiet=True).importances == {}


def test_the_figure_has_a_panel_a_field_and_shows_every_trial(tmp_path) -> None:
    result = made(
        [
            ("complete", 1e-3, 0.1, -0.01),
            ("complete", 1e-2, 0.2, -0.1),
            ("pruned", 1e-4, 0.3, -2.0),
            ("diverged", 1e-2, 1.0, None),
        ]
    )
    assert result.metric == ("mse", -1)
    drawn = figure(result, SPACE, "a search")
    bars, lr, beta = drawn.axes
    assert [t.get_text() for t in bars.get_yticklabels()] == ["train.beta", "train.lr"]
    assert (lr.get_xlabel(), lr.get_xscale(), lr.get_yscale()) == ("train.lr", "log", "log")
    points = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in beta.lines}
    assert points == {
        "complete": [(0.1, 0.01), (0.2, 0.1)],
        "pruned, where it stopped": [(0.3, 2.0)],
        "best": [(0.1, 0.01)],
        "diverged": [(1.0, 0.02)],
    }
    plots.save(drawn, tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 1000


def test_a_search_in_which_nothing_was_completed_is_drawn_too(tmp_path) -> None:
    result = Result([Trial(0, "diverged", {"train.lr": 1.0, "model.kernel": "rbf"}, None, None, {}, None)], {})
    drawn = figure(result, {"train.lr": Interval(0.1, 1.0), "model.kernel": Choices(("rbf", "linear"))}, "none")
    plots.save(drawn, tmp_path / "search.png")
    assert result.best is None and result.metric == ("score", 1)
    assert len(drawn.axes) == 3


# The hook in training


def test_a_watcher_is_told_every_validation_and_may_end_the_training(tmp_path) -> None:
    seen = []
    train.train(BASE, tmp_path / "a", quiet=True, watch=lambda *told: seen.append(told))
    lines = [line for line in run_folder.read_metrics(tmp_path / "a") if "validation" in line]
    assert seen == [(line["step"], line["validation"]["score"]) for line in lines]

    def end(step, score):
        raise LookupError

    with pytest.raises(LookupError):
        train.train(BASE, tmp_path / "b", quiet=True, watch=end)
    assert run_folder.read_metrics(tmp_path / "b")[-1]["step"] == 2


def test_a_validation_that_is_no_number_is_reported_as_divergence(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(regression.Regression, "validate", lambda self, model: {"mse": float("inf"), "score": 0.0})
    with pytest.raises(FloatingPointError, match="validation became infinite or NaN by step 2"):
        train.train(BASE, tmp_path, quiet=True)


@pytest.mark.parametrize(("every", "steps", "expected"), [(5000, 60_000, 5000), (5000, 500, 50), (3, 4, 1)])
def test_there_are_enough_validations_to_prune_on(every, steps, expected) -> None:
    wanted = override(BASE, {"train.validate_every": every, "train.steps": steps})
    assert with_curve(wanted) == override(wanted, {"train.validate_every": expected})


# The program


@pytest.fixture
def metavib(monkeypatch, tmp_path):
    """The program in this process, in a folder of its own, on a tiny config."""
    (tmp_path / "tiny.json").write_text(json.dumps(to_dict(BASE)))
    monkeypatch.chdir(tmp_path)
    return program.metavib


TUNE = ("tune", "sinusoid", "--config", "tiny.json", "--quiet")


def test_the_command_prints_a_table_and_leaves_a_config_that_train_takes(metavib, monkeypatch) -> None:
    status, out, err = metavib(*TUNE, "--trials", 2)
    assert status == 0
    assert out.startswith("| trial | train.lr | train.beta | mse ") and len(out.splitlines()) == 4
    folder = "runs/tune-sinusoid-gp-vib-linear-5-shot"
    assert f"metavib train sinusoid --config {folder}/best.json" in err and "2 trials: 2 complete" in err
    assert sorted(os.listdir(folder)) == ["best.json", "search.png", "study.db", "trials"]
    status, out, _ = metavib("train", "sinusoid", "--config", f"{folder}/best.json", "--quiet", "--json")
    assert status == 0 and json.loads(out)["method"] == "gp-vib"


def test_the_command_speaks_json(metavib, monkeypatch) -> None:
    faked(monkeypatch, lambda config, step: config.train.lr)
    arguments = ("--trials", 5, "--range", "train.lr=1e-3,1e-2", "--range", "train.tasks=1..4", "--out", "o", "--json")
    status, out, err = metavib(*TUNE, *arguments, "--study", "s", "--storage", "s.log")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert (found["study"], found["config"], len(found["trials"])) == ("s", "o/best.json", 5)
    assert found["trials"][0]["number"] == found["best"] and set(found["importances"]) <= {"train.lr", "train.tasks"}
    assert {t["values"]["train.lr"] for t in found["trials"]} <= {1e-3, 1e-2}


def test_what_is_set_is_not_searched(metavib, monkeypatch) -> None:
    run = faked(monkeypatch, lambda config, step: config.train.lr)
    assert metavib(*TUNE, "--trials", 3, "--set", "train.beta=0.25")[0] == 0
    assert {c.train.beta for c in run} == {0.25}
    status, _, err = metavib(*TUNE, "--set", "train.lr=1", "--range", "train.lr=1,2")
    assert status == 2 and "train.lr is both set and searched" in err


def test_without_optuna_the_program_says_what_to_install(metavib, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("optuna", "metavib.tune"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    status, _, err = metavib(*TUNE)
    assert status == 2 and "pip install metavib[tune]" in err
    assert metavib("train", "--help")[0] == 0


def test_every_regression_of_the_library_can_be_searched(tmp_path) -> None:
    """The score is a metric that the figure can name, on sinusoids and on tasks of a known process."""
    for name in REGRESSION:
        base = override(BASE, {"tasks.name": name})
        result = tune(a_search(tmp_path / name, config=base, trials=1), quiet=True)
        assert result.metric == ("mse", -1)
