"""The training loop: it learns, it leaves what it promises, it stops before it spoils, it picks the best."""

import json
from dataclasses import replace

import pytest
import torch

import tiny
from metavib.files import read_tensors
from metavib.networks import repeats
from metavib.random import seeded
from metavib.tasks.sinusoid import Sinusoids
from metavib.training import build, checkpoint, run_folder
from metavib.training import loop as train
from metavib.training.config import Config, read
from metavib.training.fields import from_dict
from metavib.training.protocols import experiment, seen
from worlds import Around

# A rate at which a few hundred steps suffice.
HASTY = {"train__steps": 250, "train__lr": 5e-3, "train__tasks": 5, "model__widths": [40, 40], "tasks__shots": 10}
HASTY |= {"train__validate_every": 250, "train__validation_tasks": 100, "train__save_every": 250}


@pytest.mark.parametrize("method", tiny.REGRESSORS)
def test_every_method_learns(tmp_path, method):
    """After a few hundred steps the error is well below that of predicting zero, and below that of no training."""
    config = tiny.sinusoid(method, **HASTY)
    train.train(config, tmp_path / "run", quiet=True)
    found = run_folder.read_metrics(tmp_path / "run")[-1]["validation"]["mse"]
    y = Sinusoids(shots=10, queries=100).sample((500,), seeded(7)).query.y
    assert found < 0.8 * float(y.square().mean())
    assert found < 0.9 * experiment(config).validate(build.model(config))["mse"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("train") / "run"
    train.train(tiny.sinusoid(), folder, quiet=True)
    return folder


def test_a_run_folder_holds_what_the_docstring_says(folder):
    """All but the final test, which is not the loop's business; every file is of its own kind, and nothing is left."""
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}
    assert names < {word for word in run_folder.__doc__.split() if "." in word}
    config = from_dict(Config, json.loads((folder / "config.json").read_text()))
    assert config == tiny.sinusoid()
    last, best = checkpoint.load(folder / run_folder.LAST), checkpoint.load(folder / run_folder.BEST)
    assert last.config == best.config == config and last.step == config.train.steps
    assert last.part("optimiser") and last.part("streams") and not best.part("optimiser")


def test_metrics_are_strict_json_lines_at_the_steps_promised(folder):
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 5, 6, 8, 10, 12]  # every 2, at validations, and the last
    assert [line["step"] for line in lines if "validation" in line] == [5, 10, 12]
    for line in lines:
        assert line["value"] == pytest.approx(line["fit"] - line["rate"], rel=1e-4)
        assert line["seconds"] >= 0


def test_the_infinite_kl_of_a_dirac_is_no_number_in_the_metrics(tmp_path):
    train.train(tiny.sinusoid("maml"), tmp_path / "run", quiet=True)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "Infinity" not in text and all(line["rate"] is None for line in run_folder.read_metrics(tmp_path / "run"))


def test_a_first_step_is_adams_on_the_bound_of_the_first_tasks(tmp_path):
    """The loop against itself written out."""
    config = tiny.sinusoid(train__steps=1, train__schedule="cosine")
    trained = train.train(config, tmp_path / "run", quiet=True)
    model = build.model(config)
    tasks = Sinusoids(shots=5, queries=5).sample((2,), seeded(config.seed, train.TRAIN, 0))
    optimiser = torch.optim.Adam(model.parameters(), lr=config.train.lr, fused=True)
    (-build.objective(config)(model, tasks, beta=config.train.beta).value.mean()).backward()
    optimiser.step()
    assert tiny.same_tensors(trained.state_dict(), model.state_dict())


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_schedule_sets_the_rate_of_every_group(tmp_path, monkeypatch, schedule):
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: (rates.append([g["lr"] for g in self.param_groups]), step(self))[1]
    )
    config = tiny.sinusoid(
        train__steps=4, train__schedule=schedule, model__learn_scale=True, train__lr=0.01, train__scale_lr=0.001
    )
    train.train(config, tmp_path / "run", quiet=True)
    factors = [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2] if schedule == "cosine" else [1] * 4
    assert [sorted(r) for r in rates] == [pytest.approx([0.001 * f, 0.01 * f]) for f in factors]


