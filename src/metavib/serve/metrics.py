"""What a server counts, in the text that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import final

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
Labels = tuple[tuple[str, str], ...]


@final
class Metrics:
    """Counters, histograms and gauges that any thread may use.

    Example:
        >>> metrics = Metrics()
        >>> metrics.count("metavib_updates_total", "Updates.", model="sines")
        >>> print(metrics.text())
        # HELP metavib_updates_total Updates.
        # TYPE metavib_updates_total counter
        metavib_updates_total{model="sines"} 1
        <BLANKLINE>
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._about: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, _Histogram]] = defaultdict(dict)
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, about: str, by: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            self._about[name] = (about, "counter")
            self._counts[name][tuple(sorted(labels.items()))] += by

    def observe(self, name: str, about: str, value: float, bounds: tuple[float, ...] = SECONDS, **labels: str) -> None:
        """Adds a value to a histogram."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._about[name] = (about, "histogram")
            if key not in self._histograms[name]:
                self._histograms[name][key] = _Histogram(bounds)
            self._histograms[name][key].add(value)

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Names a value that is asked for when somebody looks."""
        self._about[name] = (about, "gauge")
        self._gauges[name] = value

    def text(self) -> str:
        """All of it."""
        gauges = {name: value() for name, value in self._gauges.items()}
        with self._lock:
            lines = []
            for name, (about, kind) in sorted(self._about.items()):
                lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{_braces(key)} {value:g}" for key, value in self._counts.get(name, {}).items()]
                for key, histogram in self._histograms.get(name, {}).items():
                    lines += histogram.lines(name, key)
                if name in gauges:
                    lines.append(f"{name} {gauges[name]:.17g}")
        return "\n".join(lines) + "\n"


@final
class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, key: Labels) -> list[str]:
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append(f"{name}_bucket{_braces((*key, ('le', bound)))} {so_far}")
        return [*found, f"{name}_sum{_braces(key)} {self.sum:.9g}", f"{name}_count{_braces(key)} {so_far}"]


def _braces(key: Labels) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in key) + "}" if key else ""
