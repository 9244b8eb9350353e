"""The what-ifs that are one switch of torch: what they could win, what they change, and what they leave alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from voirkit.intercept import Patches
from voirkit_instruments.what_if.record_changes import (
    CheckpointNoCrc,
    GcEvery,
    GcFreeze,
    NonBlocking,
    NumThreads,
    PinMemory,
)

PHASES = {
    name: {"total_s": 1.0, "share": 0.2}
    for name in ("wait", "transfer", "forward", "backward", "optimizer", "other")
}
PHASES["other"]["parts"] = {}  # type: ignore[assignment]
TRAINED: dict[str, Any] = {
    "steps": {"n": 10, "phases": PHASES}, "what_if_run": {"work_s": 10.0, "saves": 2, "saving_s": 4.0, "cuda": True, "threads": 4}
}  # fmt: skip


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_each_could_win_the_time_of_what_it_touches() -> None:
    assert CheckpointNoCrc(None).ceiling(TRAINED) == (
        0.4,
        "the 2 calls of torch.save take that much of it.",
    )
    assert NumThreads("2").ceiling(TRAINED).share == pytest.approx(0.3)
    assert (
        PinMemory(None).ceiling(TRAINED).share
        == NonBlocking(None).ceiling(TRAINED).share
        == pytest.approx(0.1)
    )


def test_evaluation_counts_whole_where_phases_are_touched() -> None:
    found = PinMemory(None).ceiling({**TRAINED, "evaluation": {"n": 4, "time_s": {"median": 0.5}}})
    assert found.share == pytest.approx(0.3)
    assert "with all of the evaluation" in found.because


def test_without_a_gpu_what_is_about_one_could_win_nothing() -> None:
    for change in (PinMemory(None), NonBlocking(None)):
        assert change.ceiling({"what_if_run": {"cuda": False}}) == (
            0.0,
            "there is no CUDA device here, and nothing is copied to one.",
        )


def test_what_nothing_is_known_of_has_no_ceiling() -> None:
    assert PinMemory(None).ceiling({"what_if_run": {"cuda": True}}).share is None
    assert (
        NumThreads("2").ceiling({**TRAINED, "steps": {"n": 1, "time_of": "device"}}).share is None
    )
    assert NumThreads("4").ceiling(TRAINED).share == 0


@pytest.mark.usefixtures("threads")
def test_what_the_program_sets_itself_holds() -> None:
    change = NumThreads("3")
    change.install(Patches())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(2)
    change.end()
    assert change.facts() == {"touched": 0, "because": "the program itself has set 2 threads."}


def test_checksums_are_written_again_at_the_end() -> None:
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("torch before 2.6 always writes checksums")
    change = CheckpointNoCrc(None)
    change.install(Patches())
    assert torch.serialization.get_crc32_options() is False
    change.end()
    assert torch.serialization.get_crc32_options() is True
    assert change.facts() == {"touched": 1}


def test_a_torch_that_can_not_leave_checksums_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.serialization, "set_crc32_options", raising=False)
    change = CheckpointNoCrc(None)
    change.install(Patches())
    change.end()
    assert change.facts() == {
        "touched": 0,
        "because": "this torch always writes checksums (2.6 and later can leave them out).",
    }


# python's garbage collector


def hooked(change: GcFreeze | GcEvery) -> Callable[[], None]:
    """Makes the change, and returns what torch calls after each step of an optimizer."""
    hooks: list[Callable[[], None]] = []

    def register(hook: Callable[[], None]) -> SimpleNamespace:
        hooks.append(hook)
        return SimpleNamespace(remove=hooks.clear)

    change.switch(SimpleNamespace(register_optimizer_step_post_hook=register), Patches())
    return lambda: [hook() for hook in hooks] and None


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generation of each collection."""
    seen: list[int] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(callback)
    yield seen
    gc.callbacks.remove(callback)
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("collections")
def test_what_lives_at_the_first_step_is_frozen_until_the_end() -> None:
    change = GcFreeze(None)
    step = hooked(change)
    assert gc.get_freeze_count() == 0
    step()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    step()
    change.end()
    assert gc.get_freeze_count() == 0
    facts = change.facts()
    assert facts["touched"] == 1
    assert 0 < facts["once_s"] < 60  # what the one collection took