def test_rates_reach_the_parameters_they_are_meant_for():
    config = tiny.sinusoid(
        model__sites="full",
        model__kernel="rbf",
        model__learn_scale=True,
        train__lr=0.1,
        train__scale_lr=0.01,
        train__site_lr=0.001,
    )
    model = build.model(config)
    names = {p: name for name, p in model.named_parameters()}
    groups = {g["lr"]: {names[p] for p in g["params"]} for g in train.adam(model, config).param_groups}
    assert groups[0.01] == {"prior.kernel.log_scale"}
    assert groups[0.001] == {n for n in names.values() if n.startswith("encoder.")} and groups[0.001]
    assert groups[0.1] == set(names.values()) - groups[0.01] - groups[0.001]
    assert any(n.startswith("likelihood.") for n in groups[0.1])


def test_frozen_parameters_are_not_given_to_adam_and_do_not_move(tmp_path):
    config = tiny.sinusoid("maml")  # its noise is fixed
    model = build.model(config)
    fixed = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert fixed
    given = sum(len(g["params"]) for g in train.adam(model, config).param_groups)
    assert given == len(list(model.parameters())) - len(fixed)
    trained = train.train(config, tmp_path / "run", quiet=True).state_dict()
    assert all(torch.equal(trained[name], model.state_dict()[name]) for name in fixed)


def test_without_own_rates_there_is_one_group():
    model = build.model(tiny.sinusoid())
    assert len(train.adam(model, tiny.sinusoid()).param_groups) == 1


def test_a_run_is_not_overwritten(folder):
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with pytest.raises(FileExistsError, match=r"holds a run already; pass --resume"):
        train.train(tiny.sinusoid(), folder, quiet=True)
    with pytest.raises(ValueError, match=r"another config; resume it without changing options"):
        train.train(tiny.sinusoid(train__lr=0.5), folder, resume=True, quiet=True)
    assert before == {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path, resume):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no run; name a new folder"):
        train.train(tiny.sinusoid(), tmp_path, resume=resume, quiet=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_will_do(tmp_path):
    train.train(tiny.sinusoid(train__steps=1), tmp_path, quiet=True)
    assert (tmp_path / run_folder.LAST).exists()


def test_a_damaged_config_or_checkpoint_stops_a_resume_by_name(tmp_path):
    train.train(tiny.sinusoid(), tmp_path / "run", quiet=True)
    whole = (tmp_path / "run" / run_folder.LAST).read_bytes()
    (tmp_path / "run" / run_folder.LAST).write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"last\.safetensors is truncated"):
        train.train(tiny.sinusoid(), tmp_path / "run", resume=True, quiet=True)
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not a readable"):
        train.train(tiny.sinusoid(), tmp_path / "run", resume=True, quiet=True)


def test_a_checkpoint_of_another_run_stops_a_resume(tmp_path):
    """A last.safetensors that was copied in does not become part of this run."""
    for seed in (0, 1):
        train.train(tiny.sinusoid(seed=seed), tmp_path / f"{seed}", quiet=True)
    (tmp_path / "1" / run_folder.LAST).replace(tmp_path / "0" / run_folder.LAST)
    with pytest.raises(ValueError, match="is of a run with another config"):
        train.train(tiny.sinusoid(), tmp_path / "0", resume=True, quiet=True)


def test_weights_alone_are_not_resumed_from(tmp_path):
    train.train(tiny.sinusoid(), tmp_path / "run", quiet=True)
    (tmp_path / "run" / run_folder.BEST).replace(tmp_path / "run" / run_folder.LAST)
    with pytest.raises(ValueError, match="no whole training state"):
        train.train(tiny.sinusoid(), tmp_path / "run", resume=True, quiet=True)


