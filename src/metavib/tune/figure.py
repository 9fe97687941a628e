"""What mattered in a search, to look at."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from metavib.show.plots import INK, MEAN, STYLE
from metavib.tune.ranges import Choices, Range, Space
from metavib.tune.search import Result
from metavib.tune.study import Trial

BAD = "#b03a2e"
NAMES = {"mse": "MSE", "nll": "NLL"}


def figure(result: Result, space: Space, title: str) -> Figure:
    """The importance of each field, and the score against each: completed trials, pruned and diverged ones.

    Args:
        result: of the search.
        space: what was searched.
        title: of the figure.
    """
    name, sign = result.metric
    shown = {field: r for field, r in space.items() if str(r) != str(_only(r))}
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(1.2 + 2.7 * (len(shown) + 1), 3.2))
        left, *panels = drawn.subplots(1, len(shown) + 1)
        _bars(left, result.importances)
        for ax, (field, r) in zip(panels, shown.items(), strict=True):
            _scatter(ax, result, field, sign)
            ax.set_xlabel(field)
            if _logarithmic(r):
                ax.set_xscale("log")
            if name == "mse":
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                ax.yaxis.set_minor_formatter(NullFormatter())
            ax.sharey(panels[0])
        if panels:
            panels[0].set_ylabel(f"validation {NAMES.get(name, name.replace('_', ' '))}")
            handles, labels = panels[0].get_legend_handles_labels()
            drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        drawn.suptitle(title, fontsize=11)
    return drawn


def _bars(ax: Axes, importances: dict[str, float]) -> None:
    ax.set_title("importance")
    if not importances:
        ax.text(
            0.5, 0.5, "too few trials\nor fields to say", ha="center", va="center", transform=ax.transAxes, color=INK
        )
        ax.axis("off")
        return
    fields = list(reversed(importances))
    ax.barh(fields, [importances[field] for field in fields], color=MEAN, height=0.4)
    ax.set(xlim=(0, 1), ylim=(-0.7, len(fields) - 0.3), xlabel="share")


def _scatter(ax: Axes, result: Result, field: str, sign: int) -> None:
    """Trials of a field's values; those without a score stand on the lower edge."""

    def points(kept: list[Trial]) -> tuple[list[Any], list[float]]:
        return [_position(t.values[field]) for t in kept], [sign * (t.score or 0.0) for t in kept]

    scored = [t for t in result.trials if t.score is not None and field in t.values]
    complete = [t for t in scored if t.state == "complete"]
    pruned = [t for t in scored if t.state == "pruned"]
    diverged = [_position(t.values[field]) for t in result.trials if t.state == "diverged" and field in t.values]
    ax.plot(*points(pruned), "o", mfc="none", mec=MEAN, alpha=0.6, ms=5, label="pruned, where it stopped")
    ax.plot(*points(complete), "o", color=MEAN, ms=5, label="complete")
    ax.plot(*points(complete[:1]), "*", color=INK, ms=11, label="best")
    if diverged:
        ax.plot(
            diverged, [0.02] * len(diverged), "x", color=BAD, ms=5, transform=ax.get_xaxis_transform(), label="diverged"
        )


def _position(value: Any) -> Any:
    """Numbers by their size, everything else by its name."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _logarithmic(r: Range) -> bool:
    smallest = min((v for v in r.values if isinstance(v, int | float)), default=0) if isinstance(r, Choices) else r.low
    return smallest > 0 and not (isinstance(r, Choices) and not r.ordered)


def _only(r: Range) -> Any:
    """The value of a range that has but one."""
    return r.values[0] if isinstance(r, Choices) and len(r.values) == 1 else None
