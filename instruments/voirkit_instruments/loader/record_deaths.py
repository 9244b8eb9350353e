"""Workers that were killed: with which batch, and at which of its samples, as far as their own records tell."""

from __future__ import annotations

import os
import signal

from voirkit_instruments.loader.record_spans import UNKNOWN, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.loader.record_spans import Episode, Recording

_LAST = 1 << 14  # records of a worker that are looked at


class Deaths:
    """Records and tells of workers that are gone.

    Args:
        recording: Where records go.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._died = recording.name("worker", "died", "batch")
        self._told: set[int] = set()

    def look(self, iterator: Any, episode: Episode) -> None:
        """A request has found no batch: see which worker is gone. torch has looked already, so that asking changes nothing."""
        at = now()
        for worker, process in enumerate(iterator._workers):
            code = process.exitcode
            if code and process.pid not in self._told:
                self._told.add(process.pid)
                waiting = [batch for batch, info in iterator._task_info.items() if info[0] == worker and len(info) == 1]
                self._tell(at, episode, worker, process.pid, code, waiting)

    def _tell(self, at: int, episode: Episode, worker: int, pid: int, code: int, waiting: list[int]) -> None:
        recording = self._recording
        batch, done = self._doing(pid)
        sample = None
        if batch in episode.tasks:
            indices = episode.tasks[batch]
            if type(indices) is tuple and len(indices) == 2:  # torchdata sends more along
                indices = indices[0]
            listed = indices if isinstance(indices, list) else [indices]
            sample = listed[done] if done < len(listed) and type(listed[done]) is int else None
        else:
            batch = min(waiting, default=UNKNOWN)
        more = {"worker": worker, "pid": pid, "exit_code": code, "sample": sample}
        recording.span(self._died, at, at, recording.arguments({**episode.place, **more}), batch)
        how = f"was killed by {_signal(-code)}" if code < 0 else f"exited with code {code}"
        doing = "" if batch == UNKNOWN else f" with batch {batch}" + ("" if sample is None else f", sample {sample}")
        recording.warn(f"loader: worker {worker} (pid {pid}) of loader {episode.place['loader']} {how}{doing}.")

    def _doing(self, pid: int) -> tuple[int, int]:
        """The batch that a process took last, by its own records, and how many samples it has read since."""
        folder = self._recording.folder()
        if folder is None:
            return UNKNOWN, 0
        from voirkit.trace.following import Following

        batch, done = UNKNOWN, 0
        for fresh in Following(os.path.dirname(folder), at_once=_LAST, pid=pid).look():
            names = fresh.followed.tables.names
            for number, value in zip(fresh.records["name"].tolist(), fresh.records["value"].tolist(), strict=True):
                name = names.get(number)
                if name is not None and name.kind == "loader":
                    if (name.category, name.name) == ("worker", "idle"):
                        batch, done = value, 0
                    elif (name.category, name.name) == ("data", "item"):
                        done += 1
        return batch, done


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
