"""Figures: what is drawn is what was computed, and the files are whole pictures."""

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from metavib.random import seeded
from metavib.show import plots
from metavib.tasks.task import Examples, Task
from metavib.training import build
from reproduction import figures


def metric(mean: float, **more) -> dict:
    return {"mean": mean, "ci95_over_tasks": 0.1, **more}


def lines(*, rate: float | None = 1.0, name: str = "mse") -> list[dict]:
    """A learning curve as training logs it."""
    found = [{"step": s, "seconds": 0.1 * s, "fit": -5.0 / s, "rate": rate, "value": -6.0 / s} for s in (1, 2, 3, 4)]
    found[3]["validation"] = {name: 0.5, "score": 0.5}
    return found


def drawn(ax) -> list[np.ndarray]:
    return [line.get_xydata() for line in ax.lines]


@pytest.mark.parametrize("method", tiny.REGRESSORS)
@pytest.mark.parametrize("repeats", [1, 2])
def test_predictions_are_those_of_the_model_on_nested_supports(method, repeats):
    """Six panels, K = 1, 2, 3, 4, 5, 7: the first K support points of one task, the truth, and the model's mean."""
    config = tiny.sinusoid(method, repeats=repeats)
    model = build.model(config)
    figure = plots.predictions(model, config, seed=3)
    panels = [ax for ax in figure.axes if ax.get_title().startswith("K = ")]
    assert [ax.get_title() for ax in panels] == [f"K = {k}" for k in (1, 2, 3, 4, 5, 7)]
    truth, _, points = drawn(panels[-1])
    for ax, k in zip(panels, (1, 2, 3, 4, 5, 7), strict=True):
        again, mean, support = drawn(ax)
        assert np.array_equal(again, truth) and np.array_equal(support, points[:k])
        assert np.all(np.diff(truth[:, 0]) > 0) and mean.shape == truth.shape
    # Truth and support lie on one sinusoid: y = a sin x + b cos x.
    every = np.concatenate([truth, points])
    basis = np.stack([np.sin(every[:, 0]), np.cos(every[:, 0])], 1)
    _, error, *_ = np.linalg.lstsq(basis, every[:, 1], rcond=None)
    assert error < 1e-6
    if method == "gp-vib" and repeats == 1:
        x, y = (torch.as_tensor(points[:, i], dtype=torch.float32) for i in (0, 1))
        grid = torch.as_tensor(truth[:, 0], dtype=torch.float32)
        support = Examples(x[:, None], y, torch.ones(7, dtype=torch.bool))
        query = Examples(grid[:, None], torch.zeros(len(grid)), torch.ones(len(grid), dtype=torch.bool))
        with torch.no_grad():
            mean, var = model.likelihood.predict(model(Task(support, query), seeded(0)))
        np.testing.assert_allclose(drawn(panels[-1])[1][:, 1], mean, atol=1e-4)
        band = panels[-1].collections[0].get_paths()[0].vertices[:, 1]
        high = float((mean + 2 * var.sqrt()).max())
        assert band.max() == pytest.approx(high, rel=1e-3)


def test_a_learning_curve_draws_every_line_and_the_validations():
    figure = plots.learning_curve(lines(), "gp-vib on sinusoid")
    left, middle, right = figure.axes
    assert np.array_equal(drawn(left)[0], [[s, -6.0 / s] for s in (1, 2, 3, 4)])
    assert len(drawn(middle)) == 2 and np.array_equal(drawn(middle)[1][:, 1], [1.0] * 4)
    assert np.array_equal(drawn(right)[0], [[4, 0.5]]) and "MSE" in right.get_title()


def test_a_dirac_has_no_rate_to_draw_and_accuracies_are_named():
    _, middle, right = plots.learning_curve(lines(rate=None, name="accuracy"), "maml on glyphs").axes
    assert len(drawn(middle)) == 1 and "accuracy" in right.get_title()


def test_error_against_beta_is_in_the_order_of_beta():
    def run(beta: float, mse: float) -> dict:
        rows = [{"shots": k, "metrics": {"mse": metric(mse * k, ci95_over_repeats=0.01)}} for k in (5, 10)]
        return {"config": {"train": {"beta": beta}, "tasks": {"name": "sinusoid"}}, "evaluation": {"rows": rows}}

    figure = figures.beta({"b": run(1.0, 0.1), "a": run(0.01, 0.3)})
    (ax,) = figure.axes
    assert np.allclose(drawn(ax)[0], [[0.01, 1.5], [1.0, 0.5]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["K = 5", "K = 10"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_written_whole_in_the_format_of_their_name(tmp_path, suffix):
    path = tmp_path / "sub" / f"figure.{suffix}"
    plots.save(plots.learning_curve(lines(), "title"), path)
    start = path.read_bytes()[:200]
    assert {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix] in start or suffix == "svg"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if suffix == "png":
        with Image.open(path) as image:
            assert np.asarray(image.convert("L")).std() > 5


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("a.png", "b.png"):
        plots.save(plots.learning_curve(lines(), "title"), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_drawing_changes_no_global_setting():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.learning_curve(lines(), "title")
    assert dict(matplotlib.rcParams) == before
