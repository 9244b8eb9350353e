"""Which functions of torch ``--checks`` stands around to see data and ranks: the one table of them. Checked with torch 2.1 and 2.15.

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

from voirkit.intercept import ThreadState, when_there
from voirkit.processes import inherit
from voirkit_instruments.checks.record_data_epochs import Epochs
from voirkit_instruments.checks.record_data_ranks import Ranks
from voirkit_instruments.checks.record_data_workers import Drawing
from voirkit_instruments.loader.record_operations import LoaderPatches
from voirkit_instruments.steps.torch_functions import as_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

BEGIN = "voirkit_instruments.checks.record_data:begin"
_ANYWHERE = 9  # these functions are rarely called: nothing keeps one of them from being told

_here: DataFacts | None = None


class DataFacts:
    """The patches of ``--checks`` on loaders, their workers, and ranks.

    Args:
        facts: Where facts are written.
        torch: The module.
        ov: The overseer; None in a process that was started anew.
    """

    def __init__(self, facts: Facts, torch: ModuleType, ov: Any) -> None:
        self._facts, self._ov = facts, ov
        self._patches = LoaderPatches(type("ThreadState", (ThreadState,), {})())  # only its level is asked
        self._drawing = Drawing(facts, torch)
        self._epochs = Epochs(facts, torch, self._drawing)
        self._ranks = Ranks(facts, torch)
        self.torch = torch

    def put(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        global _here
        for module, put in (
            ("torch.utils.data.dataloader", self._put_loader),
            ("torch.utils.data._utils.fetch", self._put_fetch),
            ("torch.nn.parallel.distributed", self._put_parallel),
            ("torch.distributed.distributed_c10d", self._put_collectives),
        ):
            when_there(module, put, self._off)
        self._facts.after_look.append(self._ranks.look)
        _here = self
        if self._ov is not None:
            inherit.watch(BEGIN, offered)

    def remove(self) -> None:
        """Put all back as it was."""
        global _here
        _here = None
        inherit.unwatch(BEGIN)
        self._patches.remove()
        table = self._patches.patches.table
        if self._ov is not None:
            self._ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())

    @property
    def drawing(self) -> Drawing:
        """What workers draw."""
        return self._drawing

    def _off(self, name: str, why: str) -> None:
        self._patches.patches.table[name] = why
        if self._ov is not None:
            self._ov.warn(f"checks: {name} is not watched: it {why.rstrip('.')}.")

    def _put(
        self, module: ModuleType, path: str, enter: Any, leave: Any, *passed: Any, value: bool = False, compiled: bool = False
    ) -> None:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        name = f"{module.__name__}.{path}"
        before, after = passed
        patch = as_function(enter), as_function(leave), _ANYWHERE, before, after, value
        if not self._patches.record_around(name, found, *patch, anywhere=compiled):
            self._off(name, self._patches.patches.table[name])

    def _put_loader(self, module: ModuleType) -> None:
        epochs, self_ = self._epochs, ("self",)
        self._put(module, "DataLoader.__init__", epochs.enter_made, epochs.leave_made, ("shuffle",), self_)
        self._put(module, "_BaseDataLoaderIter.__init__", epochs.enter_iterator, epochs.leave, ("self", "loader"), ())
        self._put(module, "_BaseDataLoaderIter._reset", epochs.enter_again, epochs.leave, ("self", "first_iter"), ())
        self._put(module, "_BaseDataLoaderIter._next_index", epochs.enter, epochs.leave_index, (), self_, value=True)
        self._put(module, "_BaseDataLoaderIter.__next__", epochs.enter, epochs.leave_next, (), self_, value=True)
        self._put(module, "DataLoader.__len__", epochs.enter, epochs.leave_len, (), self_, value=True)

    def _put_fetch(self, module: ModuleType) -> None:
        drawing, self_ = self._drawing, ("self",)
        self._put(module, "_BaseDatasetFetcher.__init__", drawing.enter_made, drawing.leave, ("self", "dataset"), ())
        for kind in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            self._put(module, f"{kind}.fetch", drawing.enter, drawing.leave_fetch, (), self_, value=True)

    def _put_parallel(self, module: ModuleType) -> None:
        self._put(module, "DistributedDataParallel.forward", self._ranks.enter_parallel, self._ranks.leave, (), (), compiled=True)

    def _put_collectives(self, module: ModuleType) -> None:
        ranks = self._ranks
        for name, tensor in (("all_reduce", "tensor"), ("broadcast", "tensor"), ("all_gather", "tensor"), ("reduce", "tensor")):
            self._put(module, name, ranks.enter_collective, ranks.leave, (tensor,), (), compiled=True)


# in processes that multiprocessing starts anew


def offered() -> dict[str, Any] | None:
    """What a process needs that is started anew."""
    return None if _here is None else {"making": _here.drawing.making}


def begin(offer: dict[str, Any]) -> None:
    """In such a process: see what its workers draw, once it has torch."""
    from voirkit.errors import tell
    from voirkit.imports import when_imported
    from voirkit.trace import recorder
    from voirkit_instruments.checks.record_facts import Facts

    if _here is not None or not recorder.is_recording():
        return
    facts = Facts(recorder, tell)

    def imported(torch: ModuleType) -> None:
        if _here is None:
            data = DataFacts(facts, torch, None)
            data.put()
            data.drawing.making = offer["making"]

    when_imported("torch", imported)
