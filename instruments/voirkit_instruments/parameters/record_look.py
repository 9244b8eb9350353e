"""The reading of the parameters in one optimizer step: all figures of those whose turn it is; and
their gradients as the step gets them, after backward, unscaling and clipping.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from voirkit_instruments.parameters.record_figures import NOT_ZERO, Figures, Later
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
)

MOST_ALARMS = 20  # of an optimizer; what it costs to look for the first NaN is paid so often
SCOUT_ELEMENTS = 1 << 16  # at most, if there is such a gradient: 20 us to read
_DATA = NAN | INF
_BROKEN = _DATA | GRAD_NAN | GRAD_INF


class Inspection:
    """The reading of one step; it is made before the step.

    Args:
        parameters: In the order of the plan; kept until the step is over.
        scale: What the step itself divides its gradients by (AMP with fused optimizers); None:
            nothing.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: list[Any],
        scale: Any,
        figures: Figures,
        later: Later,
        records: Records,
    ) -> None:
        self.plan = plan
        self.start_ns = 0
        self.n = plan.n
        self._parameters = parameters
        self._scale = scale
        self._figures = figures
        self._later = later
        self._records = records
        self.in_turn = {index: parameters[index] for index in plan.in_turn()}
        # by index, the digests before the first step of those whose turn comes later
        self._first: dict[int, Any] = {}
        # of some parameters, what is known without waiting for a device
        self._flags: dict[int, int] = {}
        self._broken: dict[int, int] = {}  # flags that an alarm has found
        self._first_norms = self._read_first() if self.n == 0 else []
        self._copies = [data.detach().clone() for data in self.in_turn.values()]
        self._norms = figures.norms(self._copies)
        self._gradients = self._read_gradients()
        self._was_finite = plan.is_finite
        if self._gradients.is_broken and plan.is_finite:
            self._alarm(before=True)

    def _read_first(self) -> list[tuple[str, int, Any]]:
        """Before the first step digests and norms of all whose turn comes later."""
        all_indices = [index for turn in self.plan.turns for index in turn]
        indices = [index for index in all_indices if index not in self.in_turn]
        tensors = [self._parameters[index].detach() for index in indices]
        for index, tensor in zip(indices, tensors, strict=True):
            self._first[index] = self._digest(tensor)
        norms = zip(indices, self._figures.norms(tensors), strict=True)
        return [("norm", index, norm) for index, norm in norms if norm is not None]

    def _digest(self, tensor: Any) -> Any:
        """As of ``Figures``; None on devices where none is computed."""
        return self._figures.digest(tensor) if tensor.device.type in ("cpu", "cuda") else None

    def _read_gradients(self) -> Gradients:
        return Gradients(self.plan, self._parameters, self.in_turn, self._scale, self._figures)

    def end(
        self, end_ns: int, has_walked: bool, more: Iterable[tuple[str, Name, Any]] = ()
    ) -> None:
        """The step is over.

        Args:
            end_ns: When it was.
            has_walked: There was a backward in it (a closure): the gradients are those of now.
            more: What else has norms: category, name, tensor.
        """
        plan, figures = self.plan, self._figures
        self._records.step(plan, self.start_ns, end_ns, self.n)
        plan.n += 1
        plan.last_ns = self.start_ns
        # the step has freed the memory of some
        if not all(
            figures.is_readable(self._parameters[index]) for index in (*self.in_turn, *self._first)
        ):
            return
        if has_walked:
            self._gradients = self._read_gradients()
        sent: list[Any] = []
        self._places: dict[tuple[str, int], int] = {}
        for category, index, tensor in (
            *self._figures_in_turn(),
            *self._first_norms,
            *self._first_changes(),
            *self._gradients.figures(),
            *self._norms_on_devices(),
        ):
            self._places[category, index] = len(sent)
            sent.append(tensor)
        more = list(more)
        self._more = [(category, name) for category, name, _ in more]
        sent += figures.norms([tensor.detach() for _, _, tensor in more])
        self._later.bring(sent, self._receive)

    def _figures_in_turn(self) -> Iterator[tuple[str, int, Any]]:
        """The figures of the data of those whose turn it is."""
        figures = self._figures
        self._digests: dict[int, int] = {}
        self._differences: dict[int, Any] = {}
        for index, copy, norm in zip(self.in_turn, self._copies, self._norms, strict=True):
            data = self._parameters[index].detach()
            if norm is not None:
                yield "norm", index, norm
            if data.device.type == "cpu":
                self._flags[index] = SAME if figures.same(copy, data) else CHANGED
                self._digests[index] = figures.digest(data)
            else:
                yield "changed", index, (figures.bits(copy) != figures.bits(data)).any()
                yield "codes", index, figures.codes_of_all(data)
                digest = self._digest(data)
                if digest is not None:
                    yield "digest", index, digest
            if norm is not None:
                self._differences[index] = figures.difference(copy, data)
        norms = figures.norms(list(self._differences.values()))
        for index, norm in zip(self._differences, norms, strict=True):
            yield "update_norm", index, norm

    def _first_changes(self) -> Iterator[tuple[str, int, Any]]:
        """Whether the first step changed those whose turn comes later: by their digests, so that
        nothing is copied."""
        for index, before in self._first.items():
            if before is None:
                continue
            digest = self._digest(self._parameters[index].detach())
            if isinstance(digest, int):
                self._flags[index] = SAME if digest == before else CHANGED
                self._digests[index] = digest
            else:
                yield "changed", index, digest != before
                yield "digest", index, digest

    def _norms_on_devices(self) -> Iterator[tuple[str, int, Any]]:
        """Where a pass over all data costs little: whether it is finite, of all in each step."""
        pairs = enumerate(zip(self.plan.watched, self._parameters, strict=True))
        all_data = {index: data.detach() for index, (watched, data) in pairs if not watched.why_not}
        return self._figures.norms_on_devices("norm_after", all_data)

    # what has arrived

    def _receive(self, received: list[Any]) -> None:
        """Write all that is known of the step; called when the figures are on the host, at a later
        step perhaps."""
        plan = self.plan
        norms_of_more = received[len(received) - len(self._more) :]
        for (category, name), norm in zip(self._more, norms_of_more, strict=True):
            self._records.other(category, name, self.start_ns, float(norm[0]))
        states: dict[int, int] = dict.fromkeys((*self.in_turn, *self._first), 0)
        arrays_of: dict[int, dict[str, Any]] = {index: {} for index in states}
        for (category, index), place in self._places.items():
            arrays_of.setdefault(index, {})[category] = received[place]
        for index, arrays in arrays_of.items():
            self._add_flags(states, index, self._write_figures(index, arrays))
        for index, flags in self._broken.items():
            self._add_flags(states, index, flags)
        flags_of_all = 0
        for state in states.values():
            flags_of_all |= state
        if flags_of_all & _BROKEN and self._was_finite:  # and what has the step made of it?
            self._alarm(before=False)
            for index, flags in self._broken.items():
                self._add_flags(states, index, flags)
        plan.is_finite = not (self._gradients.is_broken or flags_of_all & _BROKEN)
        self._write_states(states)
        self._parameters = self._copies = []
        self.in_turn = {}
        self._differences = {}

    def _add_flags(self, states: dict[int, int], index: int, flags: int) -> None:
        """Add what is known of a parameter; of one that is not read in this step, to what was known
        before."""
        if index not in states:
            if not flags:
                return
            states[index] = max(self.plan.watched[index].state, 0)
            if flags & GRAD_BITS:
                states[index] &= ~GRAD_BITS
        states[index] |= flags

    def _write_states(self, states: dict[int, int]) -> None:
        """Write them, and those of parameters that have or lack a gradient now and are not read:
        all else is as it was."""
        nones = self._gradients.none
        for index, (parameter, is_none) in enumerate(zip(self.plan.watched, nones, strict=True)):
            state = states.get(index)
            if state is None:
                if parameter.state < 0 or is_none == bool(parameter.state & GRAD_NONE):
                    continue
                state = parameter.state & ~GRAD_BITS
            if is_none:
                state |= GRAD_NONE
            self._state(index, state, self.start_ns)

    def _state(self, index: int, state: int, time_ns: int) -> None:
        parameter = self.plan.watched[index]
        if state != parameter.state and not parameter.why_not:
            parameter.state = state
            self._records.flags(parameter, "state", time_ns, state)

    def _write_figures(self, index: int, arrays: dict[str, Any]) -> int:
        """Write the figures of a parameter; returns the flags that they add."""
        parameter, records = self.plan.watched[index], self._records
        values = {
            category: float(array[0]) for category, array in arrays.items() if category != "digest"
        }
        flags = self._flags.get(index, 0) | self._data_flags(index, values)
        gradient_flags, exact = self._gradients.exact(index, values)
        if exact is not None:
            values["grad_norm"] = exact
        for category in ("norm", "grad_norm", "update_norm"):
            if category in values:
                records.figure(parameter, category, self.start_ns, values[category])
        if index in self._digests:
            records.digest(parameter, self.start_ns, self._digests[index], "crc32")
        elif "digest" in arrays:
            digest = int(arrays["digest"].view(np.int64)[0])
            records.digest(parameter, self.start_ns, digest, "sum64")
        return flags | gradient_flags

    def _data_flags(self, index: int, values: dict[str, float]) -> int:
        """What figures tell of the data; on the CPU the norm of the update is made exact."""
        figures = self._figures
        flags = figures.data_flags(int(values.get("codes", 0)))
        flags |= _not_finite(values.get("norm_after", 0.0), NAN, INF)
        if "changed" in values:
            flags |= CHANGED if values["changed"] else SAME
        if "update_norm" in values and index in self._digests:
            update_norm = self._exact_update(index, values["update_norm"])
            values["update_norm"] = update_norm
            data = self._parameters[index]
            if not math.isfinite(update_norm) and figures.is_readable(data):
                flags |= figures.data_flags(int(figures.codes_of_all(data.detach())))
        return flags

    def _exact_update(self, index: int, norm: float) -> float:
        """The norm of an update whose squares are too small or too large for float32."""
        if (norm == 0 and self._flags.get(index, 0) & CHANGED) or math.isinf(norm):
            return self._figures.exact_norm(self._differences[index])
        return norm

    # the first NaN

    def _alarm(self, before: bool) -> None:
        """Something is not finite for the first time: look at all of everything, once, to know
        where it began. On the CPU only."""
        plan, figures = self.plan, self._figures
        plan.is_finite = False
        plan.alarms += 1
        if plan.alarms > MOST_ALARMS:
            return
        for index, data in enumerate(self._parameters):
            parameter = plan.watched[index]
            if parameter.why_not or data.device.type != "cpu" or not figures.is_readable(data):
                continue
            flags = figures.data_flags(int(figures.codes_of_all(data.detach())))
            # the step before did it, unseen
            if flags and before and parameter.state >= 0 and not parameter.state & _DATA:
                self._state(index, parameter.state | flags, plan.last_ns)
            if before:
                flags |= self._gradients.not_finite(index)
            if flags:
                self._broken[index] = flags

    @staticmethod
    def last(plan: Plan, figures: Figures, later: Later, records: Records) -> None:
        """Write the norms and digests of all that are still there, at the end."""
        time_ns = time.perf_counter_ns()
        alive = []
        for parameter in plan.watched:
            tensor = None if parameter.why_not else parameter.ref()
            if tensor is not None and tensor.numel() and figures.is_readable(tensor):
                alive.append((parameter, tensor.detach()))
        norms = figures.norms([data for _, data in alive])
        pairs = zip(alive, norms, strict=True)
        with_norm = [(parameter, norm) for (parameter, _), norm in pairs if norm is not None]

        def write(values: list[Any]) -> None:
            for (parameter, _), value in zip(with_norm, values, strict=True):
                records.figure(parameter, "norm", time_ns, float(value[0]))

        later.bring([norm for _, norm in with_norm], write)
        for parameter, data in alive:
            if data.device.type == "cpu":
                records.digest(parameter, time_ns, figures.digest(data), "crc32")


