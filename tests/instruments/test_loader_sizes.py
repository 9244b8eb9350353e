"""How large a batch is, and what it costs on a machine to hand one over."""

from __future__ import annotations

import signal

import pytest

torch = pytest.importorskip("torch")

from voirkit_instruments.loader.record import measure_handover  # noqa: E402  # torch first, or none of it
from voirkit_instruments.loader.record_workers import size  # noqa: E402


class Loud(dict):  # type: ignore[type-arg]
    def values(self) -> object:
        raise AssertionError("code of the program ran")


def test_tensors_are_counted_with_their_bytes() -> None:
    assert size(
        [torch.zeros(4, 8), {"y": torch.zeros(4, dtype=torch.long), "names": ("a", "bcd")}]
    ) == (128 + 32 + 4, 2)


def test_containers_of_the_program_are_not_asked() -> None:
    assert size(Loud(x=torch.zeros(8)))[1] == 0


def test_a_batch_of_a_million_parts_is_not_walked() -> None:
    assert size([1] * 1_000_000)[0] < 100_000


def test_no_mode_of_the_program_hears_of_it() -> None:
    class Listening(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, *_: object, **__: object) -> None:
            raise AssertionError("a mode was asked")

    with Listening():
        assert size([torch.Tensor.__new__(torch.Tensor)])[1] == 1


def test_handing_over_is_measured_in_a_process_of_its_own() -> None:
    found = measure_handover()
    assert found is not None
    assert set(found) == {"call_ns", "tensor_ns", "mb_ns"}
    assert all(value > 0 for value in found.values())


def test_no_handler_of_the_program_is_called_for_that_process() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, frame: called.append(number))
    try:
        assert measure_handover() is not None
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert called == []
