"""The reading of parameters and gradients in one optimizer step.

A step reads all figures (norms, digests and flags) of the parameters that are due in this step
(``Plan.in_turn``). Gradients are read as the step gets them: after the backward pass, unscaling and
clipping.
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

MOST_ALARMS = 20  # maximum number of searches for the first NaN per optimizer: each is costly
# preferred maximum number of elements of the scout, the one gradient that is checked for NaN in
# each step: it takes 20 us to read
SCOUT_ELEMENTS = 1 << 16
_DATA = NAN | INF
_BROKEN = _DATA | GRAD_NAN | GRAD_INF


class Inspection:
    """The reading of one optimizer step. Creating the object reads what is needed before the step.

    Args:
        parameters: The parameters in the order of the plan; kept until the step's figures have
            arrived.
        scale: The number by which the step itself divides its gradients (AMP with fused
            optimizers); None if it does not.
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
        # by index: digests, before the first step, of the parameters that later steps read
        self._first: dict[int, Any] = {}
        # by index: flags that are known without waiting for a device
        self._flags: dict[int, int] = {}
        self._broken: dict[int, int] = {}  # by index: flags found by ``_alarm``
        self._first_norms = self._read_first() if self.n == 0 else []
        self._copies = [data.detach().clone() for data in self.in_turn.values()]
        self._norms = figures.norms(self._copies)
        self._gradients = self._read_gradients()
        self._was_finite = plan.is_finite
        if self._gradients.is_broken and plan.is_finite:
            self._alarm(before=True)

    def _read_first(self) -> list[tuple[str, int, Any]]:
        """Read, before the first step, digests and norms of parameters that later steps read."""
        all_indices = [index for turn in self.plan.turns for index in turn]
        indices = [index for index in all_indices if index not in self.in_turn]
        tensors = [self._parameters[index].detach() for index in indices]
        for index, tensor in zip(indices, tensors, strict=True):
            self._first[index] = self._digest(tensor)
        norms = zip(indices, self._figures.norms(tensors), strict=True)
        return [("norm", index, norm) for index, norm in norms if norm is not None]

    def _digest(self, tensor: Any) -> Any:
        """Return the digest of a tensor, as ``Figures`` computes it; None on devices other than CPU
        and CUDA."""
        return self._figures.digest(tensor) if tensor.device.type in ("cpu", "cuda") else None

    def _read_gradients(self) -> Gradients:
        return Gradients(self.plan, self._parameters, self.in_turn, self._scale, self._figures)

    def end(
        self, end_ns: int, has_walked: bool, more: Iterable[tuple[str, Name, Any]] = ()
    ) -> None:
        """Record the step, which is over, and read the figures that need its result.

        Args:
            end_ns: The time at which the step ended.
            has_walked: True if the step ran a backward pass (a closure); then the gradients are
                read again.
            more: Other tensors whose norms are read: (category, name, tensor).
        """
        plan, figures = self.plan, self._figures
        self._records.step(plan, self.start_ns, end_ns, self.n)
        plan.n += 1
        plan.last_ns = self.start_ns
        # If the step has freed the memory of some parameters, nothing more can be read.
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
        """Yield (category, index, figure) for the data of the parameters that are due."""
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
        """Determine by their digests if the first step changed the parameters that later steps
        read. This needs no copy of the data. Yields the figures that are still on a device."""
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
        """Yield the norms of all parameters that are not on the CPU, in each step: they show if the
        data is finite, and a pass over all data costs little on such devices."""
        pairs = enumerate(zip(self.plan.watched, self._parameters, strict=True))
        all_data = {index: data.detach() for index, (watched, data) in pairs if not watched.why_not}
        return self._figures.norms_on_devices("norm_after", all_data)

    # figures that have arrived on the host

    def _receive(self, received: list[Any]) -> None:
        """Write all records of the step. Called when its figures are on the host, which may be in a
        later step."""
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
        # find the parameters with NaN or Inf after the step
        if flags_of_all & _BROKEN and self._was_finite:
            self._alarm(before=False)
            for index, flags in self._broken.items():
                self._add_flags(states, index, flags)
        plan.is_finite = not (self._gradients.is_broken or flags_of_all & _BROKEN)
        self._write_states(states)
        self._parameters = self._copies = []
        self.in_turn = {}
        self._differences = {}

    def _add_flags(self, states: dict[int, int], index: int, flags: int) -> None:
        """Add flags to the state of a parameter in this step. If the parameter is not read in this
        step, they are added to its last recorded state."""
        if index not in states:
            if not flags:
                return
            states[index] = max(self.plan.watched[index].state, 0)
            if flags & GRAD_BITS:
                states[index] &= ~GRAD_BITS
        states[index] |= flags

    def _write_states(self, states: dict[int, int]) -> None:
        """Write the states of the parameters read in this step. For any other parameter, write a
        state only if it has gained or lost its gradient; its flags of the data stay."""
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
        """Write the figures of a parameter, and return the flags that follow from them."""
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
        """Return the flags of a parameter's data that follow from its figures. On the CPU, also
        correct ``values["update_norm"]`` where float32 is not exact enough."""
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
        """Return the norm of an update, computed in float64 if its squares are too small or too
        large for float32."""
        if (norm == 0 and self._flags.get(index, 0) & CHANGED) or math.isinf(norm):
            return self._figures.exact_norm(self._differences[index])
        return norm

    # the search for the first NaN

    def _alarm(self, before: bool) -> None:
        """Read all parameters on the CPU, and before the step all gradients, to find where NaN or
        Inf began. Called when a figure is not finite and all were finite before."""
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
            # The parameter, last recorded as finite, got NaN or Inf in the last step, which did not
            # read it.
            if flags and before and parameter.state >= 0 and not parameter.state & _DATA:
                self._state(index, parameter.state | flags, plan.last_ns)
            if before:
                flags |= self._gradients.not_finite(index)
            if flags:
                self._broken[index] = flags

    @staticmethod
    def last(plan: Plan, figures: Figures, later: Later, records: Records) -> None:
        """Write the norms and digests of all parameters that still exist at the end of the run."""
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
    """The gradients of one step: which parameters have none, the norms of those that are due,
    and whether the scout gradient is finite.

    Args:
        in_turn: Indices of the parameters whose gradients are read in full.
        scale: A tensor by which the gradients are still to be divided; None if there is none.
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
        self.none = []  # for each parameter: True if it has no gradient
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
        # True if the scout gradient, which is on the CPU, has NaN or Inf
        self.is_broken = scout is not None and bool(self.not_finite(scout))

    def of_parameter(self, index: int) -> Any:
        """Return the values of a parameter's gradient; if it is sparse, with duplicate indices
        summed. None if there is no gradient, its class is unknown, or it cannot be read."""
        gradient = self._gradients[index]
        if gradient is None or type(gradient) is not self._figures.tensor:
            return None
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        return gradient if self._figures.is_readable(gradient) else None

    def _scout(self) -> int | None:
        """Return the index of the scout, the one gradient that is checked for NaN in each step: the
        first on the CPU of at most ``SCOUT_ELEMENTS``, otherwise the smallest there.

        One gradient suffices: a NaN in the loss reaches all gradients in the same step, a NaN in a
        parameter's data one step later."""
        sizes = {}
        for index, gradient in enumerate(self._gradients):
            if gradient is not None and gradient.device.type == "cpu":
                sizes[index] = gradient.numel()
                if 0 < sizes[index] <= SCOUT_ELEMENTS:
                    return index
        return min(sizes, key=sizes.__getitem__, default=None)

    def not_finite(self, index: int) -> int:
        """Return the flags of a gradient on the CPU if it has NaN or Inf; 0 if it is finite."""
        gradient = self.of_parameter(index)
        if gradient is None:
            return 0
        flags = self._figures.gradient_flags(int(self._figures.codes_of_all(gradient)))
        return flags if flags & (GRAD_NAN | GRAD_INF) else 0

    def figures(self) -> Iterator[tuple[str, int, Any]]:
        """Yield (category, index, tensor): the figures of the gradients that are due; and on
        devices other than the CPU, where a pass over all data costs little, the norms of all."""
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

    # figures that have arrived on the host

    def exact(self, index: int, values: dict[str, float]) -> tuple[int, float | None]:
        """Return the flags of a gradient, and its norm in float64 if the one in float32 is wrong
        (otherwise None)."""
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
        # Without NaN and Inf, a norm of 0 or Inf is wrong: the squares of the elements are too
        # small or too large for float32.
        if code == NOT_ZERO and "grad_norm" in values:
            scale = 1.0 if self._scale is None else float(self._scale)
            exact_norm = figures.exact_norm(gradient) / scale
        return flags | figures.gradient_flags(code), exact_norm
