"""Samples of a run's processes, machine and GPUs as flat figures, and what they come to over the run: least, mean, most.

A figure is a level (``rss``, ``gpu0_power``) or counts what has happened so far (``read``), whose least, mean and most are per second.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LEVELS = {
    "cpu": "cores",
    "rss": "bytes",
    "shared": "bytes",
    "processes": "processes",
    "host_cpu": "share",
    "host_memory": "bytes",
}
COUNTS = {"read": "bytes", "write": "bytes", "disk_read": "bytes", "disk_write": "bytes", "net_sent": "bytes", "net_received": "bytes"}
GPU_LEVELS = {"load": "share", "memory": "bytes", "power": "W", "temperature": "°C", "throttled": "share"}
_MIB = 1 << 20


def of_gpus(gpudata: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Figures ``gpu<index>_<name>`` of what ``Gpus.sample`` gives."""
    found: dict[str, float] = {}
    for index, gpu in gpudata.items():
        found[f"gpu{index}_memory"] = gpu["memory"][0] * _MIB
        found.update({f"gpu{index}_{key}": gpu[key] for key in ("load", "power", "temperature") if key in gpu})
        if "throttle" in gpu:
            found[f"gpu{index}_throttled"] = float(bool(gpu["throttle"]))
    return found


def units_of(name: str) -> str:
    """The units of a figure."""
    return {**LEVELS, **COUNTS}.get(name) or GPU_LEVELS[name.rpartition("_")[2]]


class Level:
    """Least, mean and most of a level."""

    def __init__(self) -> None:
        self.n, self._sum = 0, 0.0
        self._least, self._most = float("inf"), float("-inf")

    def add(self, at_ns: int, value: float) -> None:
        """A sample."""
        self.n += 1
        self._sum += value
        self._least, self._most = min(self._least, value), max(self._most, value)

    def figures(self, units: str) -> dict[str, Any]:
        """``{"min", "mean", "max", "units"}``."""
        return {"min": self._least, "mean": self._sum / self.n, "max": self._most, "units": units}


class Count:
    """Least, mean and most per second of what is counted, between its samples; and how much it was in all."""

    def __init__(self) -> None:
        self.n = -1
        self._rates = Level()
        self._first = self._last = (0, 0.0)

    def add(self, at_ns: int, value: float) -> None:
        """A sample."""
        self.n += 1
        if self.n == 0:
            self._first = self._last = at_ns, value
        elif at_ns > self._last[0]:
            self._rates.add(at_ns, (value - self._last[1]) / (at_ns - self._last[0]) * 1e9)
            self._last = at_ns, value

    def figures(self, units: str) -> dict[str, Any]:
        """``{"min", "mean", "max", "total", "units"}``, per second but for the total."""
        total, seconds = self._last[1] - self._first[1], (self._last[0] - self._first[0]) / 1e9
        return {**self._rates.figures(f"{units}/s"), "mean": total / seconds, "total": total}


class Figures:
    """What all samples of a run come to."""

    def __init__(self) -> None:
        self._known: dict[str, Level | Count] = {}

    def add(self, at_ns: int, figures: Mapping[str, float]) -> None:
        """A sample, taken at a time of ``perf_counter_ns``."""
        for name, value in figures.items():
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = Count() if name in COUNTS else Level()
            known.add(at_ns, value)

    def summary(self) -> dict[str, Any]:
        """By figure, ``{"min", "mean", "max", "units"}``."""
        return {name: known.figures(units_of(name)) for name, known in self._known.items() if known.n > 0}
