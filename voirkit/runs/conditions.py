"""Conditions on the values in a summary, for the option ``--require``.

Examples: ``train_rate>=500``, ``memory.peak<2GB``, ``duration<10min``. When two runs are compared,
also ``step_time<+3%``: the increase from the first run to the second, relative to the first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.options import size
from voirkit.phase_table import PHASES

_HOLDS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
_FORM = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*(>=|<=|==|!=|>|<)\s*(\S.*?)\s*")
_TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "us": 1e-6, "µs": 1e-6}

# Short names for values that are often used in conditions. Other values are named by the keys that
# lead to them in summary.json, joined by dots.
SHORT = {
    **{f"{p}_share": f"steps.phases.{p}.share" for p in PHASES},
    **{f"{r}_rate": f"rates.{r}_rate.value" for r in ("train", "loading", "compute", "eval")},
    "step_time": "steps.time_s.median",
    "steps": "steps.n",
    "loss": "loss.last",
    "duration": "duration_s",
    "overhead": "overhead.share",
    "memory": "memory.peak",
}


@dataclass(frozen=True)
class Condition:
    """A condition on one value in a summary."""

    text: str  # the condition as the user wrote it
    path: tuple[str, ...]  # the keys that lead to the value in the summary
    operator: str  # one of ``>= <= == != > <``
    # the number that the value is compared with: seconds, bytes, a share, or without a unit
    bound: float
    unit: str = ""  # the unit of the bound as the user wrote it
    # whether the bound limits the change of the value from a first run to a second one, as a share
    # of the first run's value
    relative: bool = False

    def holds(self, value: float) -> bool:
        """True if a value fulfils the condition."""
        return bool(_HOLDS[self.operator](value, self.bound))

    def failure(self, summary: dict[str, Any]) -> str | None:
        """Return a message that says why a summary does not fulfil the condition, with the value.
        None if the summary fulfils the condition."""
        value: Any = summary
        for depth, key in enumerate(self.path):
            there = _inside(value)
            if key not in there:
                return (
                    f"{self.text}: this run has no"
                    f" {'.'.join(self.path)}{_hint(self.text, key, there, depth)}"
                )
            value = there[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            where = ".".join(self.path)
            inside = [
                f"{where}.{name}"
                for name, inner in _inside(value).items()
                if isinstance(inner, (int, float))
            ]
            more = f"; it has {', '.join(inside[:6])}" if inside else ""
            return f"{self.text}: {where} is no number{more}"
        return (
            None if self.holds(value) else f"{self.text}: it is {_format_value(value, self.unit)}"
        )


def _inside(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else {}


def _hint(text: str, key: str, there: dict[str, Any], depth: int) -> str:
    # no suggestion for a key that comes from a short name, since the user did not type the key
    is_written = f".{key}" in text if depth else text.lstrip().startswith(key)
    near = did_you_mean(key, there if depth else [*SHORT, *there]) if is_written else ""
    return f". {near}" if near else ""


def _format_value(value: float, unit: str) -> str:
    """Return a value as text, in the unit of the bound that it is compared with."""
    if unit in _TIMES:
        return f"{value / _TIMES[unit]:.6g}{unit}"
    if unit == "%":
        return f"{value * 100:.6g}%"
    return f"{value / size('1' + unit):.6g}{unit}" if unit else f"{value:.6g}"


def read(text: str, summary_keys: set[str] | None, *, baseline: bool = False) -> Condition:
    """Parse the text of a condition.

    Args:
        text: A condition such as ``train_rate>=500``.
        summary_keys: The top-level keys of a summary; None if they are not all known, because a
            voirfile may add keys.
        baseline: Whether the run is compared with another one. Relative bounds need this.

    Raises:
        CommandLineError: The text is not a condition, names a value that no summary has, or uses a
            unit that does not fit the value.
    """
    where = f"--require {text!r}"
    match = _FORM.fullmatch(text)
    if match is None:
        raise CommandLineError(
            "this is no condition.",
            where=where,
            next="Write a figure, a comparison and a number: train_rate>=500",
        )
    name, operator, number = match.groups()
    path = tuple(SHORT.get(name, name).split("."))
    if summary_keys is not None and path[0] not in summary_keys:
        nearest = did_you_mean(name, [*SHORT, *summary_keys])
        raise CommandLineError(
            f"a summary has no {name!r}.",
            where=where,
            next=nearest or f"Such as: {', '.join(SHORT)}.",
        )
    try:
        bound, unit = _bound(number)
    except ValueError:
        hint = "With a unit if need be: 500, 0.2, 20%, 250ms, 10min, 1.5h, 500MB, 2GiB."
        raise CommandLineError(f"{number!r} is not a number.", where=where, next=hint) from None
    if unit == "%" and number[0] in "+-":
        if not baseline:
            hint = f"Beside another run: voirkit compare BASELINE RUN --require {text!r}"
            raise CommandLineError(
                f"{number} is more or less than a run had that is not given.",
                where=where,
                next=hint,
            )
        return Condition(text, path, operator, bound, unit, relative=True)
    measured = _measured_in(path)
    if unit and measured is not None and measured != _kind(unit):
        hint = f"Write: {name}{operator}{_EXAMPLES[measured]}"
        raise CommandLineError(f"{name} is not measured in {unit}.", where=where, next=hint)
    return Condition(text, path, operator, bound, unit)


_EXAMPLES = {"time": "250ms", "share": "20%", "bytes": "2GB", "": "500"}


def _measured_in(path: tuple[str, ...]) -> str | None:
    """Return the kind of unit of the value at a path: ``time``, ``share`` or ``bytes``. Empty for
    a number without a unit, None if the kind is not known."""
    if path[0] in ("rates", "loss") or path[-1] in ("n", "steps", "items"):
        return ""
    if path[0] == "memory":
        return "bytes"
    if path[-1] == "share":
        return "share"
    return "time" if any(key.endswith("_s") or key == "seconds" for key in path) else None


def _kind(unit: str) -> str:
    return "time" if unit in _TIMES else "share" if unit == "%" else "bytes"


def _bound(text: str) -> tuple[float, str]:
    """Parse a number with an optional unit.

    Returns:
        (number, unit as written). The number is converted to seconds or bytes, a percentage to a
        share.

    Raises:
        ValueError: The text is not a finite number, or the unit is unknown.
    """
    match = re.fullmatch(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ%]*)", text)
    if match is None:
        raise ValueError(text)
    number, unit = float(match[1]), match[2]
    if unit in _TIMES:
        number *= _TIMES[unit]
    elif unit == "%":
        number /= 100
    elif unit:
        number *= size("1" + unit)
    if not math.isfinite(number):
        raise ValueError(text)
    return number, unit
