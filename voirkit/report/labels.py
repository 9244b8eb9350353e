"""What the processes and threads of a run are called in other tools."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run


class Labels:
    """Names for people: ``main.py``, ``main.py (rank 1)``, ``main.py (rank 1, node7)``."""

    def __init__(self, run: Run) -> None:
        self.processes = {(process.host, process.pid): process for process in run.processes()}
        self._threads = run.threads()
        self._ranks = len({process.rank for process in self.processes.values()}) > 1
        self._hosts = len({process.host for process in self.processes.values()}) > 1

    def process(self, host: str, pid: int) -> str:
        """The name of a process, with its rank and host where there are several."""
        process = self.processes.get((host, pid))
        name = (process.name if process is not None else "") or f"process {pid}"
        place = [f"rank {process.rank}"] if self._ranks and process is not None else []
        place += [host] if self._hosts else []
        return f"{name} ({', '.join(place)})" if place else name

    def thread(self, host: str, pid: int, tid: int) -> str:
        """The name of a thread."""
        return self._threads.get((host, pid, tid)) or ("MainThread" if tid == pid else f"thread {tid}")
