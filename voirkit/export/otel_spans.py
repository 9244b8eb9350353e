"""Rows of a run as the spans of one OpenTelemetry trace: with ids, with parents, and marks as events of the span they happened in.

Ids follow from what is recorded, so that exporting a run twice, or parts of it, gives the same ones and a collector can tell what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from voirkit.export.nesting import Nesting
from voirkit.export.values import FLOW
from voirkit.report.labels import Labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.report.labels import Key
    from voirkit.runs.opened import Run

_FLOWS = 100_000  # that may go on at a time; memory must not grow with the run


class Span:
    """One span. ``attributes`` may hold what a recorded argument may be: numbers, text, booleans, None; times are in ns since the epoch."""

    __slots__ = ("attributes", "end_ns", "events", "id", "link", "name", "parent", "process", "start_ns")

    def __init__(self, process: Key, id: bytes, parent: bytes, name: str, times: tuple[int, int], attributes: dict[str, Any]) -> None:
        self.process, self.id, self.parent, self.name, self.attributes = process, id, parent, name, attributes
        self.start_ns, self.end_ns = times
        self.events: list[tuple[int, str, Mapping[str, Any]]] = []
        self.link: bytes | None = None  # id of the span that leads to this one


class Thread:
    """What is open in one thread, or beside it (a device)."""

    __slots__ = ("attributes", "last", "nesting", "repeated")

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.nesting: Nesting[Span] = Nesting()
        self.last, self.repeated = "", 0


class Spans:
    """The trace of a run.

    Beside the recorded spans it has one for the run, which is the root, and one for each process, within that of its parent process.
    ``left_out`` is the number of counters' values: those are no spans.
    """

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self._labels = Labels(run)
        self.left_out = 0
        self.script = script_name(manifest) or "python"
        identity = [manifest.get("host"), manifest.get("pid"), manifest.get("clocks"), manifest.get("job")]
        self.trace_id = blake2b(repr(identity if manifest else run.path).encode(), digest_size=16).digest()
        self._manifest = manifest

    def of(self, batches: Iterable[Iterable[tuple[Any, ...]]]) -> Iterator[Span]:
        """Make spans of the rows, which come as ``Nesting`` asks; each is given when it is over."""
        threads: dict[tuple[Key, int, str], Thread] = {}
        processes: dict[Key, Span] = {}
        flows: dict[Any, bytes] = {}
        for batch in batches:
            for kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments in batch:
                key = host, rank, pid
                if kind == "counter":
                    self.left_out += len(arguments)
                    continue
                process = processes.get(key)
                if process is None:
                    process = processes[key] = self._process(key, start_ns)
                process.end_ns = max(process.end_ns, start_ns + duration_ns)
                moment = kind in ("mark", "meta")
                beside = "" if moment or kind in ("span", "phase", "loader") else kind
                thread = threads.get((key, tid, beside))
                if thread is None:
                    thread = threads[key, tid, beside] = Thread({"thread.id": tid, "thread.name": self._labels.thread(key, tid)})
                for _, _, span in thread.nesting.ended(start_ns):
                    yield span
                holder = thread.nesting.holder(start_ns + duration_ns)
                if moment and holder is not None:
                    holder.events.append((start_ns, name, {"voirkit.category": category, **arguments}))
                    continue
                attributes = {
                    **thread.attributes,
                    "voirkit.category": category,
                    **({"voirkit.kind": kind} if kind != "span" else {}),
                    **arguments,
                }
                id = self._id(thread, f"{host} {rank} {pid} {tid} {kind} {category} {name} {start_ns} {duration_ns}")
                span = Span(key, id, (holder or process).id, name, (start_ns, start_ns + duration_ns), attributes)
                if FLOW in arguments:
                    span.link = flows.pop(arguments[FLOW], None)
                    flows[arguments[FLOW]] = id
                    if len(flows) > _FLOWS:
                        del flows[next(iter(flows))]
                if moment:
                    yield span
                else:
                    thread.nesting.add(start_ns, span.end_ns, span)
        for thread in threads.values():
            for _, _, span in thread.nesting.ended():
                yield span
        yield from self._tree(processes)

    def resource(self, process: Key) -> dict[str, Any]:
        """What the spans of a process have in common, in OpenTelemetry's words."""
        host, rank, pid = process
        found = self._labels.processes.get(process)
        return {
            "service.name": self.script,
            "service.instance.id": f"{host}-r{rank}-{pid}",
            "host.name": host,
            "process.pid": pid,
            **({} if found is None else {"process.parent_pid": found.ppid}),
            "process.title": self._labels.process(process),
            "voirkit.rank": rank,
            "telemetry.sdk.name": "voirkit",
            "telemetry.sdk.language": "python",
        }

    def _id(self, thread: Thread, what: str) -> bytes:
        if what != thread.last:
            thread.last, thread.repeated = what, 0
        else:  # a clock may stand still
            thread.repeated += 1
            what = f"{what} {thread.repeated}"
        return self._hash(what)

    def _hash(self, what: str) -> bytes:
        return blake2b(what.encode("utf-8", "backslashreplace"), digest_size=8, key=self.trace_id).digest()

    def _process(self, key: Key, start_ns: int) -> Span:
        id = self._hash("process {} {} {}".format(*key))
        return Span(key, id, b"", self._labels.process(key), (start_ns, start_ns), {"voirkit.kind": "process"})

    def _tree(self, processes: dict[Key, Span]) -> Iterator[Span]:
        """The spans of the processes and of the run, now that all is known of them."""
        if not processes:
            return
        first = min(processes.values(), key=lambda span: span.start_ns)
        times = first.start_ns, max(span.end_ns for span in processes.values())
        main = (self._manifest.get("host"), self._manifest.get("rank"), self._manifest.get("pid"))
        where = next((key for key in processes if key == main), first.process)
        root = Span(where, self._hash("run"), b"", f"voirkit {self.script}", times, {"voirkit.kind": "run"})
        command = self._manifest.get("command")
        if command:
            root.attributes["voirkit.command"] = " ".join(map(str, command))
        for key, span in processes.items():
            found = self._labels.processes.get(key)
            starter = processes.get((key[0], key[1], found.ppid)) if found is not None and found.ppid != found.pid else None
            span.parent = (starter or root).id
            yield span
        yield root


def script_name(manifest: Mapping[str, Any]) -> str:
    """The script's file name, or the module of ``-m``."""
    command = [str(word) for word in manifest.get("command") or []]
    return command[0].replace("\\", "/").rsplit("/", 1)[-1] if command else ""
