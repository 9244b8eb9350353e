"""What is called before and after functions of torch, in C and in Python: whatever leaves the call, and nothing of the program is kept."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from phases import Watched, watched
from torch import nn
from torch.utils.data import DataLoader

from voirkit_instruments.steps.record_plain import IDLE, SUPPRESSED


@pytest.fixture
def watch(engine: str) -> Iterator[Watched]:
    with watched() as watch:
        yield watch


def hot(watch: Watched) -> Any:
    assert watch.steps._torch is not None
    return watch.steps._torch.recording.hot


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [ValueError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()],
    ids=lambda e: type(e).__name__,
)
def test_whatever_leaves_a_call_the_next_is_recorded(watch: Watched, error: BaseException) -> None:
    inner = Raises(error)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            nn.Sequential(nn.Identity(), inner)(torch.zeros(1))
        assert caught.value is error
        assert hot(watch).here.inside == IDLE
    assert watch.kept.kinds() == ["compute.forward"] * 2


def test_a_loop_over_a_loader_that_a_generator_is_closed_in(watch: Watched) -> None:
    def batches() -> Iterator[Any]:
        yield from DataLoader(torch.arange(6), batch_size=2)

    generator = batches()
    next(generator)
    generator.close()
    assert hot(watch).here.inside == IDLE
    assert len(list(batches())) == 3
    assert [seen["episode"] for seen in watch.kept.seen("dataloader.fetch")] == [0, 1, 1, 1]


def test_nothing_of_the_program_is_kept(watch: Watched) -> None:
    def program() -> list[weakref.ref[Any]]:
        class Net(nn.Linear):
            pass

        class Own(torch.optim.SGD):
            pass

        model = Net(2, 2)
        optimizer = Own(model.parameters(), 0.1)
        loader = DataLoader(torch.zeros(4, 2), batch_size=2)
        iterator = iter(loader)
        for batch in iterator:
            moved = batch.to(torch.float64).to(torch.float32)
            model(moved).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [
            weakref.ref(thing) for thing in (model, optimizer, loader, iterator, batch, moved, Net)
        ]

    kept = program()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 7
    assert watch.kept.kinds().count("compute.step") == 2


def test_a_class_that_comes_where_another_was_has_its_own_name(watch: Watched) -> None:
    names = [f"Net{n}" for n in range(200)]
    for name in names:
        type(name, (nn.Identity,), {})()(torch.zeros(1))
        gc.collect(0)
    assert [seen["module"] for seen in watch.kept.seen("compute.forward")] == names


def test_training_and_gradients_are_asked_at_each_call(watch: Watched) -> None:
    model = nn.Identity()
    for training in (True, False, True):
        model.train(training)
        with torch.set_grad_enabled(not training):
            model(torch.zeros(1))
    assert [(seen["training"], seen["grad"]) for seen in watch.kept.seen("compute.forward")] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def test_batches_of_every_kind_are_counted(watch: Watched) -> None:
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("code of the program was run")

    batches = [
        torch.zeros(3, 2),
        [torch.zeros(4), 1],
        (torch.tensor(1), torch.zeros(5)),
        {"x": torch.zeros(6)},
        torch.zeros(7).as_subclass(Own),
        8,
    ]
    for _ in DataLoader(batches, batch_size=None):  # type: ignore[arg-type]
        pass
    assert [seen["items"] for seen in watch.kept.seen("dataloader.fetch")] == [3, 4, 5, 6, 7, 1]


def test_what_the_program_does_at_each_look_at_a_tensor_is_not_done_for_voirkit(
    watch: Watched,
) -> None:
    looks: list[str] = []

    class Looks(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            looks.append(func.__name__)
            return func(*args, **(kwargs or {}))

    iterator = iter(DataLoader([torch.zeros(3, 2)], batch_size=None))  # type: ignore[arg-type]
    with Looks():
        next(iterator)
    assert "__get__" not in looks
    assert watch.kept.seen("dataloader.fetch")[0]["items"] == 3


def test_what_a_signal_handler_raises_below_a_record_is_the_programs(watch: Watched) -> None:
    kept = watch.kept
    number = len(kept.spans)

    class Timeout(Exception):
        pass

    recorded = list(kept.spans)

    class Interrupted(list[Any]):
        def append(self, _: Any) -> None:
            raise Timeout

    kept.spans = Interrupted(recorded)
    for call in (lambda: nn.Identity()(torch.zeros(1)), torch.ones(1, requires_grad=True).backward):
        with pytest.raises(Timeout):
            call()
        assert hot(watch).here.inside == IDLE
    assert len(kept.spans) == number


class Device:
    """Stands for the times on a device."""

    def __init__(self) -> None:
        self.begun = self.ended = self.dropped = 0

    def begin(self) -> None:
        self.begun += 1

    def drop(self) -> None:
        self.dropped += 1

    def end(self, *_: int) -> None:
        self.ended += 1


def test_each_time_on_a_device_that_begins_ends(watch: Watched) -> None:
    device = hot(watch).device = Device()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.zeros(2, 2)
    x.to("cpu")
    assert (device.begun, device.dropped, device.ended) == (1, 1, 0)
    with pytest.raises(RuntimeError):
        x.to("no such device")
    assert (device.begun, device.dropped) == (2, 2)
    model(x.to(torch.float64).to(torch.float32)).sum().backward()
    optimizer.step()
    assert (device.begun, device.dropped, device.ended) == (7, 2, 5)
    hot(watch).device = None


def test_what_says_where_a_thread_is_is_not_copied(watch: Watched) -> None:
    here, functions = hot(watch).here, hot(watch)
    assert copy.deepcopy(here) is here
    functions.everywhere(SUPPRESSED)
    nn.Identity()(torch.zeros(1))
    functions.everywhere(IDLE)
    nn.Identity()(torch.zeros(1))
    assert watch.kept.kinds() == ["compute.forward"]


def test_what_the_records_took_is_counted_as_they_are_made(watch: Watched) -> None:
    for _ in range(10):
        nn.Identity()(torch.zeros(1))
    gc.collect()
    spans, own_ns = hot(watch).spans, hot(watch).own_ns
    assert watch.kept.kinds() == ["compute.forward"] * 10
    assert spans == 10 + len(watch.kept.pauses)
    watch.steps.end()
    assert watch.kept.took == (spans, own_ns)
    assert own_ns > 0


def test_two_recordings_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as first:
        nn.Identity()(torch.zeros(1))
        hot(first).everywhere(SUPPRESSED)
    with watched() as second:
        nn.Identity()(torch.zeros(1))
    assert [watch.kept.kinds() for watch in (first, second)] == [["compute.forward"]] * 2