def test_a_damaged_line_of_metrics_is_named_and_a_cut_last_one_forgiven(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert run_folder.read_metrics(tmp_path) == []
    path.write_text('{"step": 1}\n{"step": 2')
    assert run_folder.read_metrics(tmp_path) == [{"step": 1}]
    path.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        run_folder.read_metrics(tmp_path)


class Breaks:
    """The bound, until a step; from there on NaN."""

    def __init__(self, objective, step: int) -> None:
        self.objective, self.step, self.calls = objective, step, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        bound = self.objective(*args, **kwargs)
        return bound if self.calls < self.step else type(bound)(*(t * float("nan") for t in bound))


@pytest.mark.parametrize(("method", "log_every"), [("gp-vib", 1), ("maml", 1), ("maml", 100)])
def test_a_bound_that_breaks_stops_the_run_and_leaves_the_last_good_state(tmp_path, monkeypatch, method, log_every):
    """Whether it is seen at once, in the log, or only when the state would be saved."""
    changes = {"train__log_every": log_every, "train__validate_every": 0, "train__save_every": 4}
    config = tiny.sinusoid(method, **changes)
    with monkeypatch.context() as patch:
        objective = Breaks(build.objective(config), step=7)
        patch.setattr(build, "objective", lambda config: objective)
        with pytest.raises(FloatingPointError, match=r"NaN by step [78]; the last good state is in .*last"):
            train.train(config, tmp_path / "run", quiet=True)
    saved = checkpoint.load(tmp_path / "run" / run_folder.LAST)
    assert saved.step == 4 and all(t.isfinite().all() for t in saved.part("model").values())
    # Once the cause is gone, the run ends as if nothing had happened.
    train.train(config, tmp_path / "run", resume=True, quiet=True)
    train.train(config, tmp_path / "whole", quiet=True)
    assert tiny.same_state(tmp_path / "run" / run_folder.LAST, tmp_path / "whole" / run_folder.LAST)


def test_a_run_that_diverges_by_itself_is_told_what_to_do(tmp_path):
    config = tiny.sinusoid("maml", train__lr=1e18, train__steps=50, train__save_every=1000, train__log_every=1)
    with pytest.raises(FloatingPointError, match=r"nothing was saved yet\. Lower train\.lr"):
        train.train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / run_folder.LAST).exists()


class Scored(Around):
    """A world whose validation scores are given."""

    def __init__(self, inner, scores) -> None:
        super().__init__(inner)
        self.scores, self.seen = iter(scores), []

    def validate(self, model):
        self.seen.append({name: t.clone() for name, t in model.state_dict().items()})
        return {"score": next(self.scores)}


@pytest.mark.parametrize("scores", [[0.1, 0.9, 0.5, 0.9], [-3.0, -1.0, -2.0, -4.0], [0.5, 0.4, 0.3, 0.6]])
def test_the_model_selected_is_the_one_that_was_best_on_validation(tmp_path, monkeypatch, scores):
    """The first of equals, whatever came later; `last` takes the last all the same."""
    config = tiny.sinusoid(train__validate_every=3, train__select="best")
    world = Scored(experiment(config), scores)
    monkeypatch.setattr(train, "experiment", lambda config: world)
    model = train.train(config, tmp_path / "run", quiet=True)
    best = scores.index(max(scores))
    assert not model.training and tiny.same_tensors(model.state_dict(), world.seen[best])
    saved = checkpoint.load(tmp_path / "run" / run_folder.BEST)
    assert saved.best == max(scores) and saved.step == 3 * (best + 1)
    world.scores = iter(scores)
    last = train.train(replace(config, train=replace(config.train, select="last")), tmp_path / "last", quiet=True)
    assert tiny.same_tensors(last.state_dict(), world.seen[-1])


