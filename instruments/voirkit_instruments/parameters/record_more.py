"""What ``--parameters-of`` adds to looks: norms of buffers of the models, and of the state that optimizers keep for parameters."""

from __future__ import annotations

import weakref

from voirkit_instruments.steps.tensor_memory import is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

    from voirkit_instruments.parameters.record_names import Models
    from voirkit_instruments.parameters.record_plan import Plan

BUFFERS, STATE = "buffers", "state"
KINDS = (BUFFERS, STATE)


class More:
    """Finds them.

    Args:
        kinds: ``buffers``, ``state`` or both.
        models: The models.
        torch: The module.
    """

    def __init__(self, kinds: Collection[str], models: Models, torch: Any) -> None:
        self._kinds, self._models, self._torch = kinds, models, torch
        self._buffers: list[tuple[str, Any]] = []  # names, and weakly what they are
        self._buffers_of = -1

    def due(self, plan: Plan, due: Mapping[int, Any], optimizer: Any) -> Iterator[tuple[str, str, Any]]:
        """Of the step that has just been made: category, name, tensor."""
        if STATE in self._kinds:
            for at, parameter in due.items():
                for key, value in list(dict.get(optimizer.state, parameter, {}).items()):
                    if self._is_plain(value):
                        yield "state_norm", f"{plan.watched[at].name.full}:{key}", value
        if BUFFERS in self._kinds and plan.ordinal == 0:
            if self._buffers_of != self._models.changes:
                self._buffers_of = self._models.changes
                self._buffers = [(name, weakref.ref(one)) for name, one in self._models.buffers()]
            for at, (name, ref) in enumerate(self._buffers):
                buffer = ref() if plan.n == 0 or at % plan.every == plan.n % plan.every else None
                if self._is_plain(buffer):
                    yield "buffer_norm", name, buffer

    def _is_plain(self, value: Any) -> bool:
        torch = self._torch
        if type(value) is not torch.Tensor and type(value).__name__ != "Buffer":
            return False
        return is_readable(torch, value) and value.numel() > 0 and value.dtype.is_floating_point
