"""Loops as people write them, in real torch with planted costs: steps, items and times are what a reader of the script would say."""

from __future__ import annotations

import io
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from planted import OTHER, STEP, WAIT, Loop, Net, Points, Seen, clock, seen, usual
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

pytestmark = pytest.mark.long

Says = Callable[..., Seen]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """What voirkit says of a script."""
    return lambda script, **how: seen(script, monkeypatch, **how)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def is_usual(found: Seen, n: int) -> None:
    """So many steps, each like every other."""
    assert (found.n, found.items, found.ms) == (n, [4] * n, [STEP] * n)
    assert found.phases == usual(n)


# all batches


def test_for(says: Says, loop: Loop) -> None:
    def script() -> None:
        for batch in loop.loader:
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 5)


def test_enumerate_with_a_progress_bar(says: Says, loop: Loop) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def script() -> None:
        for _, batch in enumerate(tqdm(loop.loader, file=io.StringIO())):
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 5)


def test_a_progress_bar_that_is_left(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(2):
            bar = tqdm(loop.loader, file=io.StringIO())
            for i, batch in enumerate(bar):
                loop.train_on(batch)
                if i == 2:
                    break
            clock.spend(1000)

    is_usual(says(script), 6)


def test_while_with_several_epochs(says: Says, loop: Loop) -> None:
    def script() -> None:
        epoch = 0
        while True:
            for batch in loop.loader:
                loop.train_on(batch)
            clock.spend(1000)
            epoch += 1
            if epoch == 3:
                break

    is_usual(says(script), 15)


def test_a_generator_around_the_loader(says: Says, loop: Loop) -> None:
    def batches() -> Iterator[Any]:
        for x, y in loop.loader:
            yield x * 1, y

    def script() -> None:
        for batch in batches():
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 5)


