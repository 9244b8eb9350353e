"""What is not known of processes that the program started itself and that trained: a line each, with what to type."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from voirkit.analysis.document import Rank

# What looks at the process that voirkit started, and at no other.
_THERE_ALONE = ("--checks", "--parameters", "--torch-profile", "--memory-snapshot", "--flame")
_EACH = "All of it in each rank: torchrun -m voirkit SCRIPT"


def not_recorded(manifest: Mapping[str, Any], ranks: Sequence[Rank], world_size: int, forked: Collection[tuple[str, int]]) -> Iterator[str]:
    """The lines, for a run whose ranks no launcher started outside of it.

    Args:
        manifest: ``run.json``.
        ranks: What was recorded.
        world_size: How many ranks there were, as its processes were told.
        forked: (host, pid) of the processes that were forked: they are looked at as the one that forked them was.
    """
    if manifest.get("world_size", 1) > 1:
        return
    trained = [rank for rank in ranks if len(rank.steps.train)]
    known = {rank.rank for rank in trained if not rank.alone}
    if world_size > 1 and known and len(known) < world_size:
        yield f"{world_size} ranks train, of which {len(known)} {'is' if len(known) == 1 else 'are'} recorded here. {_EACH}"
    own = (manifest.get("host"), manifest.get("pid"))
    others = [process for rank in trained for process in rank.processes if process != own and process not in forked]
    words = {str(word).partition("=")[0] for word in manifest.get("voirkit_options") or ()}
    flags = [flag for flag in _THERE_ALONE if flag in words]
    if others and flags:
        started = f"the processes that the script started ({len(others)} that train)"
        yield f"{', '.join(flags)}: not in {started}; their steps are recorded. {_EACH}"


__all__ = ["not_recorded"]
