"""How what is known of parameters is written into the trace plane: kind ``parameter``.

Flags and what they mean stand here once; ``voirkit_instruments.parameters.analyse`` reads them.
"""

from __future__ import annotations

from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.parameters.record_plan import Plan, Watched

KIND = "parameter"
# Of a state: what was true of a step. Without any of a row's it is not known.
GRAD_NONE, GRAD_ZERO, GRAD_NOT_ZERO = 1, 2, 4
GRAD_NAN, GRAD_INF = 8, 16
GRAD_BITS = GRAD_NONE | GRAD_ZERO | GRAD_NOT_ZERO | GRAD_NAN | GRAD_INF
CHANGED, SAME = 32, 64
NAN, INF = 128, 256

_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_KEYS = {"seen": "id", "state": "flags", "zeroed": "flags", "digest": "digest"}


class Records:
    """Writes them."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._step = recorder.name("step", "optimizer", kind=KIND, value="n")
        self._zero_grad = recorder.name("zero_grad", "optimizer", kind=KIND, value="n")
        self.made = 0

    def optimizer(self, plan: Plan, identity: int, every: int) -> None:
        """An optimizer is new."""
        plan.args = self._recorder.arguments({"optimizer": plan.ordinal, "class": plan.kind, "id": identity, "every": every})

    def step(self, plan: Plan, start_ns: int, end_ns: int, n: int) -> None:
        """A step of an optimizer."""
        self._recorder.span(self._step, start_ns, end_ns, plan.args, n)
        self.made += 1

    def zero_grad(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """A call of its ``zero_grad``."""
        self._recorder.span(self._zero_grad, start_ns, end_ns, plan.args, plan.n)
        self.made += 1

    def metadata(self, plan: Plan, one: Watched, parameter: Any, at_ns: int) -> None:
        """What a parameter is, when it is seen first and when that has changed."""
        kind, dtype, device, requires_grad, shape = one.meta[:5]
        known: dict[str, Any] = {
            "shape": ",".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch."), "device": str(device),
            "requires_grad": requires_grad, "model": one.name.model,
            "optimizer": None if one.where is None else plan.ordinal,
        }  # fmt: skip
        if one.where is not None:
            known.update(group=one.where[0], at=one.where[1])
        if one.name.alias is not None:
            known["alias"] = one.name.alias
        if one.why_not:
            known["not_watched"] = one.why_not
        if kind.__name__ not in ("Parameter", "Tensor"):
            known["class"] = kind.__name__
        self._recorder.span(self._id(one, "seen"), at_ns, at_ns, self._recorder.arguments(known), id(parameter))
        self.made += 1

    def flags(self, one: Watched, category: str, at_ns: int, flags: int) -> None:
        """``state`` or ``zeroed``."""
        self._recorder.span(self._id(one, category), at_ns, at_ns, 0, flags)
        self.made += 1

    def figure(self, one: Watched, category: str, at_ns: int, value: float) -> None:
        """A number."""
        self._recorder.span(self._id(one, category), at_ns, at_ns, 0, *_as_integer(_as_double(value)))
        self.made += 1

    def other(self, category: str, name: str, at_ns: int, value: float) -> None:
        """A number of what is no parameter."""
        number = self._recorder.name(category, name, kind=KIND, value="figure")
        self._recorder.span(number, at_ns, at_ns, 0, *_as_integer(_as_double(value)))
        self.made += 1

    def digest(self, one: Watched, at_ns: int, digest: int, of: str) -> None:
        """A digest of its data."""
        self._recorder.span(self._id(one, "digest"), at_ns, at_ns, self._recorder.arguments({"of": of}), digest)
        self.made += 1

    def _id(self, one: Watched, category: str) -> int:
        found = one.ids.get(category)
        if found is None:
            value = _KEYS.get(category, "figure")
            found = one.ids[category] = self._recorder.name(category, one.name.full, kind=KIND, value=value)
        return found