def test_a_loader_inside_of_an_iterable_dataset(says: Says, loop: Loop) -> None:
    class Inner(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for xs, ys in loop.loader:
                yield from zip(xs, ys, strict=True)

    def script() -> None:
        for batch in DataLoader(Inner(), batch_size=4):
            loop.train_on(batch)

    is_usual(says(script), 5)


class Endless:
    """A batch sampler that is gone over for ever."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Keeping(DataLoader[Any]):
    """Keeps its iterator for ever, as timm's and ultralytics' do."""

    kept: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:
        if self.kept is None:
            self.kept = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.kept)


def test_a_loader_that_keeps_its_iterator_for_ever(says: Says) -> None:
    loop = Loop()
    loop.loader, loop.held_out = Keeping(Points(20), batch_size=4), Keeping(Points(8), batch_size=4)

    def script() -> None:
        for _ in range(3):
            for batch in loop.loader:
                loop.train_on(batch)
            clock.spend(1000)
            loop.evaluate()

    found = says(script)
    is_usual(found, 15)
    assert found.evaluated == 6
    assert found.rank.facts["dataset"] == "Points"


class Unlabelled(Points):
    """Of which a sample costs 3 ms."""

    def __init__(self) -> None:
        super().__init__(20, cost=3)


def test_the_dataset_that_is_waited_for_longest_is_named_also_where_another_loader_leads(
    says: Says,
) -> None:
    loop = Loop()
    unlabelled: DataLoader[Any] = DataLoader(Unlabelled(), batch_size=4)

    def script() -> None:
        for batch, _ in zip(loop.loader, unlabelled, strict=True):
            loop.train_on(batch)

    found = says(script)
    assert found.n == 5
    assert found.rank.facts["dataset"] == "Unlabelled"


def test_a_loader_of_which_a_batch_is_evaluated_in_each_step_is_not_named(says: Says) -> None:
    loop = Loop()
    held_out: DataLoader[Any] = DataLoader(Unlabelled(), batch_size=4)

    def script() -> None:
        for batch in loop.loader:
            loop.held_out = [next(iter(held_out))]  # type: ignore[assignment]
            loop.evaluate()
            loop.train_on(batch)

    assert says(script).rank.facts["dataset"] == "Points"


# batches that another thread fetches


class Prefetcher(queue.Queue[Any]):
    """A queue into which a thread puts the loader's batches, each when it is waited for, so that one clock does for both threads.

    Args:
        loader: The loader.
        epochs: How often the thread goes over it.
        tells: Whether it puts None at the end of each.
    """

    def __init__(self, loader: Any, epochs: int, tells: bool = True) -> None:
        super().__init__()
        self.wanted = threading.Semaphore(0)
        threading.Thread(target=self._fetch, args=(loader, epochs, tells), daemon=True).start()

    def _fetch(self, loader: Any, epochs: int, tells: bool) -> None:
        for _ in range(epochs):
            iterator = iter(loader)
            while True:
                self.wanted.acquire()
                batch = next(iterator, None)
                if batch is not None or tells:
                    self.put(batch)
                if batch is None:
                    break

    def _qsize(self) -> int:  # asked inside of get()
        n = super()._qsize()
        if n == 0:
            self.wanted.release()
        return n


def test_batches_through_a_queue(says: Says, loop: Loop) -> None:
    def script() -> None:
        prefetcher = Prefetcher(loop.loader, epochs=2)
        for _ in range(2):
            while (batch := prefetcher.get()) is not None:
                loop.train_on(batch)
            clock.spend(1000)

    is_usual(says(script), 10)


def test_batches_through_a_queue_as_many_as_are_known(says: Says) -> None:
    loop = Loop(n=18)

    def script() -> None:
        prefetcher = Prefetcher(loop.loader, epochs=1, tells=False)
        for _ in range(len(loop.loader)):
            loop.train_on(prefetcher.get())
        prefetcher.wanted.release()
        clock.spend(1000)
        loop.evaluate()

    found = says(script)
    assert (found.n, found.items, found.evaluated) == (5, [4, 4, 4, 4, 2], 2)
    assert found.phases == {**usual(5), "wait": 18}


# some of the batches


def test_islice(says: Says, loop: Loop) -> None:
    def script() -> None:
        for batch in itertools.islice(loop.loader, 3):
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 3)


def test_a_loop_left_at_the_end_of_its_body_every_epoch(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(3):
            for i, batch in enumerate(loop.loader):
                loop.train_on(batch)
                if i == 2:
                    break
            clock.spend(1000)

    is_usual(says(script), 9)


def test_a_loop_left_at_the_beginning_of_its_body_every_epoch(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(3):
            for i, batch in enumerate(loop.loader):
                if i == 3:
                    break
                loop.train_on(batch)
            clock.spend(1000)

    is_usual(says(script), 9)


def test_a_loop_left_by_return(says: Says, loop: Loop) -> None:
    def train() -> None:
        for i, batch in enumerate(loop.loader):
            loop.train_on(batch)
            if i == 4:
                return

    def script() -> None:
        train()
        clock.spend(1000)
        loop.evaluate()

    is_usual(says(script), 5)


def test_a_loop_interrupted_in_the_middle(says: Says, loop: Loop) -> None:
    def script() -> None:
        for i, (x, y) in enumerate(loop.loader):
            if i == 3:
                loop.model(x)
                raise KeyboardInterrupt
            loop.train_on((x, y))

    is_usual(says(script, completed=False), 3)


def test_a_loop_interrupted_and_gone_on_with(says: Says, loop: Loop) -> None:
    def script() -> None:
        try:
            for i, (x, y) in enumerate(loop.loader):
                if i == 3:
                    loop.model(x)
                    raise KeyboardInterrupt
                loop.train_on((x, y))
        except KeyboardInterrupt:
            clock.spend(1000)
        for batch in loop.loader:
            loop.train_on(batch)

    is_usual(says(script), 8)


# by hand


def test_next_by_hand_as_often_as_there_are_batches(says: Says, loop: Loop) -> None:
    def script() -> None:
        iterator = iter(loop.loader)
        for _ in range(len(loop.loader)):
            loop.train_on(next(iterator))
        clock.spend(1000)
        loop.evaluate()
        clock.spend(1000)

    found = says(script)
    is_usual(found, 5)
    assert found.evaluated == 2


def test_next_by_hand_fewer_times_with_the_iterator_held(says: Says, loop: Loop) -> None:
    held = []

    def script() -> None:
        held.append(iter(loop.loader))
        for _ in range(3):
            loop.train_on(next(held[0]))
        clock.spend(1000)

    is_usual(says(script), 3)


def test_an_iterator_that_is_made_anew_when_it_is_empty(says: Says, loop: Loop) -> None:
    def script() -> None:
        iterator = iter(loop.loader)
        for _ in range(12):
            try:
                batch = next(iterator)
            except StopIteration:
                iterator = iter(loop.loader)
                batch = next(iterator)
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 12)


def test_an_iterator_that_is_made_anew_at_the_known_length(says: Says, loop: Loop) -> None:
    def script() -> None:
        for step in range(12):
            if step % len(loop.loader) == 0:
                iterator = iter(loop.loader)
            loop.train_on(next(iterator))
        clock.spend(1000)

    is_usual(says(script), 12)


def test_an_endless_generator(says: Says, loop: Loop) -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield from loop.loader

    def script() -> None:
        batches = endless()
        for _ in range(12):
            loop.train_on(next(batches))
        clock.spend(1000)

    is_usual(says(script), 12)


def test_cycle(says: Says, loop: Loop) -> None:
    def script() -> None:
        for i, batch in enumerate(itertools.cycle(loop.loader)):
            if i == 12:
                break
            loop.train_on(batch)
        clock.spend(1000)

    found = says(
        script
    )  # what goes on without the loader runs from one step of the optimizer to the next, with batches nobody saw come
    assert (found.n, found.items) == (12, [4] * 5 + [-1] * 7)
    assert found.ms == [STEP] * 5 + [STEP - WAIT - OTHER] + [STEP - WAIT] * 6
    assert found.phases == {**usual(12), "wait": WAIT * 5, "other": OTHER * 11}


def test_what_remains_after_a_loop_is_no_step(says: Says, loop: Loop) -> None:
    def script() -> None:
        for x, _ in loop.loader:
            loop.model(x).sum().backward()
        loop.optimizer.step()
        loop.optimizer.step()

    assert says(script).n == 5


def test_the_next_batch_is_asked_for_before_the_work(says: Says, loop: Loop) -> None:
    class Prefetcher:
        def __init__(self) -> None:
            self.iterator = iter(loop.loader)
            self.preload()

        def preload(self) -> None:
            self.batch = next(self.iterator, None)

        def next(self) -> Any:
            batch = self.batch
            self.preload()
            return batch

    def script() -> None:
        for _ in range(2):
            prefetcher = Prefetcher()
            batch = prefetcher.next()
            while batch is not None:
                loop.train_on(batch)
                batch = prefetcher.next()
            clock.spend(1000)

    found = says(script)
    assert (found.n, found.items) == (10, [4] * 10)
    assert found.phases["forward"] == 30
    assert found.phases["wait"] == 40


def read_ahead(loader: Any) -> Iterator[Any]:
    """Its batches; when one is worked on, the next is there."""
    iterator = iter(loader)
    batch = next(iterator)
    for after in iterator:
        yield batch
        batch = after
    yield batch


def test_the_next_batch_is_asked_for_before_the_work_and_the_loop_is_left(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for _ in range(2):
            for i, batch in enumerate(read_ahead(loop.loader)):
                loop.train_on(batch)
                if i == 2:
                    break
            clock.spend(1000)

    found = says(script)
    assert (found.n, found.items) == (6, [4] * 6)


def test_batches_that_are_read_several_at_a_time_and_one_ahead_are_a_step_each(
    says: Says, loop: Loop
) -> None:
    """The Trainer of transformers with gradients accumulated over two batches, on accelerate's loader."""

    def script() -> None:
        for _ in range(2):
            batches = read_ahead(loop.loader)
            while several := list(itertools.islice(batches, 2)):
                for batch in several:
                    loop.train_on(batch)

    assert says(script).n == 10


def test_evaluation_that_reads_a_batch_ahead(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(2):
            for batch in loop.loader:
                loop.train_on(batch)
            loop.model.eval()
            with torch.no_grad():
                for x, _ in read_ahead(loop.held_out):
                    loop.model(x)
            loop.model.train()

    found = says(script)
    is_usual(found, 10)
    assert found.evaluated == 4


def test_batches_kept_in_a_list(says: Says, loop: Loop) -> None:
    def script() -> None:
        batches = list(loop.loader)
        for _ in range(2):
            for batch in batches:
                loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (10, [-1] * 10)


# what is done in the body


def test_two_optimizers_with_a_backward_each(says: Says, loop: Loop) -> None:
    other = Net()
    second = torch.optim.SGD(other.parameters(), 0.1)

    def script() -> None:
        for x, y in loop.loader:
            second.zero_grad()
            other(x).sum().backward()
            second.step()
            loop.train_on((x, y))

    found = says(script)
    assert (found.n, found.items, found.ms) == (5, [4] * 5, [STEP + 8] * 5)


def test_gradients_of_several_batches(says: Says, loop: Loop) -> None:
    def script() -> None:
        for i, (x, _) in enumerate(loop.loader):
            loop.model(x).sum().backward()
            if i % 2:
                loop.optimizer.step()

    found = says(script)
    assert (found.n, found.ms) == (5, [12, 14, 12, 14, 12])


def test_evaluation_every_few_steps(says: Says, loop: Loop) -> None:
    def script() -> None:
        for i, batch in enumerate(loop.loader):
            loop.train_on(batch)
            if i % 2:
                loop.evaluate()
        clock.spend(1000)

    found = says(script)
    is_usual(found, 5)
    assert found.evaluated == 4


def test_evaluation_after_a_loop_that_is_left(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(2):
            for i, batch in enumerate(loop.loader):
                loop.train_on(batch)
                if i == 2:
                    break
            loop.evaluate()

    found = says(script)
    is_usual(found, 6)
    assert found.evaluated == 4


def test_inference_mode(says: Says, loop: Loop) -> None:
    @torch.inference_mode()
    def script() -> None:
        for x, _ in loop.loader:
            loop.model(x)

    found = says(script)
    assert (found.n, found.evaluated) == (0, 5)


def test_a_checkpoint_in_the_last_step_before_the_loop_is_left(says: Says, loop: Loop) -> None:
    def script() -> None:
        for i, batch in enumerate(loop.loader):
            loop.train_on(batch)
            if i % 2:
                clock.spend(50)
            if i == 3:
                break
        clock.spend(1000)

    assert says(script).ms == [STEP, STEP + 50, STEP, STEP + 50]


def test_persistent_workers_and_a_loop_that_is_left(says: Says) -> None:
    loop = Loop(cost=0, num_workers=1, persistent_workers=True)

    def script() -> None:
        for _ in range(3):
            for i, batch in enumerate(loop.loader):
                loop.train_on(batch)
                if i == 2:
                    break
            loop.evaluate()

    found = says(script)
    assert (found.n, found.items) == (9, [4] * 9)
    assert found.phases["other"] == 9 * OTHER


# steps and evaluation that no loop over a loader tells of


def full_batch(loop: Loop, n: int) -> None:
    for _ in range(n):
        loop.train_on((torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)))


BY_HAND = STEP - WAIT


@pytest.mark.parametrize(
    "order", ["loader hand", "hand loader", "hand loader hand", "loader hand loader", "hand"]
)
def test_steps_beside_a_loader_count_wherever_they_lie(says: Says, loop: Loop, order: str) -> None:
    def script() -> None:
        for part in order.split():
            if part == "hand":
                full_batch(loop, 3)
            else:
                for batch in loop.loader:
                    loop.train_on(batch)
            clock.spend(1000)

    found = says(script)
    by_hand, looped = [BY_HAND - OTHER, BY_HAND, BY_HAND], [STEP] * 5
    assert found.ms == [
        ms for part in order.split() for ms in (by_hand if part == "hand" else looped)
    ]
    assert found.items == [
        n for part in order.split() for n in ([-1] * 3 if part == "hand" else [4] * 5)
    ]


def test_a_second_stage_with_an_optimizer_of_its_own(says: Says, loop: Loop) -> None:
    second = Loop()

    def script() -> None:
        full_batch(loop, 4)
        clock.spend(1000)
        full_batch(second, 4)

    assert says(script).ms == [BY_HAND - OTHER, BY_HAND, BY_HAND, BY_HAND] * 2


@pytest.mark.parametrize("predicts", [False, True])
def test_steps_by_closures(predicts: bool, says: Says, loop: Loop) -> None:
    optimizer = torch.optim.LBFGS(loop.model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loop.model(torch.ones(4, 4)).sum()
        loss.backward()
        return loss

    def script() -> None:
        for _ in range(3):
            optimizer.step(closure)
            if (
                predicts
            ):  # evaluation: the closure sets gradients to zero, and its step begins before that
                with torch.no_grad():
                    loop.model(torch.ones(4, 4))

    found = says(script)
    assert (found.n, found.phases["forward"], found.phases["backward"]) == (3, 9, 15)


def test_gradient_descent_by_hand_has_a_step_a_walk_through_the_graph(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for _ in range(4):
            loop.model(torch.ones(4, 4)).sum().backward()
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    assert says(script).n == 4


def estimate_loss(loop: Loop) -> None:
    """nanoGPT's: batches by hand, 4 of them."""
    with torch.no_grad():
        loop.model.eval()
        for _ in range(4):
            clock.spend(1)
            loop.model(torch.ones(4, 4))
        loop.model.train()


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("with_loader", [True, False])
def test_evaluation_by_hand_is_in_no_step(
    says: Says, loop: Loop, every: int, with_loader: bool
) -> None:
    def script() -> None:
        for i, batch in enumerate(
            loop.loader
            if with_loader
            else [(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))] * 5
        ):
            if i % every == 0:
                estimate_loss(loop)
            loop.train_on(batch)
        estimate_loss(loop)

    found = says(script)
    assert found.ms == ([STEP] * 5 if with_loader else [BY_HAND - OTHER] + [BY_HAND] * 4)
    assert found.evaluated == 4 * (len(range(0, 5, every)) + 1)
    assert sum(found.rank.steps.evaluation.time_ns.tolist()) // 1_000_000 == 16 * (
        len(range(0, 5, every)) + 1
    )


def test_what_is_called_without_gradients_between_two_steps_is_evaluation(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for batch in loop.loader:
            loop.train_on(batch)
            with torch.no_grad():
                loop.model(batch[0])

    found = says(script)
    assert (found.ms, found.evaluated) == ([STEP] * 5, 5)


@pytest.mark.parametrize("with_loader", [True, False])
@pytest.mark.parametrize("evaluates", [True, False])
def test_a_teacher_that_every_step_asks_is_a_part_of_it(
    says: Says, loop: Loop, with_loader: bool, evaluates: bool
) -> None:
    teacher = Net()
    if evaluates:
        teacher.eval()

    def script() -> None:
        for batch in (
            loop.loader
            if with_loader
            else [(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))] * 5
        ):
            with torch.no_grad():
                teacher(batch[0])
            loop.train_on(batch)

    found = says(script)
    assert (found.n, found.evaluated, found.phases["forward"]) == (5, 0, 30)


def test_a_rollout_before_several_steps_is_in_none_of_them(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(3):
            with torch.no_grad():
                for _ in range(8):
                    loop.model(torch.ones(1, 4))
            full_batch(loop, 4)

    found = says(script)
    assert found.ms == [BY_HAND - OTHER] + [BY_HAND] * 11
    assert found.evaluated == 24


def test_fine_tuning_in_evaluation_mode_is_training(says: Says, loop: Loop) -> None:
    def script() -> None:
        loop.model.eval()
        for batch in loop.loader:
            loop.train_on(batch)
        loop.model.train()

    is_usual(says(script), 5)


# batches that are drawn by hand


def let_go_at_once(loop: Loop) -> Any:
    return next(iter(loop.loader))


def left_at_once(loop: Loop) -> Any:
    for batch in loop.loader:
        return batch
    return None


@pytest.mark.parametrize("draw", [let_go_at_once, left_at_once])
def test_training_on_one_batch_that_was_drawn_by_hand_is_a_step_an_update(
    says: Says, loop: Loop, draw: Callable[[Loop], Any]
) -> None:
    def script() -> None:
        batch = draw(loop)
        for _ in range(7):
            loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (7, [-1] * 7)
    assert found.ms == [BY_HAND - OTHER] + [BY_HAND] * 6


def test_training_on_one_batch_whose_iterator_is_kept_is_a_step_an_update(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        iterator = iter(loop.loader)
        batch = next(iterator)
        for _ in range(7):
            loop.train_on(batch)
        del iterator

    found = says(script)
    assert (found.n, found.items) == (7, [-1] * 7)


def test_an_iterator_that_is_never_read_is_no_loop(says: Says, loop: Loop) -> None:
    def script() -> None:
        iterator = iter(loop.loader)
        full_batch(loop, 7)
        del iterator

    assert says(script).n == 7


def test_training_goes_on_with_a_loops_last_batch(says: Says, loop: Loop) -> None:
    def script() -> None:
        iterator = iter(loop.loader)
        for _ in range(3):
            batch = next(iterator)
            loop.train_on(batch)
        for _ in range(4):
            loop.train_on(batch)
        del iterator

    found = says(script)
    assert (found.n, found.items) == (7, [4] * 3 + [-1] * 4)


def test_a_batch_that_is_drawn_for_each_step_is_one_of_a_loop(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(7):
            loop.train_on(next(iter(loop.loader)))

    is_usual(says(script), 7)


def test_a_batch_that_is_drawn_for_an_evaluation_is_waited_for_there(
    says: Says, loop: Loop
) -> None:
    held_out: DataLoader[Any] = DataLoader(Points(40, 5), batch_size=4)  # 20 ms a batch

    def script() -> None:
        batches = iter(held_out)
        for i, batch in enumerate(loop.loader):
            loop.train_on(batch)
            if i % 2:
                x, _ = next(batches)
                loop.model.eval()
                with torch.no_grad():
                    loop.model(x)
                loop.model.train()

    found = says(script)
    is_usual(found, 5)
    assert (
        found.evaluated,
        sum(found.rank.steps.evaluation.phase_ns("wait").tolist()) // 1_000_000,
    ) == (2, 40)


@pytest.mark.parametrize("with_loader", [True, False])
def test_a_batch_that_is_drawn_anew_for_an_evaluation_is_a_part_of_it(
    says: Says, loop: Loop, with_loader: bool
) -> None:
    def script() -> None:
        for i, batch in enumerate(
            loop.loader
            if with_loader
            else [(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))] * 5
        ):
            loop.train_on(batch)
            if i % 2:
                x, _ = next(iter(loop.held_out))
                with torch.no_grad():
                    loop.model(x)

    found = says(script)
    assert (found.n, found.evaluated) == (5, 2)
    assert sum(found.rank.steps.evaluation.phase_ns("wait").tolist()) // 1_000_000 == 2 * WAIT


def test_batches_drawn_for_evaluations_make_no_steps_of_a_training_without_a_loader(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        batches = iter(loop.held_out)
        for _ in range(2):
            x, _ = next(batches)
            loop.model.eval()
            with torch.no_grad():
                loop.model(x)
            loop.model.train()
            full_batch(loop, 3)

    found = says(script)
    assert (found.n, found.evaluated) == (6, 2)


# batches that are taken in groups


def test_batches_that_are_taken_in_groups_are_steps_of_their_own_work(says: Says) -> None:
    loop = Loop(n=32)

    def script() -> None:
        batches = iter(loop.loader)
        for _ in range(2):
            for batch in [next(batches) for _ in range(4)]:
                loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items, found.phases["wait"]) == (8, [4] * 8, 8 * WAIT)
    # All four are waited for in the first; what no one sees after an update is a part of the next, but for the last of a group.
    assert found.ms[:4] == [4 * WAIT + BY_HAND - OTHER, BY_HAND, BY_HAND, BY_HAND + OTHER]


def test_two_batches_of_one_iterator_that_one_update_is_made_of_are_a_step(says: Says) -> None:
    loop = Loop(n=32)

    def script() -> None:
        batches = iter(loop.loader)
        for _ in range(4):
            (x, y), (others, _) = next(batches), next(batches)
            loop.train_on(((x + others) / 2, y))

    found = says(script)
    assert (found.n, found.items) == (4, [8] * 4)


# evaluation that takes gradients


def forces(loop: Loop, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    torch.autograd.grad(loop.model(x).sum(), x)


@pytest.mark.parametrize("switches", [True, False])
def test_a_loop_that_takes_gradients_and_updates_nothing_is_evaluation(
    says: Says, loop: Loop, switches: bool
) -> None:
    def script() -> None:
        for _ in range(2):
            for batch in loop.loader:
                loop.train_on(batch)
            if switches:
                loop.model.eval()
            for x, _ in loop.held_out:
                forces(loop, x)
            if switches:
                loop.model.train()

    found = says(script)
    assert (found.n, found.evaluated) == (10, 4)


def gradients(loop: Loop, batch: Any) -> None:
    x, y = batch
    torch.nn.functional.cross_entropy(loop.model(x), y).backward()


def test_gradients_that_are_accumulated_when_the_run_ends_are_of_training(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for batch in loop.loader:
            loop.train_on(batch)
        for batch in loop.loader:
            gradients(loop, batch)

    found = says(script)
    assert (found.n, found.evaluated) == (10, 0)


def test_gradients_that_are_cleared_after_each_batch_of_the_last_loop_are_of_evaluation(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for batch in loop.loader:
            loop.train_on(batch)
        for batch in loop.loader:  # Fisher information
            loop.optimizer.zero_grad()
            gradients(loop, batch)

    found = says(script)
    assert (found.n, found.evaluated) == (5, 5)


def test_an_evaluation_alone_that_takes_gradients_trains_nothing(says: Says, loop: Loop) -> None:
    def script() -> None:
        loop.model.eval()
        for x, _ in loop.held_out:
            forces(loop, x)

    found = says(script)
    assert (found.n, found.evaluated) == (0, 2)


def test_an_attack_in_each_step_is_a_part_of_it(says: Says, loop: Loop) -> None:
    def script() -> None:
        for x, y in loop.loader:
            loop.model.eval()
            forces(loop, x)
            loop.model.train()
            loop.train_on((x, y))

    found = says(script)
    assert (found.n, found.evaluated, found.phases["backward"]) == (5, 0, 50)


def test_an_attack_on_each_of_several_batches_of_an_update_is_a_part_of_it(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for x, _ in loop.loader:
            loop.model.eval()
            forces(loop, x)
            loop.model.train()
            loop.model(x).sum().backward()
        loop.optimizer.step()

    found = says(script)
    assert (found.n, found.evaluated) == (5, 0)


def test_gradients_of_all_batches_are_one_update_and_a_step_a_batch(says: Says, loop: Loop) -> None:
    def script() -> None:
        for _ in range(2):
            for x, _ in loop.loader:
                loop.model(x).sum().backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    found = says(script)
    assert (found.n, found.items, found.phases["optimizer"]) == (10, [4] * 10, 4)


def test_a_first_batch_that_is_only_looked_at_is_no_step(says: Says, loop: Loop) -> None:
    def script() -> None:
        batches = iter(loop.loader)
        next(batches)
        for batch in batches:
            loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (4, [4] * 4)


def test_an_iterator_that_is_asked_again_after_its_end_has_as_many_steps(says: Says) -> None:
    loop = Loop(28)

    def script() -> None:
        batches = iter(loop.loader)
        while group := list(itertools.islice(batches, 2)):
            for batch in group:
                loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (7, [4] * 7)


def test_groups_of_batches_from_a_queue_that_is_read_by_count_have_a_step_a_batch(
    says: Says,
) -> None:
    loop = Loop(32)

    def groups() -> Iterator[list[Any]]:
        batches = Prefetcher(loop.loader, epochs=1)
        for _ in range(4):
            yield [batches.get(), batches.get()]

    def script() -> None:
        for group in groups():
            for batch in group:
                loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (8, [4] * 8)


def test_several_batches_that_are_kept_at_first_are_steps_as_they_may_be_trained_on_later(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        batches = iter(loop.loader)
        kept = [next(batches), next(batches)]
        for batch in batches:
            loop.train_on(batch)
        assert kept

    assert says(script).n == 5


def test_losses_that_are_summed_and_walked_through_once_are_trained_on(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for _ in range(2):
            torch.stack([loop.model(x).sum() for x, _ in loop.loader]).sum().backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    found = says(script)
    assert (found.n, found.evaluated, found.items, found.phases["optimizer"]) == (
        10,
        0,
        [4] * 10,
        4,
    )


def test_a_step_by_hand_after_it_is_one_of_its_own(says: Says, loop: Loop) -> None:
    def script() -> None:
        torch.stack([loop.model(x).sum() for x, _ in loop.loader]).sum().backward()
        loop.optimizer.step()
        loop.train_on((torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)))

    assert says(script).n == 6


# threads


def test_an_epoch_in_a_thread_of_its_own_is_counted_as_any(says: Says, loop: Loop) -> None:
    def epoch() -> None:
        for batch in loop.loader:
            loop.train_on(batch)

    def script() -> None:
        for _ in range(3):
            thread = threading.Thread(target=epoch)
            thread.start()
            thread.join()

    is_usual(says(script), 15)


def hand_over(loader: Any, left_after: int = 0) -> Iterator[Any]:
    """Batches of a loader, through a queue of its own that another thread fills."""
    prefetcher = Prefetcher(loader, epochs=1)
    for n in itertools.count(1):
        batch = prefetcher.get()
        if batch is None:
            return
        yield batch
        if n == left_after:
            return


def test_batches_of_an_evaluation_that_come_through_a_queue_are_no_steps(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for _ in range(2):
            for batch in hand_over(loop.loader):
                loop.train_on(batch)
            loop.model.eval()
            with torch.no_grad():
                for x, _ in hand_over(loop.held_out):
                    loop.model(x)
            loop.model.train()

    found = says(script)
    assert (found.n, found.items, found.evaluated) == (10, [4] * 10, 4)


def test_a_loop_over_a_queue_that_is_left_leaves_no_batch_to_the_next(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        for _ in range(2):
            for batch in hand_over(loop.loader, left_after=3):
                loop.train_on(batch)

    found = says(script)
    assert (found.n, found.items) == (6, [4] * 6)


def test_an_iterator_that_another_thread_reads_makes_no_steps_where_it_was_made(
    says: Says, loop: Loop
) -> None:
    def script() -> None:
        prefetcher = Prefetcher(iter(loop.loader), epochs=1)
        while (batch := prefetcher.get()) is not None:
            loop.train_on(batch)
        clock.spend(1000)

    is_usual(says(script), 5)
