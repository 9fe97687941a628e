"""The references of the benchmarks compute what they are said to; a comparison becomes a row, a table and two files."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import ours
from benchmarks.__main__ import main
from benchmarks.comparisons import Comparison, Reference
from benchmarks.floors import Rates, Work, rates, work
from benchmarks.measure import Timing, once, side_by_side
from benchmarks.references.sines import Sines, sines
from benchmarks.speed import measure, table, write
from metavib.baselines import evidence
from metavib.objective import vib
from metavib.tasks.task import Examples, Task, examples
from metavib.training import build
from metavib.training.config import Config
from metavib.training.fields import override
from metavib.training.recipes import recipe

TINY = {"model.width": 4}


def linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def copy_weights(source: list[nn.Module], target: list[nn.Module]) -> None:
    with torch.no_grad():
        for mine, theirs in zip(source, target, strict=True):
            theirs.weight.copy_(mine.weight)
            theirs.bias.zero_() if mine.bias is None else theirs.bias.copy_(mine.bias)


def as_tasks(drawn: Sines) -> Task:
    return Task(examples(drawn.x_t, drawn.y_t.squeeze(-1)), examples(drawn.x_v, drawn.y_v.squeeze(-1)))


@pytest.mark.parametrize(
    ("name", "package"), [("HigherMAML", "higher"), ("TorchOptMAML", "torchopt"), ("VmapMAML", "")]
)
def test_references_of_maml_have_the_librarys_meta_gradient(name: str, package: str) -> None:
    """All of second order: error and gradient are those of our bound, minus log N(y | f, 1/2) up to a constant."""
    if package:
        pytest.importorskip(package)
    from benchmarks.references import maml

    model = build.model(override(recipe("sinusoid", "maml"), {"model.inner_rate": 0.01}))
    headed = model.prior.network.body
    reference = getattr(maml, name)(tasks=3, inner_rate=0.01)
    copy_weights([*headed.backbone.layers, headed.head], linears(reference.network))
    drawn = sines(3, np.random.default_rng(0), shots=5, queries=7)
    loss = reference.backward(drawn)
    (-vib(model, as_tasks(drawn), beta=0.0).value.mean() / 7).backward()
    with torch.no_grad():  # log N(y | f, 1/2) = -(y - f)^2 - log(pi) / 2
        mine = -vib(model, as_tasks(drawn), beta=0.0).fit.mean() / 7 - 0.5 * np.log(np.pi)
    torch.testing.assert_close(loss, mine, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip([*headed.backbone.layers, headed.head], linears(reference.network), strict=True):
        torch.testing.assert_close(theirs.weight.grad, mine.weight.grad, rtol=1e-3, atol=1e-3)


def gp_loop(name: str, config: Config) -> tuple[nn.Module, "nn.Module"]:
    from benchmarks.references import gp_loop

    model, reference = build.model(config), getattr(gp_loop, name)(tasks=3)
    copy_weights(list(model.prior.network.body.layers), linears(reference.features))
    reference.gp.covar_module.variance = 1 / 40
    reference.likelihood.noise = float(model.likelihood.noise().detach())
    return model, reference


def test_the_reference_of_gp_vib_computes_the_same_bound() -> None:
    """GPyTorch's predictions and marginal likelihood make up our bound, and its gradient."""
    pytest.importorskip("gpytorch")
    model, reference = gp_loop("BoundLoop", recipe("sinusoid", "gp-vib"))
    drawn = sines(3, np.random.default_rng(0))
    loss, mine = reference.loss(drawn), -vib(model, as_tasks(drawn), beta=1.0).value.mean()
    torch.testing.assert_close(loss, mine, rtol=1e-4, atol=1e-4)
    loss.backward()
    mine.backward()
    for layer, theirs in zip(model.prior.network.body.layers, linears(reference.features), strict=True):
        torch.testing.assert_close(theirs.weight.grad, layer.weight.grad, rtol=1e-2, atol=1e-2)


def test_the_gp_loop_computes_the_marginal_likelihood() -> None:
    """A point's share of log N(y | 0, Z Z^T / 40 + noise), by a dense Gaussian."""
    pytest.importorskip("gpytorch")
    model, reference = gp_loop("EvidenceLoop", recipe("sinusoid", "gp-vib"))
    drawn = sines(3, np.random.default_rng(0))
    with torch.no_grad():
        z = reference.features(torch.cat([drawn.x_t, drawn.x_v], 1))
        y = torch.cat([drawn.y_t, drawn.y_v], 1).squeeze(-1)
        K = z @ z.mT / 40 + model.likelihood.noise() * torch.eye(20)
        dense = torch.distributions.MultivariateNormal(torch.zeros(20), K)
        torch.testing.assert_close(reference.loss(drawn), -dense.log_prob(y).mean() / 20, rtol=1e-4, atol=1e-4)


def episode(x: Tensor, shots: int) -> Task:
    """The reference's images `(ways, points, ...)` as our task, whose support are the first of each class."""
    ways = len(x)

    def part(images: Tensor) -> Examples:
        return examples(images.flatten(0, 1), torch.arange(ways).repeat_interleave(images.shape[1]))

    return Task(part(x[:, :shots]), part(x[:, shots:]))


