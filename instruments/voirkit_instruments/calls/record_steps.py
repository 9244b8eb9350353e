"""Which steps' calls are recorded: ``--calls-every N`` and ``--calls-warmup M``. Between them all functions are as they were.

A step begins where the loader is asked for a batch after an optimizer's step; without a loader, where an optimizer's step ends.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NEXT, STEP = 0, 1
# What is called before a batch is asked for, and at the end of each optimizer's step.
PLACES = {NEXT: "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", STEP: "torch.optim.optimizer.Optimizer._optimizer_step_code"}


class Steps:
    """Counts the steps of this process, and switches.

    Args:
        every: Record each so many steps, after the first ``warmup``.
        warmup: So many are all recorded.
        switch: Called when what is recorded changes.

    Attributes:
        step: How many there were before the one that runs.
        is_on: Whether the calls of this one are recorded.
    """

    def __init__(self, every: int, warmup: int, switch: Callable[[bool], None]) -> None:
        self._every, self._warmup, self._switch = every, warmup, switch
        self._trained = self._asked = False  # since the step began
        self.step, self.is_on = 0, True

    def tick(self, kind: int) -> None:
        """The loader is about to be asked for a batch (``NEXT``), or an optimizer's step has ended (``STEP``)."""
        if kind == NEXT:
            if self._trained:
                self._begin()
            self._asked = True
        else:
            if self._trained and not self._asked:
                self._begin()
            self._trained = True

    def _begin(self) -> None:
        self.step += 1
        self._trained = self._asked = False
        wanted = self.step < self._warmup or (self.step - self._warmup) % self._every == 0
        if wanted is not self.is_on:
            self.is_on = wanted
            self._switch(wanted)
