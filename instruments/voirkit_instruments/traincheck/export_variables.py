"""Parameters as TrainCheck's variables: a line whenever one is not what the lines before say of it.

TrainCheck counts what changes between two lines of a variable to the call in which the second one lies. So the gradient that a step gets is
written before it, what the step has made of the data inside it, and what ``zero_grad`` has made of the gradient inside that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from voirkit_instruments.traincheck.export_moments import STEP, Figure, Moment

TYPE = "torch.nn.Parameter"
_UNKNOWN = object()
# Flags of the records `state` and `zeroed` (docs/parameters.md).
_NONE, _ZERO, _CHANGED, _CHANGED_OUTSIDE = 1, 2, 32, 512


class _Parameter:
    """What is known of one now. ``data`` and ``grad`` are numbers that differ where the tensors do, 0 of zeros; None: no gradient."""

    __slots__ = ("attributes", "changes", "data", "digest", "flags", "grad", "optimizer", "sign", "told", "zeroed")

    def __init__(self, sign: int, norm: float | None) -> None:
        self.sign = sign
        self.attributes = ""
        self.optimizer: int | None = None
        self.digest: object = f"norm {norm}"  # the first thing known of it; equal in ranks that begin alike
        self.changes = 0
        self.flags = self.zeroed = 0
        self.data = 0 if norm == 0 else sign * _number(self.digest)
        self.grad: int | None = None
        self.told: dict[str, tuple[str, ...]] = {}  # what the last line said, by stage: TrainCheck reads each stage by itself

    def now(self) -> tuple[str, ...]:
        return f'"data":{self.data}', f'"grad":{"null" if self.grad is None else self.grad}', self.attributes

    def changed(self, digest: object = None) -> None:
        if digest is not None:
            self.digest, self.changes = digest, 0
        else:
            self.changes += 1
        self.data = self.sign * _number(self.digest, self.changes)


class Variables:
    """The parameters of one process.

    Args:
        names: Of all parameters of the run. Their order gives half of them negative numbers: TrainCheck words what takes both signs
            as ``non-zero``, and what happens to be positive in one run as ``above_zero``, which the next run would break.
        norms: The first known norm of each.
        is_sparing: Whether data or a gradient that is as before is left out. TrainCheck compares ranks at the step of the first line
            that has a value where it infers, at that of the last where it checks: in runs of several ranks these must be one line.
    """

    def __init__(self, names: Sequence[str], norms: Mapping[str, float], is_sparing: bool) -> None:
        self._norms, self._is_sparing = norms, is_sparing
        self._sign = {name: -1 if i % 2 else 1 for i, name in enumerate(sorted(names))}
        self._known: dict[str, _Parameter] = {}
        self._clears: object = _UNKNOWN

    def enter(self, moment: Moment) -> None:
        """Before a step or ``zero_grad``."""
        for figure in moment.figures:
            if figure.category == "seen":
                self._see(figure)
        if moment.what == STEP:
            looked = _by_parameter(moment.figures)
            for name in self._of(moment):
                self._before_step(name, moment.n, looked.get(name, {}))

    def leave(self, moment: Moment) -> None:
        """At its end."""
        looked = _by_parameter(moment.figures)
        for name in self._of(moment):
            parameter, figures = self._known[name], looked.get(name, {})
            if moment.what == STEP:
                if parameter.flags & _CHANGED:
                    digest = figures.get("digest")
                    parameter.changed(None if digest is None else (digest.value, digest.arguments))
            else:
                parameter.zeroed = _flags(figures.get("zeroed"), parameter.zeroed)
                if parameter.zeroed & (_NONE | _ZERO):
                    self._clear(parameter, None if parameter.zeroed & _NONE else 0)

    def _clear(self, parameter: _Parameter, to: int | None) -> None:
        """A gradient is gone, or zero. A run that does both has the way that came first in its lines: TrainCheck ends with an
        AssertionError where it is to generalise None and one single number."""
        if parameter.grad != to:
            if self._clears is _UNKNOWN:
                self._clears = to
            if self._clears == to:
                parameter.grad = to

    def changed(self, stage: str) -> Iterator[tuple[str, bool]]:
        """The lines (without time, thread and the like) of all parameters that are not as a stage's lines have them, and whether it is
        the first of the stage."""
        for name, parameter in self._known.items():
            now, before = parameter.now(), parameter.told.get(stage)
            if before != now:
                parameter.told[stage] = now
                told = [new for new, old in zip(now[:2], before or ("", ""), strict=False) if new != old or not self._is_sparing]
                attributes = ",".join((*told, parameter.attributes))
                named = f'"var_name":{json.dumps(name)},"var_type":"{TYPE}","mode":"post_observe"'
                yield f'{named},"attributes":{{{attributes}}},"type":"state_change"', before is None

    def _of(self, moment: Moment) -> list[str]:
        if moment.optimizer is None:
            return []
        which = json.loads(moment.optimizer).get("optimizer")
        return [name for name, one in self._known.items() if one.optimizer == which]

    def _see(self, figure: Figure) -> None:
        facts = json.loads(figure.arguments or "{}")
        parameter = self._known.get(figure.parameter)
        if parameter is None:
            parameter = self._known[figure.parameter] = _Parameter(self._sign.get(figure.parameter, 1), self._norms.get(figure.parameter))
        parameter.optimizer = facts.get("optimizer")
        parameter.attributes = _attributes(facts)

    def _before_step(self, name: str, n: int, figures: Mapping[str, Figure]) -> None:
        parameter = self._known[name]
        parameter.flags = flags = _flags(figures.get("state"), parameter.flags)
        if flags & _CHANGED_OUTSIDE and "state" in figures:
            parameter.changed()
        gradient = figures.get("grad_norm")
        norm = None if gradient is None else gradient.number
        if flags & _NONE:
            parameter.grad = None
        elif flags & _ZERO or norm == 0:
            parameter.grad = 0
        else:
            parameter.grad = parameter.sign * _number("gradient", *((name, n) if norm is None else (norm,)))


def _by_parameter(figures: Iterable[Figure]) -> dict[str, dict[str, Figure]]:
    found: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        found.setdefault(figure.parameter, {})[figure.category] = figure
    return found


def _flags(figure: Figure | None, before: int) -> int:
    return before if figure is None or figure.value is None else figure.value


def _attributes(facts: Mapping[str, Any]) -> str:
    shape = [int(n) for n in str(facts.get("shape", "")).split(",") if n.strip()]
    device = str(facts.get("device", "cpu")).partition(":")[0]
    found = {
        "dtype": f"torch.{facts.get('dtype', '')}", "is_cpu": device == "cpu", "is_cuda": device == "cuda", "is_leaf": True,
        "ndim": len(shape), "requires_grad": bool(facts.get("requires_grad")), "shape": shape,
    }  # fmt: skip
    return json.dumps(found, separators=(",", ":"))[1:-1]


def _number(*what: object) -> int:
    """A whole number of at most 2**53 for something, never 0: whoever reads JSON keeps it exactly."""
    return (int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest(), "big") >> 11) | 1