def test_garbage_is_collected_every_so_many_steps_and_automatically_never(
    collections: list[int],
) -> None:
    change = GcEvery("3")
    step = hooked(change)
    gc.collect()
    collections.clear()
    for _ in range(7):
        step()
        assert not gc.isenabled()
    assert collections == [1, 1, 1], "after the first step, and after each third one"
    change.end()
    assert (gc.isenabled(), change.facts()) == (True, {"touched": 1})


@pytest.mark.usefixtures("collections")
def test_a_script_that_sees_to_its_garbage_itself_is_left_alone() -> None:
    gc.disable()
    every = GcEvery("3")
    hooked(every)()
    every.end()
    assert (every.facts()["touched"], gc.isenabled()) == (0, False)
    gc.freeze()
    freeze = GcFreeze(None)
    hooked(freeze)()
    freeze.end()
    assert freeze.facts() == {"touched": 0, "because": "the script itself has frozen its objects."}
    assert gc.get_freeze_count() > 0


def test_collections_could_win_what_they_take_of_the_steps_and_of_all_where_the_script_evaluates() -> (
    None
):
    assert GcFreeze(None).ceiling(TRAINED) == (0, "no garbage collection takes 0.1 ms or more.")
    other = {**PHASES["other"], "parts": {"gc": {"total_s": 2.0}}}
    summary = {
        **TRAINED,
        "steps": {"n": 10, "phases": {**PHASES, "other": other}},
        "wall": {"parts": {"gc": {"total_s": 5.0}}},
    }
    assert GcEvery("9").ceiling(summary).share == pytest.approx(0.2)
    assert GcEvery("9").ceiling({**summary, "evaluation": {"n": 1}}).share == pytest.approx(0.5)


def test_steps_between_collections_are_a_whole_number() -> None:
    for argument in (None, "", "0", "x", "-1"):
        with pytest.raises(ValueError, match="whole number of optimizer steps"):
            GcEvery(argument)


class Tensor:
    """As far as copies are concerned."""

    def __init__(self, place: str = "cpu", pinned: bool = True) -> None:
        self.device, self.is_cuda, self._pinned = (
            SimpleNamespace(type=place),
            place == "cuda",
            pinned,
        )

    def is_pinned(self) -> bool:
        return self._pinned


class Parent(Tensor):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    cuda = to


@pytest.fixture
def moved() -> Iterator[type]:
    """A class of tensors whose copies return what they were called with."""

    class Own(Parent):
        pass

    module: Any = SimpleNamespace(Tensor=Own, device=torch.device)
    patches, change = Patches(), NonBlocking(None)
    for name in ("to", "cuda"):
        patches.put(Own, name, change._copy_method(module, name))
    yield Own
    patches.remove()
    assert Own.to is Parent.to


def test_copies_from_pinned_memory_to_a_gpu_are_not_waited_for(moved: Any) -> None:
    asked = {"non_blocking": True}
    assert moved().to("cuda:1") == (("cuda:1",), asked)
    assert moved().to(torch.device("cuda"), torch.float16)[1] == asked
    assert moved().to(device="cuda")[1] == {"device": "cuda", **asked}
    assert moved().to(moved("cuda"))[1] == asked
    assert moved().cuda() == ((), asked)


def test_all_other_copies_are_left_as_they_are(moved: Any) -> None:
    assert moved(pinned=False).to("cuda") == (("cuda",), {})
    assert moved("cuda").to("cpu") == (("cpu",), {})
    assert moved().to("cpu") == (("cpu",), {})
    assert moved().to(torch.float16) == ((torch.float16,), {})
    assert moved().to("cuda", torch.float16, False)[1] == {}
    assert moved().to("cuda", non_blocking=False)[1] == {"non_blocking": False}
    assert moved().cuda(None, False)[1] == {}
