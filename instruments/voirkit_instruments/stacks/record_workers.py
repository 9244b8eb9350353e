"""Which process is which worker of a loader: a mark in the trace for each that is started. Checked with torch 2.1 to 2.13."""

from __future__ import annotations

from voirkit.intercept import Patches, ThreadState
from voirkit.probes.around import Around
from voirkit.trace import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_ITERATOR = "_MultiProcessingDataLoaderIter"


class Workers:
    """Watches loaders start their workers.

    Args:
        warn: Told if that is not possible.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._patches, self._warn = Patches(), warn
        self._patches.when("torch.utils.data.dataloader", self._put, self._off)

    def _put(self, module: ModuleType) -> None:
        name = f"{module.__name__}.{_ITERATOR}.__init__"
        here = ThreadState()
        around = Around(here, 0, _enter, _leave, ("self",))
        if not self._patches.around(name, getattr(getattr(module, _ITERATOR, None), "__init__", None), around):
            self._off(name, self._patches.table[name])

    def _off(self, name: str, why: str) -> None:
        self._warn(f"--flame: {name} is not watched: it {why.rstrip('.')}. Loader workers are called children.")

    def remove(self) -> None:
        """Put all back as it was."""
        self._patches.remove()


def _enter(iterator: Any) -> int:
    return 1


def _leave(began: int, was: int, iterator: Any) -> None:
    try:
        for number, process in enumerate(iterator._workers):
            recorder.mark(recorder.name("flame", "worker", kind="mark", value="pid"), recorder.now(), _arguments(number), process.pid)
    except Exception:  # it has started none, or is another's
        pass


def _arguments(number: int) -> int:
    return recorder.arguments({"worker": number})
