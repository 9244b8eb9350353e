"""A look at the parameters of one optimizer step: samples of all before and after it, all figures of those whose turn it is."""

from __future__ import annotations

import time

import numpy as np

from voirkit_instruments.parameters_record import (
    CHANGED,
    GRAD_INF,
    GRAD_NAN,
    GRAD_NONE,
    GRAD_NOT_ZERO,
    GRAD_ZERO,
    INF,
    NAN,
    SAME,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from voirkit_instruments.parameters_figures import Figures
    from voirkit_instruments.parameters_later import Later
    from voirkit_instruments.parameters_plan import Plan
    from voirkit_instruments.parameters_record import Records

_NOT_SAME, _NOT_ZERO, _IS_NAN, _IS_INF = 1, 2, 4, 8  # of an element
_AWAY = 40503  # the sampled places wander by so many elements a step


class Look:
    """A look at one step; it is made before the step.

    Args:
        plan: What is watched.
        parameters: The parameters themselves, in the order of the plan. Kept until the step is over.
        torch: The module.
        figures, later, records: What it works with.

    Attributes:
        start_ns: When the step began.
    """

    def __init__(self, plan: Plan, parameters: list[Any], torch: Any, figures: Figures, later: Later, records: Records) -> None:
        self.plan, self.start_ns, self.n = plan, 0, plan.n
        self._parameters, self._torch, self._figures, self._later, self._records = parameters, torch, figures, later, records
        self._due = plan.due()
        self._sampled = [self._sample(group.at, parameters) for group in plan.groups]
        self._copies = [parameters[at].detach().clone() for at in self._due]
        self._norms = figures.norms(self._copies)
        self._scale = self._scale_of = None
        self._read_gradients()

    def scaled(self, scale: Any) -> None:
        """The gradients are still scaled: the step itself divides them by this (AMP with fused optimizers)."""
        self._scale = scale

    # gradients

    def _read_gradients(self) -> None:
        watched = self.plan.watched
        self._none = [False] * len(watched)
        self._empty: set[int] = set()  # sparse gradients without an element
        dense: dict[int, Any] = {}
        sampled: dict[tuple[Any, Any], list[tuple[int, Any]]] = {}
        for at, parameter in enumerate(self._parameters):
            one = watched[at]
            gradient = parameter.grad if one.why_not == "" else None
            if gradient is None:
                self._none[at] = one.why_not == ""
                continue
            if gradient.layout is not self._torch.strided:
                if not gradient.is_sparse:
                    continue
                gradient = gradient._values()
            if not gradient.numel():
                self._empty.add(at)
                continue
            dense[at] = gradient
            sampled.setdefault((gradient.device, gradient.dtype), []).append((at, gradient))
        self._gradient_samples = [self._sample_gradients(pairs) for pairs in sampled.values()]
        due = [at for at in self._due if at in dense]
        wanted = [self._whole(at, dense[at]) for at in due]
        norms = self._figures.norms(wanted)
        self._grad_norms = dict(zip(due, norms, strict=True))
        self._grad_exact = {at: self._told_apart(gradient) for at, gradient in zip(due, wanted, strict=True)}

    def _whole(self, at: int, values: Any) -> Any:
        """The gradient whose norm is taken; of a sparse one the values with the same place added up."""
        gradient = self._parameters[at].grad
        return gradient.coalesce().values() if gradient.is_sparse else values

    def _told_apart(self, gradient: Any) -> Any:
        """What a norm leaves open: whether all is zero, nan, inf. On the CPU it is looked only where the norm says so."""
        return gradient if gradient.device.type == "cpu" else self._codes_of(gradient)

    def _sample_gradients(self, pairs: list[tuple[int, Any]]) -> tuple[list[int], list[int], list[bool], Any]:
        """(places, starts of their samples, whether each is complete, codes of the elements)"""
        views, starts, whole, start = [], [], [], 0
        watched = self.plan.watched
        for at, gradient in pairs:
            one = watched[at]
            place = one.place if one.place is not None and gradient.stride() == one.stride else self._figures.place(gradient)
            if place is None:
                view = gradient.reshape(-1)[:64]
                count = len(view)
            else:
                count, apart = place
                view = gradient.as_strided((count,), (apart,), gradient.storage_offset() + self.n * _AWAY % apart)
            views.append(view)
            starts.append(start)
            whole.append(count == gradient.numel())
            start += count
        sample = self._torch.cat(views)
        return [at for at, _ in pairs], starts, whole, self._codes(sample) + self._marked(sample != 0, _NOT_ZERO)

    def _codes(self, elements: Any) -> Any:
        """Which elements are nan or inf."""
        torch = self._torch
        if not (elements.dtype.is_floating_point or elements.dtype.is_complex):
            return torch.zeros(elements.shape, dtype=torch.uint8, device=elements.device)
        if elements.element_size() == 1:  # float8: little is written for it
            elements = elements.float()
        return self._marked(torch.isnan(elements), _IS_NAN) + self._marked(torch.isinf(elements), _IS_INF)

    def _marked(self, which: Any, code: int) -> Any:
        return which.view(self._torch.uint8) * code

    def _codes_of(self, tensor: Any) -> Any:
        """Codes of a whole tensor, as one number on its device."""
        torch = self._torch
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return self._marked((tensor != 0).any(), _NOT_ZERO)
        wide = tensor.float() if tensor.element_size() == 1 else tensor
        found = ((torch.isnan(wide), _IS_NAN), (torch.isinf(wide), _IS_INF), (wide != 0, _NOT_ZERO))
        return sum(self._marked(which.any(), code) for which, code in found)

    # data

    def _sample(self, ats: Sequence[int], parameters: list[Any]) -> Any:
        watched, n = self.plan.watched, self.n
        views = []
        for at in ats:
            parameter = parameters[at]
            count, apart = watched[at].place  # type: ignore[misc]
            views.append(parameter.as_strided((count,), (apart,), parameter.storage_offset() + n * _AWAY % apart))
        return self._torch.cat(views)

    def end(self, end_ns: int, has_walked: bool) -> None:
        """The step is over.

        Args:
            end_ns: When it was.
            has_walked: There was a backward in it (a closure): the gradients are those of now.
        """
        plan, figures = self.plan, self._figures
        if has_walked:
            self._read_gradients()
        codes = []
        for group, before in zip(plan.groups, self._sampled, strict=True):
            after = self._sample(group.at, self._parameters)
            codes.append(self._marked(figures.bits(before) != figures.bits(after), _NOT_SAME) + self._codes(after))
        sent, self._places = [*codes, *(codes for _, _, _, codes in self._gradient_samples)], {}
        for key, tensors in self._figures_of_due():
            if tensors is not None:
                self._places[key] = len(sent)
                sent.append(tensors)
        self._records.step(plan, self.start_ns, end_ns, self.n)
        plan.n += 1
        self._later.bring(sent, self._arrived)

    def _figures_of_due(self) -> Any:
        figures, torch = self._figures, self._torch
        after = [self._parameters[at].detach() for at in self._due]
        self._exact: dict[int, int] = {}  # flags that are known already
        self._digests: dict[int, int] = {}
        floating = []
        for at, copy, data, norm in zip(self._due, self._copies, after, self._norms, strict=True):
            if norm is not None:
                yield ("norm", at), norm
            if at in self._grad_norms and self._grad_norms[at] is not None:
                yield ("grad_norm", at), self._unscaled(self._grad_norms[at])
            if data.device.type != "cpu":
                if at in self._grad_exact:
                    yield ("grad_codes", at), self._grad_exact[at]
                yield ("changed", at), (figures.bits(copy) != figures.bits(data)).any()
                yield ("codes", at), self._codes_of(data)
                if data.device.type == "cuda":
                    yield ("digest", at), figures.digest(data)
            else:
                self._exact[at] = SAME if torch.equal(figures.bits(copy), figures.bits(data)) else CHANGED
                self._digests[at] = figures.digest(data)
            if norm is not None:
                floating.append((at, self._difference(copy, data)))
        for (at, _), norm in zip(floating, figures.norms([difference for _, difference in floating]), strict=True):
            yield ("update_norm", at), norm
        self._differences = {at: difference for at, difference in floating if difference.device.type == "cpu"}

    def _difference(self, copy: Any, data: Any) -> Any:
        """After less before, in the copy's memory; of eight bits in float32."""
        if copy.element_size() == 1:
            return data.float() - copy.float()
        return copy.neg_().add_(data)

    def _unscaled(self, norm: Any) -> Any:
        return norm if self._scale is None else norm / self._scale.to(norm.device)

    # what has arrived

    def _arrived(self, found: list[Any]) -> None:
        """Write all that is known of the step; called when the figures are on the host, at a later step perhaps."""
        plan, records, at_ns = self.plan, self._records, self.start_ns
        states = [GRAD_NONE if none else 0 for none in self._none]
        for at in self._empty:
            states[at] |= GRAD_ZERO
        self._flags_of_data(states, found)
        self._flags_of_gradients(states, found[len(plan.groups) :])
        for at in self._due:
            states[at] |= self._figures_arrived(at, found, states[at])
        for one, state in zip(plan.watched, states, strict=True):
            if state != one.state and not one.why_not:
                one.state = state
                records.flags(one, "state", at_ns, state)
        self._parameters = self._copies = []
        self._differences = self._grad_exact = {}

    def _flags_of_data(self, states: list[int], found: list[Any]) -> None:
        watched = self.plan.watched
        for group, elements in zip(self.plan.groups, found, strict=False):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8), group.starts)
            for at, code in zip(group.at, codes.tolist(), strict=True):
                one, changed = watched[at], CHANGED if code & _NOT_SAME else 0
                if not changed and one.is_whole:
                    changed = SAME
                states[at] |= changed | (NAN if code & _IS_NAN else 0) | (INF if code & _IS_INF else 0)

    def _flags_of_gradients(self, states: list[int], found: list[Any]) -> None:
        for (ats, starts, whole, _), elements in zip(self._gradient_samples, found, strict=False):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8), starts)
            for at, is_whole, code in zip(ats, whole, codes.tolist(), strict=True):
                states[at] |= _grad_flags(code) | (GRAD_ZERO if is_whole and not code else 0)

    def _figures_arrived(self, at: int, found: list[Any], state: int) -> int:
        """Write the figures of a parameter; what flags they add."""
        one, records, at_ns = self.plan.watched[at], self._records, self.start_ns
        got = {key: float(found[place][0]) for (key, of), place in self._places.items() if of == at and key != "digest"}
        flags = self._exact.get(at, 0)
        if "changed" in got:
            flags |= CHANGED if got["changed"] else SAME
        flags |= _data_flags(int(got.get("codes", 0)))
        if at in self._grad_norms or "grad_codes" in got:
            flags |= self._exact_gradient(at, got)
        if "update_norm" in got:
            self._exact_update(at, got)
            if not np.isfinite(got["update_norm"]) and at in self._exact:
                flags |= _data_flags(int(self._codes_of(self._parameters[at].detach())))
        for category in ("norm", "grad_norm", "update_norm"):
            if category in got:
                records.figure(one, category, at_ns, got[category])
        if at in self._digests:
            one.digest = self._digests[at]
            records.digest(one, at_ns, one.digest, "crc32")
        elif ("digest", at) in self._places:
            one.digest = int(found[self._places["digest", at]].view(np.int64)[0])
            records.digest(one, at_ns, one.digest, "sum64")
        return flags

    def _exact_gradient(self, at: int, got: dict[str, float]) -> int:
        if "grad_codes" in got:
            code = int(got["grad_codes"])
            return _grad_flags(code) | (0 if code & _NOT_ZERO else GRAD_ZERO)
        gradient = self._grad_exact[at]
        norm = got.get("grad_norm")
        if norm is not None and norm > 0 and np.isfinite(norm):
            return GRAD_NOT_ZERO
        code = int(self._codes_of(gradient))
        if norm is not None and code == _NOT_ZERO:  # too small or too large for float32
            got["grad_norm"] = self._figures.exact_norm(gradient) / (1.0 if self._scale is None else float(self._scale))
        return _grad_flags(code) | (0 if code & _NOT_ZERO else GRAD_ZERO)

    def _exact_update(self, at: int, got: dict[str, float]) -> None:
        difference = self._differences.get(at)
        if difference is None:
            return
        if (got["update_norm"] == 0 and self._exact[at] & CHANGED) or np.isinf(got["update_norm"]):
            got["update_norm"] = self._figures.exact_norm(difference)

    @staticmethod
    def last(plan: Plan, figures: Figures, later: Later, records: Records) -> None:
        """Write the norms and digests of all that are still there, at the end."""
        at_ns = time.perf_counter_ns()
        alive = [(one, p.detach()) for one in plan.watched if not one.why_not and (p := one.ref()) is not None and p.numel()]
        norms = figures.norms([data for _, data in alive])
        known = [(one, norm) for (one, _), norm in zip(alive, norms, strict=True) if norm is not None]

        def arrived(found: list[Any]) -> None:
            for (one, _), value in zip(known, found, strict=True):
                records.figure(one, "norm", at_ns, float(value[0]))

        later.bring([norm for _, norm in known], arrived)
        for one, data in alive:
            if data.device.type == "cpu":
                records.digest(one, at_ns, figures.digest(data), "crc32")


def _grad_flags(code: int) -> int:
    return (GRAD_NOT_ZERO if code & _NOT_ZERO else 0) | (GRAD_NAN if code & _IS_NAN else 0) | (GRAD_INF if code & _IS_INF else 0)


def _data_flags(code: int) -> int:
    return (NAN if code & _IS_NAN else 0) | (INF if code & _IS_INF else 0)
