"""Conditions over the figures of a summary: ``train_rate>=500``, ``steps.phases.wait.share<0.2``. For ``--require``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from voirkit.errors import CommandLineError, did_you_mean

_HOLDS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
_FORM = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")

# Short names for the figures that people ask for; the rest go by their place in summary.json.
SHORT = {
    **{f"{p}_share": f"steps.phases.{p}.share" for p in ("wait", "transfer", "forward", "backward", "optimizer", "other")},
    **{f"{r}_rate": f"rates.{r}_rate.median" for r in ("train", "loading", "compute", "eval")},
    "step_time": "steps.time_s.median",
    "steps": "steps.n",
    "loss": "loss.last",
    "duration": "duration_s",
    "overhead": "overhead.share",
}


@dataclass(frozen=True)
class Condition:
    """One condition.

    Attributes:
        text: As the user wrote it.
        path: Where the figure stands in the summary, as keys.
        operator: One of ``>= <= == != > <``.
        bound: What it is compared with.
    """

    text: str
    path: tuple[str, ...]
    operator: str
    bound: float

    def failure(self, summary: dict[str, Any]) -> str | None:
        """Why a summary does not fulfil it, with the figure; None if it does."""
        value: Any = summary
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{self.text}: this run has no {'.'.join(self.path)}"
        return None if _HOLDS[self.operator](value, self.bound) else f"{self.text}: it is {value:.6g}"


def read(text: str, known: set[str]) -> Condition:
    """A condition from its text.

    Args:
        text: Such as ``train_rate>=500``.
        known: The first keys that a summary has.

    Raises:
        CommandLineError: It has not this form, or begins with a word that no summary has.
    """
    where = f"--require {text!r}"
    match = _FORM.fullmatch(text)
    if match is None:
        raise CommandLineError("this is no condition.", where=where, next="Write a figure, a comparison and a number: train_rate>=500")
    name, operator, number = match.groups()
    path = tuple(SHORT.get(name, name).split("."))
    if path[0] not in known:
        nearest = did_you_mean(name, [*SHORT, *known])
        raise CommandLineError(f"a summary has no {name!r}.", where=where, next=nearest or f"Such as: {', '.join(SHORT)}.")
    try:
        bound = float(number)
    except ValueError:
        raise CommandLineError(f"{number!r} is not a number.", where=where, next="A share of 20 % is 0.2.") from None
    return Condition(text, path, operator, bound)