def _not_finite(value: float, nan: int, inf: int) -> int:
    if math.isnan(value):
        return nan
    return inf if math.isinf(value) else 0


def _is_dense(gradient: Any) -> bool:
    return gradient is not None and not gradient.is_sparse


class Gradients:
    """Reads them: whether there are any, all of those whose turn it is, and of one whether it is
    finite.

    Args:
        in_turn: Places of those that are read in full.
        scale: A tensor that they are still to be divided by, or None.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Sequence[Any],
        in_turn: Collection[int],
        scale: Any,
        figures: Figures,
    ) -> None:
        self._scale = scale
        self._figures = figures
        self._gradients = []
        self.none = []  # of each parameter, whether it has none
        for parameter, watched in zip(parameters, plan.watched, strict=True):
            gradient = None if watched.why_not else parameter.grad
            self._gradients.append(gradient)
            self.none.append(gradient is None and not watched.why_not)
        gradients = {index: self.of_parameter(index) for index in in_turn}
        self._in_turn = {index: value for index, value in gradients.items() if value is not None}
        with_elements = {index: value for index, value in self._in_turn.items() if value.numel()}
        norms = figures.norms(list(with_elements.values()))
        self._norms = dict(zip(with_elements, norms, strict=True))
        scout = self._scout()
        # on the CPU, that one is NaN or Inf
        self.is_broken = scout is not None and bool(self.not_finite(scout))

    def of_parameter(self, index: int) -> Any:
        """A gradient's values; of a sparse one, those with the same place added up. None: it has
        none, or is of no known layout."""
        gradient = self._gradients[index]
        if gradient is None or type(gradient) is not self._figures.tensor:
            return None
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        return gradient if self._figures.is_readable(gradient) else None

    def _scout(self) -> int | None:
        """The first gradient on the CPU that is soon read, else the smallest: NaN of a loss comes
        to it in each step, and so does that of a layer's data, one step later."""
        sizes = {}
        for index, gradient in enumerate(self._gradients):
            if gradient is not None and gradient.device.type == "cpu":
                sizes[index] = gradient.numel()
                if 0 < sizes[index] <= SCOUT_ELEMENTS:
                    return index
        return min(sizes, key=sizes.__getitem__, default=None)

    def not_finite(self, index: int) -> int:
        """The flags of a gradient on the CPU, without those of a finite one."""
        gradient = self.of_parameter(index)
        if gradient is None:
            return 0
        flags = self._figures.gradient_flags(int(self._figures.codes_of_all(gradient)))
        return flags if flags & (GRAD_NAN | GRAD_INF) else 0

    def figures(self) -> Iterator[tuple[str, int, Any]]:
        """Category, place, tensor: the figures of those whose turn it is; on devices, where a pass
        over all costs little, the norms of all."""
        figures = self._figures
        for index, norm in self._norms.items():
            if norm is not None:
                if self._scale is not None:
                    norm = norm / self._scale.to(norm.device)
                yield "grad_norm", index, norm
            gradient = self._in_turn[index]
            if gradient.device.type != "cpu" and figures.is_readable(gradient):
                yield "grad_codes", index, figures.codes_of_all(gradient)
        dense = {index: value for index, value in enumerate(self._gradients) if _is_dense(value)}
        yield from figures.norms_on_devices("grad_norm_of_all", dense)

    # what has arrived

    def exact(self, index: int, values: dict[str, float]) -> tuple[int, float | None]:
        """The flags of a gradient, and its norm where that of float32 is not it."""
        figures = self._figures
        flags = _not_finite(values.get("grad_norm_of_all", 0.0), GRAD_NAN, GRAD_INF)
        if "grad_codes" in values:
            return flags | figures.gradient_flags(int(values["grad_codes"])), None
        gradient = self._in_turn.get(index)
        if gradient is None or not figures.is_readable(gradient):
            return flags, None
        norm = values.get("grad_norm", 0.0)
        if norm > 0 and math.isfinite(norm):
            return flags | GRAD_NOT_ZERO, None
        if not gradient.numel():
            return flags | GRAD_ZERO, None
        code = int(figures.codes_of_all(gradient))
        exact_norm = None
        # its squares are too small or too large for float32
        if code == NOT_ZERO and "grad_norm" in values:
            scale = 1.0 if self._scale is None else float(self._scale)
            exact_norm = figures.exact_norm(gradient) / scale
        return flags | figures.gradient_flags(code), exact_norm
