"""A loader that loads nothing: its workers, queue and waits are worked out on a made-up clock, and recorded as ``--loader`` records them.

The schedule is torch's: batches go to the workers by turns, at most ``prefetch`` for each are under way, and are consumed in order.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

US = 1000
MS = 1000 * US


@dataclass
class Loader:
    """What there is to load; times in milliseconds.

    Attributes:
        operations: (name, time) of what runs on each sample one after the other; the time may be a list by worker.
        inner: Operations that run in the first one, within its time.
        own: Time of ``__getitem__`` before them.
        pause: What the training takes between two batches.
        cpu: The processor's share of making a batch; None: not recorded.
        slow: Samples of which the first operation takes so much more.
        slower_by_epoch: How much longer operations take in each epoch than in the one before, as a part of their first time.
    """

    number: int = 0
    workers: int = 2
    batches: int = 6
    size: int = 4
    epochs: int = 1
    operations: Sequence[tuple[str, Any]] = (
        ("Decode", 2.0),
        ("RandomCrop", 6.0),
        ("ToTensor", 1.0),
        ("Normalize", 0.5),
    )
    inner: Sequence[tuple[str, float]] = ()
    own: float = 0.5
    collate: float = 1.0
    pause: float = 5.0
    prefetch: int = 2
    cpu: float | None = None
    dataset: str = "Pictures"
    slow: dict[str, float] = field(default_factory=dict)
    slower_by_epoch: float = 0.0
    phases: bool = True  # whether steps are recorded too
    records: bool = True  # whether the loader is
    train: bool = True
    broken: str = ""  # what of batch 1 is recorded wrongly, see _break


@dataclass
class Record:
    who: int  # worker, or -1
    category: str
    name: str
    begun: int
    ended: int
    value: int
    args: dict[str, Any]
    kind: str = "loader"
    value_key: str = "batch"


class Made:
    """The records of one loader.

    Attributes:
        records: In the order in which they end.
        waits: (batch, nanoseconds, ready) of each request.
    """

    def __init__(
        self, loader: Loader, episode: int, now: int, indices: Sequence[int] | None = None
    ) -> None:
        self.loader, self.episode, self.now = loader, episode, now
        self.records: list[Record] = []
        self.waits: list[tuple[int, int, bool]] = []
        self.free = [now] * max(loader.workers, 1)
        self.arrived: dict[int, int] = {}
        for _ in range(loader.epochs):
            self._epoch()
            self.episode += 1
        self._break(loader.broken)

    def _break(self, how: str) -> None:
        """Spoil the records of batch 1: one is lost, one is there twice, another worker, another time."""
        verb, _, what = how.partition(" ")
        for at, one in enumerate(self.records):
            if what == f"{one.category}.{one.name}" and one.value == 1:
                if verb == "lose":
                    del self.records[at]
                elif verb == "double":
                    self.records.insert(at, one)
                elif verb == "move":
                    one.args = {**one.args, "worker": 0}
                elif verb == "hasten":
                    one.begun, one.ended = one.begun - 60 * MS, one.ended - 60 * MS
                elif verb == "stretch":
                    one.ended += 1500 * US
                return

    def _args(self, worker: int, **more: Any) -> dict[str, Any]:
        return {"loader": self.loader.number, "episode": self.episode, "worker": worker, **more}

    def _add(
        self,
        who: int,
        what: str,
        begun: int,
        ended: int,
        value: int,
        args: dict[str, Any],
        value_key: str = "batch",
    ) -> None:
        category, _, name = what.partition(".")
        if not self.loader.records:
            return
        self.records.append(
            Record(who, category, name, begun, ended, value, args, "loader", value_key)
        )

    def _phase(self, name: str, begun: int, value: int, **more: Any) -> None:
        if self.loader.phases:
            args = {"loader": self.loader.number, "episode": self.episode, **more}
            category = "dataloader" if name in ("iter", "fetch", "end") else "compute"
            self.records.append(
                Record(
                    -1,
                    category,
                    name,
                    begun,
                    self.now,
                    value,
                    args,
                    "phase",
                    "items" if name == "fetch" else "",
                )
            )

    def _epoch(self) -> None:
        loader, begun = self.loader, self.now
        self.taken: set[int] = set()
        self.now += US
        sent = 0
        while loader.workers and sent < min(loader.batches, loader.prefetch * loader.workers):
            sent = self._send(sent)
        self._phase(
            "iter", begun, 0, workers=loader.workers, batch_size=loader.size, length=loader.batches, dataset=loader.dataset, pin_memory=False
        )  # fmt: skip
        for batch in range(loader.batches):
            asked = self.now
            ready = self._wait(batch)
            came = self.now
            args = {"loader": loader.number, "episode": self.episode}
            self._add(-1, "batch.wait", asked, came, batch, {**args, "ready": ready})
            self._add(-1, "batch.consumed", came, came, batch, args)
            self.waits.append((batch, came - asked, ready))
            if loader.workers and sent < loader.batches:
                sent = self._send(sent)
            self._phase("fetch", asked, loader.size)
            self._train()
        ended = self.now
        self.now += US
        self._phase("end", ended, 0)

    def _train(self) -> None:
        for name in ("forward", "backward", "step") if self.loader.train else ("forward",):
            begun = self.now
            self.now += int(self.loader.pause * MS / 3)
            self._phase(name, begun, 0, **({"which": 0} if name == "step" else {}))

    def _send(self, batch: int) -> int:
        worker = batch % self.loader.workers
        self._add(-1, "batch.queued", self.now, self.now, batch, self._args(worker))
        begun = max(self.free[worker], self.now)
        if begun > self.free[worker]:
            self._add(worker, "worker.idle", self.free[worker], begun, batch, self._args(worker))
        ended = self._make(batch, worker, begun)
        self._add(worker, "worker.put", ended, ended + 10 * US, batch, self._args(worker))
        self.free[worker] = ended + 10 * US
        self.arrived[batch] = ended + 20 * US
        return batch + 1

    def _wait(self, batch: int) -> bool:
        if not self.loader.workers:
            self.now = self._make(batch, -1, self.now)
            return False
        ready = batch in self.taken
        while batch not in self.taken:  # torch takes what comes until the wanted one is there
            at, other = min((at, other) for other, at in self.arrived.items())
            self.now = max(self.now, at)
            self._add(
                -1,
                "batch.arrived",
                self.now,
                self.now,
                other,
                self._args(other % self.loader.workers),
            )
            self.taken.add(other)
            del self.arrived[other]
        self.now += 5 * US
        return ready

    def _make(self, batch: int, worker: int, begun: int) -> int:
        loader, args, now = self.loader, self._args(worker), begun
        for place in range(loader.size):
            index = batch * loader.size + place
            item = now
            now += int(loader.own * MS)
            for at, (name, time) in enumerate(loader.operations):
                took = time[max(worker, 0) % len(time)] if isinstance(time, (list, tuple)) else time
                took = took * (1 + loader.slower_by_epoch * self.episode) + (
                    loader.slow.get(str(index), 0.0) if at == 0 else 0.0
                )
                start, now = now, now + int(took * MS)
                within = start + 10 * US
                for inner, inner_time in loader.inner if at == 0 else ():
                    self._add(
                        worker,
                        f"operation.{inner}",
                        within,
                        within + int(inner_time * MS),
                        index,
                        args,
                        "index",
                    )
                    within += int(inner_time * MS)
                self._add(worker, f"operation.{name}", start, now, index, args, "index")
            self._add(worker, "data.item", item, now, index, args, "index")
        collated, now = now, now + int(loader.collate * MS)
        self._add(worker, "data.collate", collated, now, batch, args)
        self._add(worker, "data.preprocess", begun, now, batch, args)
        if loader.cpu is not None:
            self._add(worker, "data.cpu", now, now, int(loader.cpu * (now - begun)), args, "cpu_ns")
        return now


def write(folder: str, loaders: Sequence[Loader]) -> None:
    """Record them one after the other, each worker in a process of its own."""
    from voirkit.trace import recorder

    recorder.begin(folder, rank=int(os.environ.get("RANK", "0")))
    now, episode, records = recorder.now(), 0, []
    for loader in loaders:
        made = Made(loader, episode, now)
        records += [(loader.number, one) for one in made.records]
        now, episode = made.now, made.episode
    processes = sorted({(number, one.who) for number, one in records if one.who >= 0})
    for which in [*processes, (-1, -1)]:
        pid = os.fork() if which[1] >= 0 else 0
        if pid:
            os.waitpid(pid, 0)
            continue
        for number, one in records:
            if (one.who < 0 and which[1] < 0) or (number, one.who) == which:
                name = recorder.name(
                    one.category, one.name, kind=one.kind, value=one.value_key or None
                )
                recorder.span(name, one.begun, one.ended, recorder.arguments(one.args), one.value)
        if which[1] >= 0:
            recorder.end()
            os._exit(0)
    recorder.end()


def record(run: Path, *loaders: Loader, rank: int = 0, cpus: int = 8) -> Path:
    """A run directory with these loaders in it."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # python 3.12 on forks beside threads: the child does nothing but record
        pid = os.fork()
    if not pid:
        try:
            os.environ["RANK"] = str(rank)
            write(str(run), loaders)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not (run / "run.json").exists():
        (run / "run.json").write_text(
            json.dumps(
                {"schema": 1, "voirkit": "0", "ended": "normal", "exit_code": 0, "cpus": cpus}
            )
        )
    return run