def test_validation_changes_nothing(tmp_path):
    """Training with validations gives the same weights as without, running averages of batch-norm included."""
    changes = {"model__kernel": "bn-cosine", "model__norm": "running"}
    often = train.train(tiny.sinusoid(train__validate_every=1, **changes), tmp_path / "a", quiet=True)
    never = train.train(tiny.sinusoid(train__validate_every=0, **changes), tmp_path / "b", quiet=True)
    assert list(often.buffers()) and tiny.same_tensors(often.state_dict(), never.state_dict())
    assert not (tmp_path / "b" / run_folder.BEST).exists()


def test_the_same_config_gives_the_same_run_and_another_seed_another(tmp_path):
    a, b, c = (
        train.train(tiny.sinusoid("stochastic-maml", seed=s), tmp_path / n, quiet=True).state_dict()
        for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    assert tiny.same_tensors(a, b) and not tiny.same_tensors(a, c)


def test_each_repeat_trains_on_its_own(tmp_path):
    """Other repeats beside it change nothing about one: gradients never cross."""
    config = tiny.sinusoid(repeats=3, precision="float64")
    start = build.model(config)
    trained = train.train(config, tmp_path / "run", quiet=True)
    stream = seeded(config.seed, train.TRAIN, 0)
    alone = [repeats.unstack(start, i) for i in range(3)]
    optimisers = [torch.optim.Adam(m.parameters(), lr=config.train.lr) for m in alone]
    for _ in range(config.train.steps):
        tasks = Sinusoids(shots=5, queries=5).sample((3, 2), stream).to(torch.float64)
        for i, (model, optimiser) in enumerate(zip(alone, optimisers, strict=True)):
            own = type(tasks)(*(type(side)(*(t[i] for t in side)) for side in tasks))
            optimiser.zero_grad()
            (-build.objective(config)(model, own, beta=1.0).value.mean()).backward()
            optimiser.step()
    for i in range(3):
        mine, theirs = repeats.unstack(trained, i).state_dict(), alone[i].state_dict()
        assert all(torch.allclose(mine[n], theirs[n], rtol=1e-9, atol=1e-12) for n in mine)


def test_a_run_can_be_made_longer_and_ends_as_if_it_had_always_been_so_long(tmp_path):
    short, long = (tiny.sinusoid(train__steps=steps) for steps in (4, 8))
    train.train(short, tmp_path / "run", quiet=True)
    train.train(long, tmp_path / "run", resume=True, quiet=True)
    train.train(long, tmp_path / "whole", quiet=True)
    (tensors, _), (others, _) = (read_tensors(tmp_path / name / run_folder.LAST) for name in ("run", "whole"))
    assert tiny.same_tensors(tensors, others)
    assert read(tmp_path / "run" / run_folder.CONFIG) == long


def test_nothing_but_a_larger_number_of_steps_may_change_on_resume(tmp_path):
    train.train(tiny.sinusoid(train__steps=4), tmp_path / "run", quiet=True)
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match=r"another config.* \(train.steps = 4 there and 3 here\)"):
        train.train(tiny.sinusoid(train__steps=3), tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(ValueError, match=r"\(seed = 0 there and 1 here, train.lr = 0.00075 there and 0.5 here\)"):
        train.train(tiny.sinusoid(train__steps=8, seed=1, train__lr=0.5), tmp_path / "run", resume=True, quiet=True)
    assert before == {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()}


def test_the_protocol_s_numbers_are_config_fields() -> None:
    """Crops, jitter and the length of fine-tuning reach what they configure."""
    tasks = replace(tiny.glyphs().tasks, augment=True, channels=3, jitter=0.1, crop=0.5)
    crop, colours, *_ = seen.training_transform(tasks).transforms
    assert crop.scale == (0.5, 1.0)
    assert (colours.brightness, colours.contrast, colours.saturation) == (0.1, 0.1, 0.1)
    transfer = tiny.glyphs("baseline++", model__head_epochs=7)
    assert build.at_test(build.model(transfer), transfer).encoder.sgd[:2] == (7, 4)
