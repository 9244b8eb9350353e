"""Training programs that nobody wrote: sections of the kinds that people write, put together at random, each with counters of its own.

A program runs in this process, under torch as the steps instrument patches it; what it counts is held against what voirkit says of it.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from phases import Kept, Watched
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.phases import Records, ranks

BATCH = 4


class Counting(torch.optim.SGD):
    """Counts its steps."""

    def __init__(self, counts: Counts, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts = counts

    def step(self, closure: Any = None) -> Any:
        self.counts.add("updates")
        return super().step(closure)


class Counts:
    """What a program has counted itself, in all its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.steps = self.items = self.updates = self.backward_passes = self.evaluated = 0
        self.items_known = True

    def add(self, what: str, n: int = 1) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + n)


@dataclass
class Training:
    """A model, its optimizer and its data."""

    counts: Counts
    batches: int
    held_out_batches: int
    model: nn.Module = field(
        default_factory=lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    )

    def __post_init__(self) -> None:
        self.optimizer = Counting(self.counts, self.model.parameters(), 0.01)
        self.loader = self._loader(self.batches)
        self.held_out = self._loader(self.held_out_batches)
        self.whole = self._loader(self.batches).dataset.tensors  # type: ignore[attr-defined]

    def _loader(self, batches: int) -> DataLoader[Any]:
        n = BATCH * batches
        return DataLoader(TensorDataset(torch.randn(n, 3), torch.randn(n, 1)), batch_size=BATCH)

    def gradients(self, batch: Any) -> None:
        """A forward and a backward pass."""
        x, y = batch
        F.mse_loss(self.model(x), y).backward()
        self.counts.add("backward_passes")

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train_on(self, batch: Any) -> None:
        """A step of one batch."""
        self.optimizer.zero_grad()
        self.gradients(batch)
        self.optimizer.step()


# how batches are read


def _by_for(loader: Any) -> Iterator[Any]:
    yield from loader


