"""The gradients of one optimizer step: as the step gets them, after backward, unscaling and clipping."""

from __future__ import annotations

import math

import numpy as np

from voirkit_instruments.parameters.record_figures import NOT_ZERO
from voirkit_instruments.parameters.record_rows import GRAD_NOT_ZERO, GRAD_ZERO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from voirkit_instruments.parameters.record_figures import Figures
    from voirkit_instruments.parameters.record_plan import Plan


class Gradients:
    """Reads them: whether there are any, samples of some, norms of some.

    Args:
        plan: What is watched.
        parameters: The parameters, in its order.
        sampled: Places of those that are sampled; those that have one for the first time are too.
        due: Places of those whose norm is taken.
        scale: A tensor that they are still to be divided by, or None.
        figures: What it works with.

    Attributes:
        none: Of each parameter, whether it has none.
        codes: Tensors to be brought to the host: codes of the sampled elements.
        is_broken: On the CPU, a sampled element is NaN or Inf.
    """

    def __init__(
        self, plan: Plan, parameters: Sequence[Any], sampled: Sequence[int], due: Sequence[int], scale: Any, figures: Figures
    ) -> None:
        self._plan, self._scale, self._figures = plan, scale, figures
        watched = plan.watched
        self._gradients = [None if one.why_not else p.grad for p, one in zip(parameters, watched, strict=True)]
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
        self.codes = [codes for _, _, _, codes in self._samples]
        self.is_broken = any(type(codes) is np.ndarray and codes.max() > NOT_ZERO for codes in self.codes)
        self._due = {at: gradient for at in due if (gradient := self.of(at)) is not None and gradient.numel()}
        self._norms = figures.norms(list(self._due.values()))

    def of(self, at: int) -> Any:
        """A gradient's values; of a sparse one, those with the same place added up. None: it has none, or is of no known layout."""
        gradient = self._gradients[at]
        return gradient.coalesce().values() if gradient is not None and gradient.is_sparse else self._values(at)

    def _values(self, at: int) -> Any:
        gradient = self._gradients[at]
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

    def flags(self, found: list[Any]) -> Iterator[tuple[int, int]]:
        """What the samples tell: place and flags."""
        for (ats, starts, whole, _), elements in zip(self._samples, found, strict=False):
            codes = np.bitwise_or.reduceat(elements.astype(np.uint8, copy=False), starts)
            for at, is_whole, code in zip(ats, whole, codes.tolist(), strict=True):
                yield at, self._figures.gradient_flags(code) | (GRAD_ZERO if is_whole and not code else 0)
        for at in self._empty:
            yield at, GRAD_ZERO

    def exact(self, at: int, got: dict[str, float]) -> tuple[int, float | None]:
        """What is known of a gradient whose turn it is: its flags, and its norm where that of float32 is not it."""
        figures = self._figures
        if "grad_codes" in got:
            code = int(got["grad_codes"])
            return figures.gradient_flags(code) | (0 if code & NOT_ZERO else GRAD_ZERO), None
        gradient = self._due.get(at)
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
