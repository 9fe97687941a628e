"""No step grows faster than the theory says: operations and bytes, counted."""

from math import inf

import pytest
import torch

from benchmarks.costs import counted, crossing, crossings, figure, main, measure, steepest, table
from benchmarks.curves import CURVES, FEATURES, Curve, Line, dual, gp_step, primal
from benchmarks.measure import cost, timing
from metavib.kernels import Linear
from metavib.posteriors import Dual, Primal, Sites, posterior

SLACK = 0.02  # of an exponent: a cost of the right power with a part that is taken away grows faster at first


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_no_step_grows_faster_than_the_theory_says(curve) -> None:
    """Between any two neighbouring sizes: operations, bytes written (which sees all else), and the peak of memory."""
    sizes = curve.sizes[:3] if curve.name == "inner steps" else curve.sizes  # more of the same
    for line in curve.lines:
        costs = counted(curve._replace(sizes=sizes, lines=(line,)))[line.name]
        flops, written, peak = zip(*costs, strict=True)
        assert steepest(sizes, flops) <= line.work + SLACK, line.name
        assert steepest(sizes, written) <= line.work + SLACK, line.name
        assert steepest(sizes, peak) <= line.memory + SLACK, line.name


def test_the_theory_is_not_too_generous() -> None:
    """At the largest sizes the dual form does grow with the cube of n, and the primal with that of M."""
    for i, name in ((0, "dual"), (1, "primal")):
        curve = CURVES[i]
        (line,) = (line for line in curve.lines if line.name == name)
        a, b = (cost(line.call(size)) for size in curve.sizes[-2:])
        assert b.flops / a.flops > 2**2.8
        assert b.peak / a.peak > 2**1.8


def test_a_stream_costs_the_same_however_long_it_was() -> None:
    """To the last operation and byte."""
    (curve,) = (curve for curve in CURVES if curve.name == "stream")
    for line, costs in counted(curve).items():
        assert len(set(costs)) == 1, line


@pytest.mark.parametrize("n", [FEATURES // 2, FEATURES, 2 * FEATURES])
def test_the_form_chosen_is_the_cheaper_one(n) -> None:
    """By operations and by memory, half and twice as many points as features; either will do where they are equal."""
    forms = {Dual: dual, Primal: primal}
    costs = {kind: cost(gp_step(make, n=n, M=FEATURES)) for kind, make in forms.items()}
    sites = Sites(torch.zeros(n, 1), torch.ones(n))
    chosen = type(posterior(Linear(), torch.randn(n, FEATURES), torch.ones(n, dtype=torch.bool), sites))
    slack = 1.2 if n == FEATURES else 1.0
    for field in ("flops", "peak"):
        assert getattr(costs[chosen], field) <= slack * min(getattr(c, field) for c in costs.values()), field


def test_dual_and_primal_cross_near_n_equal_m() -> None:
    curve = CURVES[0]
    costs = counted(curve._replace(sizes=(32, 64, 128)))
    for field in ("flops", "peak"):
        dual, primal = ([getattr(c, field) for c in costs[name]] for name in ("dual", "primal"))
        found = crossing((32, 64, 128), dual, primal)
        assert found is not None and FEATURES / 1.5 < found < 1.5 * FEATURES


# The instruments ------------------------------------------------------------------------------------------------------


def test_operations_against_formulas() -> None:
    """A product of (a, b) and (b, c) takes 2abc, a Cholesky n^3/3, a triangular solve of c columns n^2 c."""
    A, B = torch.randn(30, 20), torch.randn(20, 7)
    assert cost(lambda: A @ B).flops == 2 * 30 * 20 * 7
    P = torch.eye(30)
    assert cost(lambda: torch.linalg.cholesky_ex(P)).flops == 30**3 // 3
    assert cost(lambda: torch.linalg.solve_triangular(P, A, upper=False)).flops == 30**2 * 20
    batch = P.expand(4, 30, 30).contiguous()
    assert cost(lambda: torch.linalg.cholesky_ex(batch)).flops == 4 * (30**3 // 3)


def test_steepest_and_crossing_by_hand() -> None:
    assert steepest([1, 2, 4], [3, 12, 24]) == pytest.approx(2.0)
    assert steepest([10, 100], [5, 5]) == 0.0
    assert crossing([1, 10, 100], [1, 10, 100], [10, 10, 10]) == pytest.approx(10.0)
    assert crossing([1, 4, 16], [1, 4, 16], [8, 8, 8]) == pytest.approx(8.0)
    assert crossing([1, 10], [1, 2], [5, 5]) is None


def test_a_median_lies_among_what_was_timed() -> None:
    calls = []
    found = timing(lambda: calls.append(1), repeats=5, warm_up=2, at_least=0.0)
    assert 0 < found.fastest <= found.median <= found.slowest < inf
    assert len(calls) == 2 + 1 + 5


def test_the_command_measures_prints_and_draws(tmp_path, capsys, monkeypatch) -> None:
    """On curves cut short: a table with a row a line, a JSON file and a figure with a panel for time and memory."""
    short = tuple(curve._replace(sizes=curve.sizes[:2]) for curve in CURVES[:5])
    monkeypatch.setattr("benchmarks.costs.CURVES", short)
    main(["--seconds", "0", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + sum(len(curve.lines) for curve in short)
    assert (tmp_path / "costs-cpu.json").stat().st_size > 1000
    assert (tmp_path / "costs-cpu.png").read_bytes().startswith(b"\x89PNG")
    main(["--seconds", "0", "--only", "tasks", "--out", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "support, features" in capsys.readouterr().err


def test_figure_and_table_of_one_curve() -> None:
    """Any set of curves is drawn; where dual and primal cross is said only if they were measured."""
    line = Line("zeros", lambda size: lambda: torch.zeros(1, size) @ torch.zeros(size, 1), work=1, memory=1)
    result = measure([Curve("zeros", "zeros", (10, 100), (line,))], seconds=0.0, tell=lambda name: None)
    assert result["curves"]["zeros"]["lines"]["zeros"]["peak"] == [80 + 4, 800 + 4]
    assert crossings(result) is None
    assert "^1" in table(result)
    visible = [ax for ax in figure(result).axes if ax.get_visible()]
    assert len(visible) == 2
