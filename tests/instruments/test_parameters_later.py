"""Figures of devices: queued, copied together, read when they are there; and the digest that is computed where the data is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from voirkit_instruments.parameters.record_figures import MOST_PENDING, Figures, Later


class Device:
    """``torch`` with a device whose events happen when the test says so; data of the CPU stands for its data."""

    float64, float32, int64 = torch.float64, torch.float32, torch.int64

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.copies = 0
        self.cuda = self

    def cat(self, parts: list[Any]) -> Any:
        return Tensor(self, torch.cat([part.real for part in parts]))

    def Event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def current_stream(self, device: Any) -> None:
        return None


class Event:
    happened = False
    waits = 0

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened, self.waits = True, self.waits + 1


class Tensor:
    """A tensor on that device."""

    device = torch.device("cuda", 0)

    def __init__(self, torch: Device, real: Any) -> None:
        self._torch, self.real, self.dtype = torch, real, real.dtype

    def reshape(self, *size: int) -> Tensor:
        return Tensor(self._torch, self.real.reshape(*size))

    def view(self, kind: Any) -> Tensor:
        return Tensor(self._torch, self.real.view(kind))

    def __len__(self) -> int:
        return len(self.real)

    def to(self, where: Any, non_blocking: bool = False) -> Any:
        if where != "cpu":
            return Tensor(self._torch, self.real.to(where))
        assert non_blocking
        self._torch.copies += 1
        return self.real


def test_figures_of_a_step_are_one_copy_and_nobody_waits_for_it() -> None:
    device, found = Device(), []  # type: ignore[var-annotated]
    later = Later(device)
    tensors = [
        Tensor(device, torch.tensor(1.5)),
        np.array([7]),
        Tensor(device, torch.tensor([2, -3])),
    ]
    for _ in range(2):
        later.bring(tensors, found.append)
    later.deliver()
    assert (found, device.copies) == ([], 2)
    device.events[1].happened = True
    later.deliver()
    assert not found  # in the order in which they were sent
    device.events[0].happened = True
    later.deliver()
    assert [float(found[0][0][0]), found[0][1].tolist(), found[1][2].view(np.int64).tolist()] == [
        1.5,
        [7],
        [2, -3],
    ]
    assert [event.waits for event in device.events] == [0, 0]


def test_what_comes_from_the_processor_while_others_are_on_their_way_waits_its_turn() -> None:
    device, found = Device(), []  # type: ignore[var-annotated]
    later = Later(device)
    later.bring([Tensor(device, torch.tensor(1.0))], lambda _: found.append("device"))
    later.bring([torch.tensor(1.0)], lambda _: found.append("here"))
    later.finish()
    assert found == ["device", "here"]


def test_of_too_many_on_their_way_the_oldest_is_waited_for() -> None:
    device, found = Device(), []  # type: ignore[var-annotated]
    later = Later(device)
    for _ in range(MOST_PENDING + 3):
        later.bring([Tensor(device, torch.tensor(1.0))], found.append)
    assert len(found) == 3
    later.finish()
    assert len(found) == MOST_PENDING + 3


SIZES = [1, 7, 4096, (1 << 20) + 5]


@pytest.mark.parametrize("size", SIZES)
def test_any_one_element_changes_the_digest_of_a_device(size: int) -> None:
    figures, data = Figures(torch), torch.randn(size)
    before = figures.sum64(data)
    for at in {0, size // 2, size - 1}:
        other = data.clone()
        other.view(torch.int32)[at] += 1
        assert figures.sum64(other) != before


@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.complex64]
)
def test_signs_and_orders_change_the_digests(kind: torch.dtype) -> None:
    figures, data = (
        Figures(torch),
        (torch.randn(64, 64) > 0 if kind is torch.bool else 9 * torch.randn(64, 64)).to(kind),
    )
    others = [
        data.flip(0),
        data.roll(1, 1),
        ~data if kind is torch.bool else -data,
        data.t().contiguous(),
    ]
    for digest in (figures.digest, lambda tensor: int(figures.sum64(figures.flat(tensor)))):
        assert len({digest(one) for one in [data, *others]}) == 5
        assert digest(data) == digest(data.clone())


def test_two_signs_that_flip_change_the_digest_of_a_device() -> None:
    figures, data = Figures(torch), torch.randn(300)
    before = figures.sum64(data)
    for one, other in [(0, 1), (2, 3), (17, 255)]:
        flipped = data.clone()
        flipped[[one, other]] *= -1
        assert figures.sum64(flipped) != before
