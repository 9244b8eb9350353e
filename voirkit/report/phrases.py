"""What terminal, HTML and live view say in the same words: how a run ended, its wall time, uneven steps, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voirkit.report.figure import duration
from voirkit.runs.wall import evaluation_name

_LEAST = 0.005  # of the run's wall time: what is less is not shown


def exit_words(summary: Mapping[str, Any]) -> list[str]:
    """How the script ended, and how voirkit did where a check (``--verify``, ``--require``) has failed beside it."""
    code = summary.get("exit_code")
    own = summary.get("script_exit_code", code)
    if code is None:
        return []
    return [f"exit code {own}", *([f"a check failed: exit code {code}"] if own != code else [])]


def wall_line(wall: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None) -> str:
    """The parts of the wall time, the largest first, in one line: ``import 41% (1.6 s) · training 30% (1.2 s) · …``.

    Args:
        wall: Of a summary.
        evaluation: Of it too: it says what the part of that name is called.
    """
    names = {"evaluation": evaluation_name(evaluation)}
    shown = [(names.get(name, name), part) for name, part in wall["parts"].items() if part["share"] >= _LEAST or name == "training"]
    shown.sort(key=lambda item: -item[1]["total_s"])
    return " · ".join(f"{name} {part['share']:.0%} ({duration(part['total_s'])})" for name, part in shown)


def unlike_steps(steps: Mapping[str, Any]) -> str:
    """One line for a run whose ``steps`` have the flag ``unlike``."""
    mean, median = steps["mean_s"], steps["time_s"]["median"]
    rare = "a few steps take most of the time" if mean > median else "a few steps take hardly any time"
    return f"a step takes {duration(mean)} on average and {duration(median)} at the median: {rare}. The rates are items over time."


def following(advice: Mapping[str, Any]) -> str:
    """What to do, the figure that it rests on, and about what it saves; of one entry of ``advice`` in a summary."""
    win = advice.get("win")
    saves = "" if win is None else f", estimated saving: about {win:.0%} of the run"
    return f"{advice['do'].removesuffix('.')} ({advice['because']}{saves})"
