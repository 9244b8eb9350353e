"""What is read of the parameters in one optimizer step: samples of some before and after it, all figures of those whose turn it is; and
their gradients as the step gets them, after backward, unscaling and clipping.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from voirkit_instruments.parameters.record_figures import NOT_SAME, NOT_ZERO, Figures, Later
from voirkit_instruments.parameters.record_plan import (
    CHANGED,
    GRAD_BITS,
    GRAD_INF,
    GRAD_NAN,
    GRAD_NONE,
    GRAD_NOT_ZERO,
    GRAD_ZERO,
    INF,
    NAN,
    SAME,
    Name,
    Plan,
    Records,
)  # fmt: skip

MOST_ALARMS = 10  # of an optimizer; what it costs to look for the first NaN is paid so often
_BROKEN = NAN | INF | GRAD_NAN | GRAD_INF


class Inspection:
    """What is read of one step; it is made before the step.

    Args:
        parameters: In the order of the plan; kept until the step is over.
        scale: What the step itself divides its gradients by (AMP with fused optimizers); None: nothing.
    """

    def __init__(self, plan: Plan, parameters: list[Any], scale: Any, figures: Figures, later: Later, records: Records) -> None:
        self.plan, self.start_ns, self.n = plan, 0, plan.n
        self._parameters, self._scale, self._figures, self._later, self._records = parameters, scale, figures, later, records
        self._due, self._groups = plan.due(), plan.sampled()
        self.due = {at: parameters[at] for at in self._due}
        self._flags: dict[int, int] = {}  # of some parameters, what is known without waiting for a device
        self._found_broken: dict[int, tuple[int, int]] = {}  # by an alarm: flags of data and gradient
        self._first = self._first_norms() if self.n == 0 else []
        self._samples = [self._sample(group.at) for group in self._groups]
        self._copies = [parameters[at].detach().clone() for at in self._due]
        self._norms = figures.norms(self._copies)
        self._gradients = self._read_gradients()
        if self._gradients.is_broken and plan.is_finite:
            self._alarm(before=True)

    def _first_norms(self) -> list[tuple[str, int, Any]]:
        """Before the first step the norms of all whose turn comes later."""
        which = [at for turn in self.plan.turns for at in turn if at not in self._due]
        norms = self._figures.norms([self._parameters[at].detach() for at in which])
        return [("norm", at, norm) for at, norm in zip(which, norms, strict=True) if norm is not None]

    def _read_gradients(self) -> Gradients:
        sampled = [at for group in self._groups for at in group.at]
        return Gradients(self.plan, self._parameters, sampled, self._due, self._scale, self._figures)

    def _sample(self, ats: Sequence[int]) -> Any:
        watched, parameters = self.plan.watched, self._parameters
        return self._figures.sample([(parameters[at], watched[at].place) for at in ats], self.n)

    def end(self, end_ns: int, has_walked: bool, more: Iterable[tuple[str, Name, Any]] = ()) -> None:
        """The step is over.

        Args:
            end_ns: When it was.
            has_walked: There was a backward in it (a closure): the gradients are those of now.
            more: What else has norms: category, name, tensor.
        """
        plan, figures = self.plan, self._figures
        looked_at = {*self._due, *(at for group in self._groups for at in group.at)}
        if not all(figures.is_readable(self._parameters[at]) for at in looked_at):  # the step has freed the memory of some
            self._records.step(plan, self.start_ns, end_ns, self.n)
            plan.n += 1
            plan.last_ns = self.start_ns
            return
        if has_walked:
            self._gradients = self._read_gradients()
        sent = []
        for group, before in zip(self._groups, self._samples, strict=True):
            after = self._sample(group.at)
            sent.append(figures.codes(after, before))
        sent += self._gradients.codes
        self._places: dict[tuple[str, int], int] = {}
        for category, at, tensor in (*self._figures_of_due(), *self._first, *self._gradients.figures(), *self._norms_on_devices()):
            self._places[category, at] = len(sent)
            sent.append(tensor)
        found = list(more)
        self._more = [(category, name) for category, name, _ in found]
        sent += figures.norms([tensor.detach() for _, _, tensor in found])
        self._records.step(plan, self.start_ns, end_ns, self.n)
        plan.n += 1
        self._later.bring(sent, self._arrived)
        plan.last_ns = self.start_ns

    def _figures_of_due(self) -> Iterator[tuple[str, int, Any]]:
        """What is to be known of the data of those whose turn it is."""
        figures = self._figures
        self._digests: dict[int, int] = {}
        self._differences: dict[int, Any] = {}
        for at, copy, norm in zip(self._due, self._copies, self._norms, strict=True):
            data = self._parameters[at].detach()
            if norm is not None:
                yield "norm", at, norm
            if data.device.type == "cpu":
                same = figures.same(copy, data)
                self._flags[at] = self._flags.get(at, 0) | (SAME if same else CHANGED)
                self._digests[at] = figures.digest(data)
            else:
                yield "changed", at, (figures.bits(copy) != figures.bits(data)).any()
                yield "codes", at, figures.codes_of_all(data)
                if data.device.type == "cuda":
                    yield "digest", at, figures.digest(data)
            if norm is not None:
                self._differences[at] = figures.difference(copy, data)
        norms = figures.norms(list(self._differences.values()))
        yield from (("update_norm", at, norm) for at, norm in zip(self._differences, norms, strict=True))

    def _norms_on_devices(self) -> Iterator[tuple[str, int, Any]]:
        """Where a pass over all data costs little: whether it is finite, of all in each step."""
        which = [at for group in self._groups for at in group.at if self._parameters[at].device.type != "cpu"]
        norms = self._figures.norms([self._parameters[at].detach() for at in which])
        yield from (("norm_after", at, norm) for at, norm in zip(which, norms, strict=True) if norm is not None)

    # what has arrived

    def _arrived(self, received: list[Any]) -> None:
        """Write all that is known of the step; called when the figures are on the host, at a later step perhaps."""
        plan, states = self.plan, self._flags
        n = len(self._groups)
        for (category, name), norm in zip(self._more, received[len(received) - len(self._more) :], strict=True):
            self._records.other(category, name, self.start_ns, float(norm[0]))
        self._flags_of_data(received[:n])
        for at, flags in self._gradients.flags(received[n:]):
            states[at] = states.get(at, 0) | flags
        got: dict[int, dict[str, Any]] = {at: {} for at in self._due}
        for (category, at), place in self._places.items():
            got.setdefault(at, {})[category] = received[place]
        for at, arrays in got.items():
            states[at] = states.get(at, 0) | self._figures_arrived(at, arrays)
        broken = any(flags & _BROKEN for flags in states.values())
        if broken and plan.is_finite and any(flags & (NAN | INF) for flags in states.values()):
            self._alarm(before=False)
        plan.is_finite = not broken
        for at, (data, gradient) in self._found_broken.items():
            held = max(plan.watched[at].state, 0)
            states[at] = states.get(at, held & ~GRAD_BITS if gradient else held) | data | gradient
        nones = self._gradients.none
        if nones != plan.none:  # of those that are not sampled all else is as it was
            for at, (one, none) in enumerate(zip(plan.watched, nones, strict=True)):
                if at not in states and one.state >= 0 and none != bool(one.state & GRAD_NONE):
                    states[at] = one.state & ~GRAD_BITS
            plan.none = nones
        for at, state in states.items():
            self._state(at, state | (GRAD_NONE if nones[at] else 0), self.start_ns)
        self._parameters = self._copies = []
        self.due = {}
        self._differences = {}

    def _state(self, index: int, state: int, at_ns: int) -> None:
        one = self.plan.watched[index]
        if state != one.state and not one.why_not:
            one.state = state
            self._records.flags(one, "state", at_ns, state)

    def _flags_of_data(self, samples: list[Any]) -> None:
        for group, elements in zip(self._groups, samples, strict=True):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8, copy=False), group.starts)
            for at, code in zip(group.at, codes.tolist(), strict=True):
                changed = CHANGED if code & NOT_SAME else SAME if self.plan.watched[at].is_whole else 0
                self._flags[at] = self._flags.get(at, 0) | changed | self._figures.data_flags(code)

    def _figures_arrived(self, index: int, arrays: dict[str, Any]) -> int:
        """Write the figures of a parameter; what flags they add."""
        one, records, figures = self.plan.watched[index], self._records, self._figures
        got = {category: float(array[0]) for category, array in arrays.items() if category != "digest"}
        flags = figures.data_flags(int(got.get("codes", 0)))
        if "changed" in got:
            flags |= CHANGED if got["changed"] else SAME
        norm_after = got.get("norm_after", 0.0)
        flags |= NAN if math.isnan(norm_after) else INF if math.isinf(norm_after) else 0
        if "update_norm" in got and index in self._digests:
            got["update_norm"] = self._exact_update(index, got["update_norm"])
            if not math.isfinite(got["update_norm"]) and figures.is_readable(self._parameters[index]):
                flags |= figures.data_flags(int(figures.codes_of_all(self._parameters[index].detach())))
        gradient_flags, exact = self._gradients.exact(index, got)
        if exact is not None:
            got["grad_norm"] = exact
        for category in ("norm", "grad_norm", "update_norm"):
            if category in got:
                records.figure(one, category, self.start_ns, got[category])
        if index in self._digests:
            records.digest(one, self.start_ns, self._digests[index], "crc32")
        elif "digest" in arrays:
            records.digest(one, self.start_ns, int(arrays["digest"].view(np.int64)[0]), "sum64")
        return flags | gradient_flags

    def _exact_update(self, index: int, norm: float) -> float:
        """The norm of an update whose squares are too small or too large for float32."""
        if (norm == 0 and self._flags.get(index, 0) & CHANGED) or math.isinf(norm):
            return self._figures.exact_norm(self._differences[index])
        return norm

    # the first NaN

    def _alarm(self, before: bool) -> None:
        """Something is not finite for the first time: look at all of everything, once, to know where it began. On the CPU only."""
        plan, figures = self.plan, self._figures
        plan.is_finite = False
        plan.alarms += 1
        if plan.alarms > MOST_ALARMS:
            return
        for at, (one, parameter) in enumerate(zip(plan.watched, self._parameters, strict=True)):
            if one.why_not or parameter.device.type != "cpu" or not figures.is_readable(parameter):
                continue
            flags = figures.data_flags(int(figures.codes_of_all(parameter.detach())))
            values = self._gradients.of(at) if before else None
            gradient = figures.gradient_flags(int(figures.codes_of_all(values))) if values is not None else 0
            if flags and before and one.state >= 0 and not one.state & (NAN | INF):  # the step before did it, unseen
                self._state(at, one.state | flags, plan.last_ns)
            if flags or gradient:
                self._found_broken[at] = flags, gradient

    @staticmethod
    def last(plan: Plan, figures: Figures, later: Later, records: Records) -> None:
        """Write the norms and digests of all that are still there, at the end."""
        at_ns = time.perf_counter_ns()
        alive = [
            (one, p.detach())
            for one in plan.watched
            if not one.why_not and (p := one.ref()) is not None and p.numel() and figures.is_readable(p)
        ]
        norms = figures.norms([data for _, data in alive])
        known = [(one, norm) for (one, _), norm in zip(alive, norms, strict=True) if norm is not None]

        def write(values: list[Any]) -> None:
            for (one, _), value in zip(known, values, strict=True):
                records.figure(one, "norm", at_ns, float(value[0]))

        later.bring([norm for _, norm in known], write)
        for one, data in alive:
            if data.device.type == "cpu":
                records.digest(one, at_ns, figures.digest(data), "crc32")


class Gradients:
    """Reads them: whether there are any, samples of some, norms of some.

    Args:
        sampled: Places of those that are sampled; those that have one for the first time are too.
        due: Places of those whose norm is taken.
        scale: A tensor that they are still to be divided by, or None.
    """

    def __init__(
        self, plan: Plan, parameters: Sequence[Any], sampled: Sequence[int], due: Sequence[int], scale: Any, figures: Figures
    ) -> None:
        self._plan, self._scale, self._figures = plan, scale, figures
        watched = plan.watched
        self._gradients = [None if one.why_not else p.grad for p, one in zip(parameters, watched, strict=True)]
        # of each parameter, whether it has none
        self.none = [gradient is None and not one.why_not for gradient, one in zip(self._gradients, watched, strict=True)]
        pairs = enumerate(zip(self.none, plan.none, strict=True)) if self.none != plan.none else ()
        new = [at for at, (none, was) in pairs if was and not none]
        first = next((at for at, gradient in enumerate(self._gradients) if gradient is not None), None)
        self._empty: list[int] = []
        groups: dict[tuple[Any, Any], list[tuple[int, Any]]] = {}
        for at in dict.fromkeys((*sampled, *new, *(() if first is None else (first,)))):  # the first is where NaN of a loss arrives
            values = self._values(at)
            if values is None:
                continue
            if values.numel():
                groups.setdefault((values.device, values.dtype), []).append((at, values))
            else:
                self._empty.append(at)
        self._samples = [self._sample(pairs) for pairs in groups.values()]
        self.codes = [codes for _, _, _, codes in self._samples]  # tensors to be brought to the host: codes of the sampled elements
        # on the CPU, a sampled element is NaN or Inf
        self.is_broken = any(type(codes) is np.ndarray and codes.max() > NOT_ZERO for codes in self.codes)
        self._due = {at: gradient for at in due if (gradient := self.of(at)) is not None and gradient.numel()}
        self._norms = figures.norms(list(self._due.values()))

    def of(self, index: int) -> Any:
        """A gradient's values; of a sparse one, those with the same place added up. None: it has none, or is of no known layout."""
        gradient = self._gradients[index]
        return gradient.coalesce().values() if gradient is not None and gradient.is_sparse else self._values(index)

    def _values(self, index: int) -> Any:
        gradient = self._gradients[index]
        if gradient is None or type(gradient) is not self._figures.tensor:
            return None
        if gradient.is_sparse:
            gradient = gradient._values()
        return gradient if self._figures.is_readable(gradient) else None

    def _sample(self, pairs: list[tuple[int, Any]]) -> tuple[list[int], list[int], list[bool], Any]:
        """(places, starts of their samples, whether each is complete, codes of the elements)"""
        figures, watched = self._figures, self._plan.watched
        wanted, starts, whole, start = [], [], [], 0
        for at, values in pairs:
            one = watched[at]
            is_alike = one.place is not None and values.stride() == one.stride and values.shape == one.meta[4]
            place = one.place if is_alike else figures.place(values)
            wanted.append((values, place))
            starts.append(start)
            count = place[0] if place is not None else min(values.numel(), figures.count)
            whole.append(count == values.numel())
            start += count
        sample = figures.sample(wanted, self._plan.n)
        return [at for at, _ in pairs], starts, whole, figures.codes(sample)

    def figures(self) -> Iterator[tuple[str, int, Any]]:
        """What is to be known of those whose turn it is: category, place, tensor."""
        for (at, gradient), norm in zip(self._due.items(), self._norms, strict=True):
            if norm is not None:
                yield "grad_norm", at, norm if self._scale is None else norm / self._scale.to(norm.device)
            if gradient.device.type != "cpu" and self._figures.is_readable(gradient):
                yield "grad_codes", at, self._figures.codes_of_all(gradient)

    # what has arrived

    def flags(self, samples: list[Any]) -> Iterator[tuple[int, int]]:
        """What the samples tell: place and flags."""
        for (ats, starts, whole, _), elements in zip(self._samples, samples, strict=False):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8, copy=False), starts)
            for at, is_whole, code in zip(ats, whole, codes.tolist(), strict=True):
                yield at, self._figures.gradient_flags(code) | (GRAD_ZERO if is_whole and not code else 0)
        for at in self._empty:
            yield at, GRAD_ZERO

    def exact(self, index: int, got: dict[str, float]) -> tuple[int, float | None]:
        """What is known of a gradient whose turn it is: its flags, and its norm where that of float32 is not it."""
        figures = self._figures
        if "grad_codes" in got:
            code = int(got["grad_codes"])
            return figures.gradient_flags(code) | (0 if code & NOT_ZERO else GRAD_ZERO), None
        gradient = self._due.get(index)
        if gradient is None or not figures.is_readable(gradient):
            return 0, None
        norm = got.get("grad_norm", 0.0)
        if norm > 0 and math.isfinite(norm):
            return GRAD_NOT_ZERO, None
        code = int(figures.codes_of_all(gradient))
        better = None
        if code == NOT_ZERO and "grad_norm" in got:  # its squares are too small or too large for float32
            better = figures.exact_norm(gradient) / (1.0 if self._scale is None else float(self._scale))
        return figures.gradient_flags(code) | (0 if code & NOT_ZERO else GRAD_ZERO), better
