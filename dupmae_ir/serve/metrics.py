"""Counters, gauges and histograms in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[str, ...]


class Counter:
    """A number that grows, by labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, *labels: str, by: float = 1) -> None:
        """Add ``by``."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + by

    def lines(self) -> Iterable[str]:
        """The samples."""
        with self._lock:
            values = sorted(self._values.items())
        return [f"{self.name}{_braced(zip(self.labels, labels, strict=True))} {_number(v)}" for labels, v in values]


class Gauge:
    """Numbers that are read when they are asked for: labels -> value."""

    def __init__(
        self,
        name: str,
        help: str,
        read: Callable[[], Mapping[Labels, float]],
        labels: Sequence[str] = (),
        kind: str = "gauge",
    ) -> None:
        self.name, self.help, self.labels, self.read, self.kind = name, help, tuple(labels), read, kind

    def lines(self) -> Iterable[str]:
        """The samples."""
        values = sorted(self.read().items())
        return [f"{self.name}{_braced(zip(self.labels, labels, strict=True))} {_number(v)}" for labels, v in values]


class Histogram:
    """Observations counted by upper bounds, by labels."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.bounds, self.labels = name, help, tuple(bounds), tuple(labels)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self.bounds) + 1))
            counts[bisect.bisect_left(self.bounds, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value

    def lines(self) -> Iterable[str]:
        """The samples: cumulative counts, sum and count."""
        with self._lock:
            found = [(labels, list(counts), self._sums[labels]) for labels, counts in sorted(self._counts.items())]
        for labels, counts, total in found:
            named, seen = list(zip(self.labels, labels, strict=True)), 0
            for bound, count in zip([*map(_number, self.bounds), "+Inf"], counts, strict=True):
                seen += count
                yield f"{self.name}_bucket{_braced([*named, ('le', bound)])} {seen}"
            yield f"{self.name}_sum{_braced(named)} {_number(total)}"
            yield f"{self.name}_count{_braced(named)} {seen}"


Metric = Counter | Gauge | Histogram


def exposition(metrics: Iterable[Metric]) -> str:
    """All samples as Prometheus reads them."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
    return "\n".join(lines) + "\n"


def _braced(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def resident_bytes() -> float:
    """Memory of this process in RAM; 0 where /proc is absent."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return float(int(f.read().split()[1]) * 4096)
    except (OSError, ValueError, IndexError):
        return 0.0
