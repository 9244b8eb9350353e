"""Times on a GPU, with a fake of ``torch.cuda``: a stream that happens when the test says so, on a clock of its own. No device was ever used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from voirkit_instruments.steps import record_spans as steps_device
from voirkit_instruments.steps.record_spans import DeviceTimes

US = 1_000


class Cuda:
    """One device with one stream.

    Attributes:
        host_ns: The host's clock.
        busy_ns: Until when, on the host's clock, what has been put into the stream keeps the device busy.
    """

    def __init__(self) -> None:
        self.host_ns = 1_000 * US
        self.busy_ns = 0
        self.made = 0
        self.capturing = False
        self.broken = False
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                cuda.made += 1

            def record(self) -> None:
                self.at_ns = max(cuda.busy_ns, cuda.host_ns)

            def query(self) -> bool:
                if cuda.broken:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                return cuda.host_ns >= self.at_ns

            def synchronize(self) -> None:
                cuda.host_ns = max(cuda.host_ns, self.at_ns)

            def elapsed_time(self, other: Event) -> float:
                assert self.query()
                assert other.query()
                return (other.at_ns - self.at_ns) / 1e6

        self.Event = Event

    def current_device(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def launch(self, takes_us: float) -> None:
        """The host puts work into the stream, which takes it 5 microseconds."""
        self.busy_ns = max(self.busy_ns, self.host_ns) + round(takes_us * US)
        self.host_ns += 5 * US


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setattr(steps_device, "now", lambda: cuda.host_ns)
    return cuda


class Times(DeviceTimes):
    def __init__(self, cuda: Cuda) -> None:
        self.spans: list[tuple[int, int, int, int, int]] = []
        super().__init__(
            cuda, lambda *span: self.spans.append(span), lambda name: name + 100, SimpleNamespace()
        )

    def phase(self, cuda: Cuda, takes_us: float, name: int = 1) -> None:
        self.begin()
        cuda.launch(takes_us)
        self.end(name, 3, 4)


def test_a_phase_on_the_device_is_written_when_it_has_been_seen_to_end(cuda: Cuda) -> None:
    times = Times(cuda)
    times.phase(cuda, 300)
    assert times.spans == []
    cuda.host_ns += 400 * US
    times.resolve(1)
    assert times.spans == [(101, 1_000 * US, 1_300 * US, 3, 4)]


def test_the_host_is_ahead_and_never_waits(cuda: Cuda) -> None:
    times = Times(cuda)
    for _ in range(10):
        times.phase(cuda, 300)
    assert cuda.host_ns == 1_050 * US
    cuda.host_ns += 10_000 * US
    times.resolve(100)
    assert [(end - begin) // US for _, begin, end, _, _ in times.spans] == [300] * 10
    assert [begin // US for _, begin, _, _, _ in times.spans] == [
        1_000 + 300 * n for n in range(10)
    ]


def test_no_span_begins_before_it_was_put_or_ends_after_it_was_seen_whatever_the_clocks_do(
    cuda: Cuda,
) -> None:
    times = Times(cuda)
    drift = 0
    for n in range(400):
        before = cuda.host_ns
        times.phase(cuda, 200)
        drift += 40  # nanoseconds: the device's clock is slow
        cuda.busy_ns += drift if n % 3 else 0
        cuda.host_ns += 20_000 * US
        times.resolve(10)
        _, begin, end, _, _ = times.spans[-1]
        assert before <= begin <= end <= cuda.host_ns
    assert times.unresolved == 0


def test_events_are_used_again(cuda: Cuda) -> None:
    times = Times(cuda)
    for _ in range(200):
        times.phase(cuda, 100)
        cuda.host_ns += 20_000 * US
    assert len(times.spans) >= 199
    assert cuda.made < 12


def test_nested_phases_are_their_own_spans(cuda: Cuda) -> None:
    times = Times(cuda)
    times.begin()
    times.phase(cuda, 100, name=2)
    times.begin()
    times.drop()
    times.end(1)
    cuda.host_ns += 1_000 * US
    times.resolve(10)
    assert [span[0] for span in times.spans] == [102, 101]


def test_nothing_is_put_into_a_graph_that_is_captured(cuda: Cuda) -> None:
    times = Times(cuda)
    cuda.capturing = True
    times.phase(cuda, 100)
    assert cuda.made == 0
    assert times.finish() == 0


def test_what_the_device_is_too_far_behind_with_is_given_up_and_counted(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_device, "MOST_PENDING", 5)
    times = Times(cuda)
    for _ in range(8):
        times.phase(cuda, 1_000_000)
    assert times.unresolved == 3


def test_at_the_end_the_rest_is_waited_for(cuda: Cuda) -> None:
    times = Times(cuda)
    times.phase(cuda, 5_000)
    assert times.finish() == 0
    assert len(times.spans) == 1


def test_a_device_that_has_failed_costs_times_and_no_exception(cuda: Cuda) -> None:
    times = Times(cuda)
    times.phase(cuda, 100)
    cuda.broken = True
    times.phase(cuda, 100)
    times.phase(cuda, 100)
    assert times.finish() == 3
    assert times.spans == []
