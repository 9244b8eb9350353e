"""The reading of the parameters in one optimizer step: samples of some before and after it, all
figures of those whose turn it is; and their gradients as the step gets them, after backward,
unscaling and clipping.
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
)

MOST_ALARMS = 10  # of an optimizer; what it costs to look for the first NaN is paid so often
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
        self._due = plan.in_turn()
        self._groups = plan.sampled()
        self.due = {index: parameters[index] for index in self._due}
        # of some parameters, what is known without waiting for a device
        self._flags: dict[int, int] = {}
        # by an alarm: flags of data and gradient
        self._broken: dict[int, tuple[int, int]] = {}
        self._first = self._first_norms() if self.n == 0 else []
        self._samples = [self._sample(group.at) for group in self._groups]
        self._copies = [parameters[index].detach().clone() for index in self._due]
        self._norms = figures.norms(self._copies)
        self._gradients = self._read_gradients()
        if self._gradients.is_broken and plan.is_finite:
            self._alarm(before=True)

    def _first_norms(self) -> list[tuple[str, int, Any]]:
        """Before the first step the norms of all whose turn comes later."""
        indices = [index for turn in self.plan.turns for index in turn if index not in self._due]
        norms = self._figures.norms([self._parameters[index].detach() for index in indices])
        pairs = zip(indices, norms, strict=True)
        return [("norm", index, norm) for index, norm in pairs if norm is not None]

    def _read_gradients(self) -> Gradients:
        sampled = [index for group in self._groups for index in group.at]
        return Gradients(
            self.plan, self._parameters, sampled, self._due, self._scale, self._figures
        )

    def _sample(self, indices: Sequence[int]) -> Any:
        watched, parameters = self.plan.watched, self._parameters
        places = [(parameters[index], watched[index].place) for index in indices]
        return self._figures.sample(places, self.n)

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
        indices = {*self._due, *(index for group in self._groups for index in group.at)}
        # the step has freed the memory of some
        if not all(figures.is_readable(self._parameters[index]) for index in indices):
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
        for category, index, tensor in (
            *self._figures_of_due(),
            *self._first,
            *self._gradients.figures(),
            *self._norms_on_devices(),
        ):
            self._places[category, index] = len(sent)
            sent.append(tensor)
        more = list(more)
        self._more = [(category, name) for category, name, _ in more]
        sent += figures.norms([tensor.detach() for _, _, tensor in more])
        self._records.step(plan, self.start_ns, end_ns, self.n)
        plan.n += 1
        self._later.bring(sent, self._receive)
        plan.last_ns = self.start_ns

    def _figures_of_due(self) -> Iterator[tuple[str, int, Any]]:
        """The figures to be known of the data of those whose turn it is."""
        figures = self._figures
        self._digests: dict[int, int] = {}
        self._differences: dict[int, Any] = {}
        for index, copy, norm in zip(self._due, self._copies, self._norms, strict=True):
            data = self._parameters[index].detach()
            if norm is not None:
                yield "norm", index, norm
            if data.device.type == "cpu":
                change = SAME if figures.same(copy, data) else CHANGED
                self._flags[index] = self._flags.get(index, 0) | change
                self._digests[index] = figures.digest(data)
            else:
                yield "changed", index, (figures.bits(copy) != figures.bits(data)).any()
                yield "codes", index, figures.codes_of_all(data)
                if data.device.type == "cuda":
                    yield "digest", index, figures.digest(data)
            if norm is not None:
                self._differences[index] = figures.difference(copy, data)
        norms = figures.norms(list(self._differences.values()))
        for index, norm in zip(self._differences, norms, strict=True):
            yield "update_norm", index, norm

    def _norms_on_devices(self) -> Iterator[tuple[str, int, Any]]:
        """Where a pass over all data costs little: whether it is finite, of all in each step."""
        parameters = self._parameters
        indices = [
            index
            for group in self._groups
            for index in group.at
            if parameters[index].device.type != "cpu"
        ]
        norms = self._figures.norms([parameters[index].detach() for index in indices])
        for index, norm in zip(indices, norms, strict=True):
            if norm is not None:
                yield "norm_after", index, norm

    # what has arrived

    def _receive(self, received: list[Any]) -> None:
        """Write all that is known of the step; called when the figures are on the host, at a later
        step perhaps."""
        plan, states = self.plan, self._flags
        n = len(self._groups)
        norms_of_more = received[len(received) - len(self._more) :]
        for (category, name), norm in zip(self._more, norms_of_more, strict=True):
            self._records.other(category, name, self.start_ns, float(norm[0]))
        self._add_data_flags(received[:n])
        for index, flags in self._gradients.flags(received[n:]):
            states[index] = states.get(index, 0) | flags
        arrays_of: dict[int, dict[str, Any]] = {index: {} for index in self._due}
        for (category, index), place in self._places.items():
            arrays_of.setdefault(index, {})[category] = received[place]
        for index, arrays in arrays_of.items():
            states[index] = states.get(index, 0) | self._write_figures(index, arrays)
        is_broken = any(flags & _BROKEN for flags in states.values())
        if is_broken and plan.is_finite and any(flags & _DATA for flags in states.values()):
            self._alarm(before=False)
        plan.is_finite = not is_broken
        if self._broken:
            self._add_broken(states)
        nones = self._gradients.none
        if nones != plan.none:
            self._add_not_sampled(states, nones)
        for index, state in states.items():
            self._state(index, state | (GRAD_NONE if nones[index] else 0), self.start_ns)
        self._parameters = self._copies = []
        self.due = {}
        self._differences = {}

    def _add_broken(self, states: dict[int, int]) -> None:
        """Add the flags that an alarm has found."""
        for index, (data, gradient) in self._broken.items():
            state = states.get(index)
            if state is None:
                state = max(self.plan.watched[index].state, 0)
                if gradient:
                    state &= ~GRAD_BITS
            states[index] = state | data | gradient

    def _add_not_sampled(self, states: dict[int, int], nones: list[bool]) -> None:
        """Add the states of those that have or lack a gradient now and are not sampled: all else is
        as it was."""
        for index, (parameter, none) in enumerate(zip(self.plan.watched, nones, strict=True)):
            if index in states or parameter.state < 0:
                continue
            if none != bool(parameter.state & GRAD_NONE):
                states[index] = parameter.state & ~GRAD_BITS
        self.plan.none = nones

    def _state(self, index: int, state: int, time_ns: int) -> None:
        parameter = self.plan.watched[index]
        if state != parameter.state and not parameter.why_not:
            parameter.state = state
            self._records.flags(parameter, "state", time_ns, state)

    def _add_data_flags(self, samples: list[Any]) -> None:
        for group, elements in zip(self._groups, samples, strict=True):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8, copy=False), group.starts)
            for index, code in zip(group.at, codes.tolist(), strict=True):
                flags = self._flags.get(index, 0) | self._figures.data_flags(code)
                if code & NOT_SAME:
                    flags |= CHANGED
                elif self.plan.watched[index].is_whole:
                    flags |= SAME
                self._flags[index] = flags

    def _write_figures(self, index: int, arrays: dict[str, Any]) -> int:
        """Write the figures of a parameter; returns the flags that they add."""
        parameter, records, figures = self.plan.watched[index], self._records, self._figures
        values = {
            category: float(array[0]) for category, array in arrays.items() if category != "digest"
        }
        flags = figures.data_flags(int(values.get("codes", 0)))
        if "changed" in values:
            flags |= CHANGED if values["changed"] else SAME
        norm_after = values.get("norm_after", 0.0)
        if math.isnan(norm_after):
            flags |= NAN
        elif math.isinf(norm_after):
            flags |= INF
        if "update_norm" in values and index in self._digests:
            update_norm = self._exact_update(index, values["update_norm"])
            values["update_norm"] = update_norm
            data = self._parameters[index]
            if not math.isfinite(update_norm) and figures.is_readable(data):
                flags |= figures.data_flags(int(figures.codes_of_all(data.detach())))
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
            gradient = self._gradients.of(index) if before else None
            gradient_flags = 0
            if gradient is not None:
                gradient_flags = figures.gradient_flags(int(figures.codes_of_all(gradient)))
            # the step before did it, unseen
            if flags and before and parameter.state >= 0 and not parameter.state & _DATA:
                self._state(index, parameter.state | flags, plan.last_ns)
            if flags or gradient_flags:
                self._broken[index] = flags, gradient_flags

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


class Gradients:
    """Reads them: whether there are any, samples of some, norms of some.

    Args:
        sampled: Places of those that are sampled; those that have one for the first time are too.
        in_turn: Places of those whose norm is taken.
        scale: A tensor that they are still to be divided by, or None.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Sequence[Any],
        sampled: Sequence[int],
        in_turn: Sequence[int],
        scale: Any,
        figures: Figures,
    ) -> None:
        self._plan = plan
        self._scale = scale
        self._figures = figures
        pairs = zip(parameters, plan.watched, strict=True)
        self._gradients = [None if watched.why_not else p.grad for p, watched in pairs]
        # of each parameter, whether it has none
        self.none = [
            gradient is None and not watched.why_not
            for gradient, watched in zip(self._gradients, plan.watched, strict=True)
        ]
        indices = [*sampled]
        if self.none != plan.none:  # some have one for the first time, or again
            changes = enumerate(zip(self.none, plan.none, strict=True))
            indices += [index for index, (none, was_none) in changes if was_none and not none]
        # the first is where NaN of a loss arrives
        for index, gradient in enumerate(self._gradients):
            if gradient is not None:
                indices.append(index)
                break
        self._empty: list[int] = []
        groups: dict[tuple[Any, Any], list[tuple[int, Any]]] = {}
        for index in dict.fromkeys(indices):
            values = self._values(index)
            if values is None:
                continue
            if values.numel():
                groups.setdefault((values.device, values.dtype), []).append((index, values))
            else:
                self._empty.append(index)
        self._samples = [self._sample(group) for group in groups.values()]
        # tensors to be brought to the host: codes of the sampled elements
        self.codes = [codes for _, _, _, codes in self._samples]
        # on the CPU, a sampled element is NaN or Inf
        self.is_broken = any(
            type(codes) is np.ndarray and codes.max() > NOT_ZERO for codes in self.codes
        )
        self._due = {}
        for index in in_turn:
            gradient = self.of(index)
            if gradient is not None and gradient.numel():
                self._due[index] = gradient
        self._norms = figures.norms(list(self._due.values()))

    def of(self, index: int) -> Any:
        """A gradient's values; of a sparse one, those with the same place added up. None: it has
        none, or is of no known layout."""
        gradient = self._gradients[index]
        if gradient is not None and gradient.is_sparse:
            return gradient.coalesce().values()
        return self._values(index)

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
        tensors, starts, whole, start = [], [], [], 0
        for index, values in pairs:
            parameter = watched[index]
            is_alike = (
                parameter.place is not None
                and values.stride() == parameter.stride
                and values.shape == parameter.meta[4]
            )
            place = parameter.place if is_alike else figures.place(values)
            tensors.append((values, place))
            starts.append(start)
            count = place[0] if place is not None else min(values.numel(), figures.count)
            whole.append(count == values.numel())
            start += count
        sample = figures.sample(tensors, self._plan.n)
        return [index for index, _ in pairs], starts, whole, figures.codes(sample)

    def figures(self) -> Iterator[tuple[str, int, Any]]:
        """The figures to be known of those whose turn it is: category, place, tensor."""
        for (index, gradient), norm in zip(self._due.items(), self._norms, strict=True):
            if norm is not None:
                if self._scale is not None:
                    norm = norm / self._scale.to(norm.device)
                yield "grad_norm", index, norm
            if gradient.device.type != "cpu" and self._figures.is_readable(gradient):
                yield "grad_codes", index, self._figures.codes_of_all(gradient)

    # what has arrived

    def flags(self, samples: list[Any]) -> Iterator[tuple[int, int]]:
        """Place and flags of each that was sampled."""
        for (indices, starts, whole, _), elements in zip(self._samples, samples, strict=False):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8, copy=False), starts)
            for index, is_whole, code in zip(indices, whole, codes.tolist(), strict=True):
                flags = self._figures.gradient_flags(code)
                if is_whole and not code:
                    flags |= GRAD_ZERO
                yield index, flags
        for index in self._empty:
            yield index, GRAD_ZERO

    def exact(self, index: int, values: dict[str, float]) -> tuple[int, float | None]:
        """The flags of a gradient whose turn it is, and its norm where that of float32 is not
        it."""
        figures = self._figures
        if "grad_codes" in values:
            code = int(values["grad_codes"])
            return figures.gradient_flags(code) | (0 if code & NOT_ZERO else GRAD_ZERO), None
        gradient = self._due.get(index)
        if gradient is None or not figures.is_readable(gradient):
            return 0, None
        norm = values.get("grad_norm", 0.0)
        if norm > 0 and math.isfinite(norm):
            return GRAD_NOT_ZERO, None
        code = int(figures.codes_of_all(gradient))
        exact_norm = None
        # its squares are too small or too large for float32
        if code == NOT_ZERO and "grad_norm" in values:
            scale = 1.0 if self._scale is None else float(self._scale)
            exact_norm = figures.exact_norm(gradient) / scale
        return figures.gradient_flags(code) | (0 if code & NOT_ZERO else GRAD_ZERO), exact_norm