def test_the_reference_of_dkt_computes_the_librarys_evidence() -> None:
    """The same weights give the same loss: GPyTorch's mean over classes and points of the evidence of all classes."""
    pytest.importorskip("gpytorch")
    from benchmarks.references.dkt import DKT

    reference = DKT(ours.random_pictures(6, 5, 1, 20), size=16, ways=3, shots=1, queries=2, evaluates=True)
    config = override(recipe("omniglot-emnist", "dkt"), {"tasks.ways": 3, "tasks.size": 16})
    model = build.model(config).train()
    layers = model.prior.functions.network.body.layers
    copy_weights([layer.conv for layer in layers], [m for m in reference.network if isinstance(m, nn.Conv2d)])
    x = reference.episode()
    torch.testing.assert_close(
        reference.loss(x), -evidence(model, episode(x, 1)).value / (3 * 3 * 3), rtol=1e-3, atol=1e-3
    )
    before = reference.network[0].weight.clone()
    assert torch.isfinite(reference.step())
    assert not torch.equal(before, reference.network[0].weight)
    assert all(0 <= accuracy <= 1 for accuracy in reference.accuracy)


@pytest.mark.parametrize("name", ["EvidenceLoop", "BoundLoop"])
def test_a_step_of_the_gp_loops_moves_the_network(name: str) -> None:
    pytest.importorskip("gpytorch")
    from benchmarks.references import gp_loop

    reference = getattr(gp_loop, name)(tasks=2)
    before = reference.features[0].weight.clone()
    assert torch.isfinite(reference.step())
    assert not torch.equal(before, reference.features[0].weight)


def test_our_step_is_a_training_step() -> None:
    """Without a GPU the timed step is the plain one: the same bounds from the same seeds, and the weights move."""
    small = {"tasks.queries": 2, "tasks.ways": 3, "train.steps": 3, **TINY}  # too few steps to compile for
    config = override(recipe("omniglot-emnist", "gp-vib", shots=1), small)
    world = ours.world_of(config, ours.random_pictures(6, 4, 1, 32))
    fast, (plain, model) = ours.our_step(config, world), ours.plain_step(config, world)
    before = [p.clone() for p in model.parameters()]
    for _ in range(3):
        torch.testing.assert_close(fast()[2], plain()[2], rtol=1e-4, atol=1e-4)
    assert any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_ours_in_use_and_at_test() -> None:
    """What is timed as use and as test predicts the query, and tests as many episodes as asked for."""
    config = override(recipe("omniglot-emnist", "gp-vib", shots=1), {"test.queries": 2, "tasks.queries": 3, **TINY})
    pictures = ours.random_pictures(6, 4, 1, 32)
    assert len(ours.our_use(config, ours.world_of(config, pictures))().probabilities) == 5 * 3
    rows = ours.our_test(config, pictures, episodes=4)()["rows"]
    assert rows[0]["episodes"] == 4


def test_work_counts_operations_and_bytes() -> None:
    """A linear layer and its gradient: 2 n a b operations, twice; its outputs five times and its weights ten."""
    from metavib.networks.layers import Linear

    layer, x = Linear(3, 4), torch.randn(7, 3)
    done = work(lambda: layer(x).sum().backward(), layer, "float32")
    assert done.operations == 2 * (2 * 7 * 3 * 4)
    assert done.bytes == 5 * 4 * (7 * 4) + 10 * 4 * (3 * 4 + 4)
    assert done.seconds(Rates(1.0, 1e9)) == done.operations
    assert done.limit(Rates(1.0, 1e9)) == "operations"


def test_rates_of_this_machine_are_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.floors.timing", lambda call, **_: (call(), Timing(1.0, 1.0, 1.0))[1])
    assert rates("cpu", "float32") == Rates(2 * 1536**3, 2 * 2**27)


