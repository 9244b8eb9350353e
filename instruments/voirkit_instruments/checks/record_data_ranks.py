"""Ranks: at some steps how large their parameters are, and whether anything makes them alike: DistributedDataParallel, or collectives.

Facts: ``world``, how many ranks there are; ``weights`` at the looks of an optimizer; ``parallel`` when a DistributedDataParallel is called;
``collective`` when the program itself sends tensors of more than one number between ranks. Of a single rank nothing is told.
"""

from __future__ import annotations

from zlib import crc32

from voirkit.runs.ranks import rank_and_world_size
from voirkit_instruments.checks.record_norms import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

_MOST = 48  # parameters of which the size is told


class Ranks:
    """What is told of ranks.

    Args:
        facts: Where facts are written.
        torch: The module.
    """

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch
        self._told: set[str] = set()
        self._world = rank_and_world_size()[1]
        if self._world > 1:
            facts.mark("world", None, self._world)

    def enter_parallel(self, *_: Any) -> int:
        """Before ``DistributedDataParallel.forward``."""
        try:
            self._once("parallel")
        except Exception as exc:
            self._facts.failed("a parallel model", exc)
        return 1

    def enter_collective(self, tensor: Any) -> int:
        """Before a collective of the program's own; one number, such as a loss, is none."""
        try:
            if "collective" not in self._told and getattr(tensor, "numel", int)() > 1:
                self._once("collective")
        except Exception as exc:
            self._facts.failed("a collective", exc)
        return 1

    def leave(self, _began: int, _was: int, *_: Any) -> None:
        """After what is only to be known of before."""

    def _once(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._facts.mark(name, self._facts.where())

    def look(self, which: int, n: int, where: str | None, parameters: list[Any]) -> None:
        """At a look of an optimizer.

        Args:
            which: Its number.
            n: How many steps it has done.
            where: The line of the step.
            parameters: All that it holds.
        """
        try:
            if self._world < 2:
                return
            shapes = crc32(repr([tuple(p.shape) for p in parameters]).encode())
            sizes = digests(self._torch, parameters[:_MOST])
            if sizes and min(sizes) >= 0:
                told = ",".join(map(repr, sizes))
                self._facts.mark("weights", where, n, optimizer=which, shapes=shapes, parameters=len(parameters), sizes=told)
        except Exception as exc:
            self._facts.failed("parameters of ranks", exc)