def _by_next(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    for _ in range(len(loader)):
        yield next(iterator)


def _by_next_until_empty(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    while (batch := next(iterator, None)) is not None:
        yield batch


def _one_ahead(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    batch = next(iterator)
    for after in iterator:
        yield batch
        batch = after
    yield batch


def _in_groups(size: int, read: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    def grouped(loader: Any) -> Iterator[Any]:
        batches = read(loader)
        while several := list(itertools.islice(batches, size)):
            yield from several

    return grouped


def _through_a_queue(loader: Any) -> Iterator[Any]:
    batches: queue.Queue[Any] = queue.Queue(1)

    def fill(source: Any) -> None:
        for batch in source:
            batches.put(batch)
        batches.put(None)

    thread = threading.Thread(target=fill, args=(loader,))
    thread.start()
    while (batch := batches.get()) is not None:
        yield batch
    thread.join()


def _by_count(loader: Any) -> Iterator[Any]:
    """Batches from a queue whose reader knows how many there are, and asks for no word that it is over."""
    batches: queue.Queue[Any] = queue.Queue(2)
    thread = threading.Thread(target=lambda: [batches.put(batch) for batch in loader])
    thread.start()
    for _ in range(len(loader)):
        yield batches.get()
    thread.join()


def _groups_of_an_iterator(loader: Any) -> Iterator[Any]:
    """The iterator is asked again after its end where the last group is short."""
    iterator = iter(loader)
    while several := list(itertools.islice(iterator, 2)):
        yield from several


def _peeked_and_gone_on_with(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    next(iterator)
    yield from iterator


def _through_a_queue_from_here(loader: Any) -> Iterator[Any]:
    """The iterator is made here, and read in another thread."""
    return _through_a_queue(iter(loader))


READS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "for": _by_for,
    "next": _by_next,
    "next until empty": _by_next_until_empty,
    "one ahead": _one_ahead,
    "groups of 2": _in_groups(2, _by_for),
    "groups of 3": _in_groups(3, _by_for),
    "groups of 2, one ahead": _in_groups(2, _one_ahead),
    "groups of an iterator": _groups_of_an_iterator,
    "after the first": _peeked_and_gone_on_with,
    "queue": _through_a_queue,
    "queue from here": _through_a_queue_from_here,
    "queue by count": _by_count,
    "queue by count, groups of 2": _in_groups(2, _by_count),
}
LEAST_BATCHES = {
    "groups of 2": 3, "groups of 3": 4, "groups of 2, one ahead": 4, "groups of an iterator": 3, "queue by count, groups of 2": 3,
    "after the first": 3,
}  # fmt: skip
OTHER_THREADS = ("queue", "queue from here", "queue by count")


# evaluation


def _forces(training: Training, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    torch.autograd.grad(training.model(x).sum(), x)
    training.counts.add("backward_passes")


def evaluate(training: Training, how: str) -> None:
    """An evaluation of the model, of a kind that people write."""
    switches, forces = "mode" in how, "forces" in how
    if switches:
        training.model.eval()

    def look(x: torch.Tensor) -> None:
        training.counts.add("evaluated")
        if forces:
            _forces(training, x)
        else:
            with torch.no_grad():
                training.model(x)

    if "loop" in how:
        for x, _ in training.held_out:
            look(x)
    elif "drawn" in how:
        look(next(iter(training.held_out))[0])
    else:
        for _ in range(2):
            look(training.whole[0][:BATCH])
    if switches:
        training.model.train()


# Where gradients are taken without eval(), nothing tells them from those of a training: of loops over another loader alone.
EVALUATIONS = (
    "loop",
    "loop mode",
    "loop mode forces",
    "loop forces",
    "drawn mode",
    "drawn",
    "hand mode",
    "hand",
    "hand mode forces",
)


# sections


@dataclass(frozen=True)
class Section:
    """A part of a program.

    Attributes:
        kind: What it is.
        read: How batches are read.
        epochs: How many times over.
        accumulates: How many batches an update is made of.
        leaves_after: After how many batches each epoch is left; 0: it is not.
        evaluates: Kind of evaluation within, if any.
        every: After how many steps.
        n: How many updates, where there is no loop.
    """

    kind: str
    read: str = "for"
    epochs: int = 1
    accumulates: int = 1
    leaves_after: int = 0
    evaluates: str = ""
    every: int = 2
    n: int = 3

    def run(self, training: Training) -> None:
        """Do it."""
        getattr(self, "_" + self.kind.replace(" ", "_"))(training)

    def _loop(self, training: Training) -> None:
        counts = training.counts
        for _ in range(self.epochs):
            for i, batch in enumerate(READS[self.read](training.loader)):
                training.gradients(batch)
                counts.add("steps")
                counts.add("items", len(batch[0]))
                if (i + 1) % self.accumulates == 0:
                    training.update()
                if self.evaluates and i % self.every == self.every - 1:
                    evaluate(training, self.evaluates)
                if i + 1 == self.leaves_after:
                    break
            training.optimizer.zero_grad()

    def _whole_epoch(self, training: Training) -> None:
        """One update of the gradients of all batches."""
        for _ in range(self.epochs):
            training.optimizer.zero_grad()
            for batch in READS[self.read](training.loader):
                training.gradients(batch)
                training.counts.add("steps")
                training.counts.add("items", len(batch[0]))
            training.optimizer.step()

    def _summed(self, training: Training) -> None:
        """One backward pass through the losses of all batches."""
        for _ in range(self.epochs):
            training.optimizer.zero_grad()
            losses = []
            for x, y in READS[self.read](training.loader):
                losses.append(F.mse_loss(training.model(x), y))
                training.counts.add("steps")
                training.counts.add("items", len(x))
            torch.stack(losses).sum().backward()
            training.counts.add("backward_passes")
            training.optimizer.step()

    def _zipped(self, training: Training) -> None:
        for _ in range(self.epochs):
            for batch, _other in zip(training.loader, training.held_out, strict=False):
                training.train_on(batch)
                training.counts.add("steps")
                training.counts.add("items", len(batch[0]))

    def _two_optimizers(self, training: Training) -> None:
        critic = Training(training.counts, training.batches, training.held_out_batches)
        for batch in READS[self.read](training.loader):
            critic.train_on(batch)
            training.train_on(batch)
            training.counts.add("steps")
            training.counts.add("items", len(batch[0]))

    def _drawn_once(self, training: Training) -> None:
        batch = next(iter(training.loader))
        self._by_hand_on(training, batch)

    def _drawn_by_a_loop(self, training: Training) -> None:
        for drawn in training.loader:
            batch = drawn
            break
        self._by_hand_on(training, batch)

    def _drawn_and_kept(self, training: Training) -> None:
        iterator = iter(training.loader)
        self._by_hand_on(training, next(iterator))

    def _peeked(self, training: Training) -> None:
        len(next(iter(training.loader)))
        self._by_hand(training)

    def _unasked(self, training: Training) -> None:
        iterator = iter(training.loader)
        self._by_hand(training)
        del iterator

    def _drawn_anew(self, training: Training) -> None:
        for i in range(self.n):
            training.train_on(next(iter(training.loader)))
            training.counts.add("steps")
            training.counts.items_known &= self.n > 1
            training.counts.add("items", BATCH)
            if self.evaluates and i % self.every == self.every - 1:
                evaluate(training, self.evaluates)

    def _by_hand(self, training: Training) -> None:
        x, y = training.whole
        self._by_hand_on(training, (x[:BATCH], y[:BATCH]))

    def _by_hand_on(self, training: Training, batch: Any) -> None:
        training.counts.items_known = False
        for i in range(self.n):
            training.optimizer.zero_grad()
            for _ in range(self.accumulates):
                training.gradients(batch)
            training.optimizer.step()
            training.counts.add("steps")
            if self.evaluates and i % self.every == self.every - 1:
                evaluate(training, self.evaluates)

    def _evaluation(self, training: Training) -> None:
        evaluate(training, self.evaluates or "loop mode")

    def _in_a_thread(self, training: Training) -> None:
        for _ in range(self.epochs):
            thread = threading.Thread(
                target=Section("loop", evaluates=self.evaluates, every=self.every).run,
                args=(training,),
            )
            thread.start()
            thread.join()

    def _steps_in_a_pool(self, training: Training) -> None:
        with ThreadPoolExecutor(2) as pool:
            for batch in training.loader:
                pool.submit(training.train_on, batch).result()
                training.counts.add("steps")
                training.counts.add("items", len(batch[0]))

    def _batches_from_a_pool(self, training: Training) -> None:
        """Each batch is fetched by another thread, and waited for."""
        training.counts.items_known = False
        iterator = iter(training.loader)
        with ThreadPoolExecutor(1) as pool:
            while (batch := pool.submit(next, iterator, None).result()) is not None:
                training.train_on(batch)
                training.counts.add("steps")

    def _at_once(self, training: Training) -> None:
        trainings = [
            training,
            Training(training.counts, training.batches, training.held_out_batches),
        ]
        together = threading.Barrier(2)

        def train(own: Training) -> None:
            together.wait()
            Section("loop", epochs=self.epochs, evaluates=self.evaluates, every=self.every).run(own)

        threads = [threading.Thread(target=train, args=(own,)) for own in trainings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


LOOPS = ("loop", "whole epoch", "summed", "zipped", "two optimizers")
BY_HAND = (
    "drawn once",
    "drawn by a loop",
    "drawn and kept",
    "peeked",
    "unasked",
    "by hand",
    "drawn anew",
)
WITHOUT_LOADER = (*BY_HAND, "batches from a pool")
THREADS = ("in a thread", "steps in a pool", "batches from a pool", "at once")


@dataclass(frozen=True)
class Program:
    """Sections, each of the model and loader of a number, one after the other."""

    batches: tuple[int, ...]  # of the loader of each training
    held_out: int  # how many batches are evaluated
    sections: tuple[tuple[int, Section], ...]  # (number of the training, what it does)

    def run(self) -> Counts:
        """What it counted."""
        counts = Counts()
        trainings = [Training(counts, n, self.held_out) for n in self.batches]
        for which, section in self.sections:
            section.run(trainings[which])
        return counts


@st.composite
def _sections(draw: st.DrawFn, batches: int) -> Section:
    kind = draw(st.sampled_from((*LOOPS, *BY_HAND, *THREADS, "evaluation", "loop", "loop")))
    evaluates = draw(st.sampled_from(("", *EVALUATIONS)))
    every = draw(st.integers(2, 3))
    epochs = draw(st.integers(1, 2))
    if kind == "loop":
        # An epoch whose batches are all taken before any is worked on is not told from a list that is made of them.
        read = draw(
            st.sampled_from(sorted(read for read in READS if batches > LEAST_BATCHES.get(read, 0)))
        )
        accumulates = draw(st.integers(1, min(2, batches)))
        if "by count" in read and batches % accumulates:
            accumulates = 1  # nothing tells that gradients are left over
        can_leave = (
            batches > 2
            and accumulates == 1
            and read not in OTHER_THREADS
            and "groups" not in read
            and read != "one ahead"
        )
        leaves_after = draw(st.integers(0, batches - 1)) if can_leave else 0
        return Section(kind, read, epochs, accumulates, leaves_after, evaluates, every)
    if kind in ("whole epoch", "summed", "two optimizers"):
        return Section(kind, draw(st.sampled_from(("for", "next", "next until empty"))), epochs)
    n = draw(st.integers(1, 6))
    accumulates = draw(st.integers(1, 2)) if kind in BY_HAND and kind != "drawn anew" else 1
    return Section(
        kind, epochs=epochs, accumulates=accumulates, evaluates=evaluates, every=every, n=n
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of one to four sections, of one or two models."""
    batches = tuple(draw(st.lists(st.integers(2, 6), min_size=1, max_size=2)))
    held_out = draw(st.integers(1, 3))
    sections = []
    by_hand = 0  # the training that steps without a loader
    for _ in range(draw(st.integers(1, 4))):
        which = draw(st.integers(0, len(batches) - 1))
        section = draw(_sections(batches[which]))
        if section.kind in WITHOUT_LOADER:
            # Two that do so alternately are not told from one training with two optimizers (a GAN's).
            which = by_hand = max(which, by_hand)
            # Steps by hand after a loop whose first batch is thrown away look like the last of a loop that is read one batch ahead, and
            # those after a loop that is never asked for more look like steps of its last batch.
            if any(
                before.read == "after the first" or "by count" in before.read
                for _, before in sections
            ):
                section = Section("evaluation", evaluates=section.evaluates)
        if (
            section.kind in BY_HAND
            and section.n == 1
            and any(before.evaluates == "drawn" for _, before in sections)
        ):
            # The only step of a program, after forces and a batch that was drawn for an evaluation, looks like one of that batch.
            section = replace(section, n=2)
        sections.append((which, section))
    return Program(batches, held_out, tuple(sections))


# what voirkit says of them


class ThreadedKept(Kept):
    """Keeps the thread of each span beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, int, int, int, int, int]] = []

    def span(self, name_id: int, start_ns: int, end_ns: int, args: int = 0, value: int = 0) -> None:
        self.rows.append((name_id, start_ns, end_ns, args, value, threading.get_native_id()))

    def records(self) -> Records:
        """What was recorded, as it would be read from a run directory."""
        name, start, end, args, value, tid = np.array(self.rows, dtype=np.int64).reshape(-1, 6).T
        names = [(category, what) for category, what, _, _ in self._names]
        process = np.zeros(len(name), np.int64)
        return Records(
            start,
            end - start,
            name - 1,
            args,
            value,
            process,
            tid,
            names,
            self._arguments,
            [(0, "here", 1)],
            [1],
        )


def steps_of_program(program: Program) -> tuple[Counts, dict[str, Any], list[Rank]]:
    """Run a program: what it counted, and the figures and ranks that voirkit has of it."""
    kept = ThreadedKept()
    watch = Watched(kept)
    watch.steps.start(torch)
    try:
        counts = program.run()
    finally:
        watch.steps.end(True)
    assert watch.overseer.warned == [], watch.overseer.warned
    known = ranks(kept.records())
    return counts, figures(known), known