def test_calls_are_timed_in_turns() -> None:
    order: list[str] = []
    found = side_by_side({name: partial(order.append, name) for name in "ab"}, seconds=0.0, warm_up=0, at_least=0.0)
    assert order == ["a", "b", "a", "b", "a", "b", "a", "b", "a", "b", "a", "b"]
    assert all(t.fastest <= t.median <= t.slowest for t in found.values())


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Three comparisons whose times are given."""
    times = {"": Timing(0.002, 0.001, 0.003), "slow": Timing(0.05, 0.04, 0.06), "fast": Timing(0.001, 0.001, 0.001)}
    monkeypatch.setattr("benchmarks.speed.side_by_side", lambda calls, **_: {name: times[name] for name in calls})
    monkeypatch.setattr("benchmarks.speed.rates", lambda *_: Rates(1e9, 1e9))
    monkeypatch.setattr("benchmarks.speed.torch.set_num_threads", lambda _: None)

    def missing() -> None:
        raise ModuleNotFoundError("no such package")

    nothing = partial(dict)
    references = (
        Reference("slow", lambda: nothing, target=20.0),
        Reference("fast", lambda: nothing, target=2.0),
        Reference("absent", missing, target=3.0),
    )
    found = [
        Comparison("step", lambda: nothing, references, work=lambda: Work(10**6, 10**5)),
        Comparison("use", lambda: nothing, target=1.0, units=4),
        Comparison("import", lambda: nothing, target=1000.0, clock=lambda _: Timing(2.0, 2.0, 2.0)),
    ]
    so_far = list(measure(found, "cpu", "float32", seconds=0.0, tell=lambda _: None))
    assert [len(each["rows"]) for each in so_far] == [3, 4, 5]  # what was measured is there before the next begins
    return so_far[-1]


def test_rows_say_ratio_target_and_floor(result: dict) -> None:
    """Times in milliseconds, the ratio theirs over ours, targets met or missed, the floor the larger of two times."""
    slow, fast, absent, use, imported = result["rows"]
    assert slow["ratio"] == pytest.approx(25.0) and slow["met"] is True
    assert fast["ratio"] == pytest.approx(0.5) and fast["met"] is False
    assert absent["theirs"] is None and absent["met"] is None and "not installed" in absent["reference"]
    assert slow["floor"] == pytest.approx(1.0) and slow["limit"] == "operations" and slow["to_floor"] == 2.0
    assert use["ours"] == pytest.approx(0.5) and use["met"] is True
    assert imported["ours"] == pytest.approx(2000.0) and imported["met"] is False


def test_results_are_a_table_and_two_files(result: dict, tmp_path: Path) -> None:
    paths = write(result, tmp_path)
    assert [p.name for p in paths] == ["speed-cpu.json", "speed-cpu.md"]
    assert json.loads(paths[0].read_text())["rows"][0]["reference"] == "slow"
    assert table(result) in paths[1].read_text()
    lines = table(result).splitlines()
    assert len(lines) == 2 + len(result["rows"]) and len({line.count("|") for line in lines}) == 1
    assert "25.0×" in lines[2] and "met" in lines[2] and "missed" in lines[3]


def test_what_is_not_measured_cannot_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no such line"])
    assert "nothing that is measured has 'no such line' in its name" in capsys.readouterr().err


def test_a_long_call_is_made_once() -> None:
    calls: list[int] = []
    assert once(lambda: calls.append(1)).median >= 0 and calls == [1]


def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert "use --device cpu" in capsys.readouterr().err


def test_results_on_pictures_are_updated_row_by_row():
    """A row that was measured again takes the place of the old one; the others are marked and named."""
    from benchmarks import images

    row = {"method": "gp-vib", "shots": 1, "accuracy": 0.5, "nll": 1.0, "ece": 0.1, "seconds": None}
    known = {"shared": True, "rows": [{"data": data, **row} for data in ("glyphs", "digits")]}
    result = {"minutes": 1.0, "machine": "a machine", "shared": False, "rows": [{"data": "digits", **row, "ece": 0.01}]}
    found = images.updated(known, result)
    assert [(r["data"], r["ece"], r.get("before")) for r in found["rows"]] == [
        ("glyphs", 0.1, True),
        ("digits", 0.01, None),
    ]
    assert "not again: gp-vib on glyphs." in images.table(found)
    assert found["shared"] and not images.updated({**known, "rows": []}, result)["shared"]


def test_temperatures_of_two_kinds_are_learned_from_what_tells_them_apart():
    """Logits that are twice too large of one kind and right of the other, which differ in one of three features."""
    from benchmarks.temperatures import OnKind, fit

    generator = torch.Generator().manual_seed(0)

    def kind(too_large: float, place: float) -> OnKind:
        logits = 2 * torch.randn(300, 20, 3, generator=generator, dtype=torch.float64)
        y = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).reshape(300, 20)
        phi = torch.randn(300, 20, 3, generator=generator, dtype=torch.float64)
        phi[..., 0] = place + 0.1 * phi[..., 0]
        return OnKind((too_large * logits).softmax(-1), y, phi)

    kinds = [kind(1.7, 0.0), kind(0.8, 1.0)]
    found = fit({1: kinds})
    warmths = [found.at(1) * float(found.factor(on.phi).mean()) for on in kinds]
    assert warmths == pytest.approx([1.7, 0.8], rel=0.1)


def test_what_embeddings_are_compared_with_is_right_where_classes_are_far_apart():
    """Every method on the same tasks; better than one in five, and less sure of classes that lie closer."""
    from benchmarks import embeddings

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 16)
    for distance, least in ((6.0, 0.95), (1.0, 0.3)):
        x = rng.normal(size=(len(y), 8)) + distance * rng.normal(size=(12, 8))[y]
        tasks = list(embeddings.episodes(x, y, 2, 10, seed=0))
        for learn in (embeddings.logistic, embeddings.chosen_logistic, embeddings.centroids):
            found = embeddings.scores(learn(x, y, 2), tasks)
            assert found["accuracy"] > least and found["nll"] < np.log(5)
