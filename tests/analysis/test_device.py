"""Steps on a GPU: a host that moves a clock and starts work, and a device that does it one after the other, later."""

from dataclasses import replace

import numpy as np
import pytest

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.steps import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    REST,
    TRANSFER,
    WAIT,
    Timeline,
    on_device,
    steps_of,
)
from voirkit.analysis.verdict.diagnosis import verdict

from .simulated import Script

US, MS = 1_000, 1_000_000


class Host(Script):
    """A host that launches work: each piece takes time on host and device; the device keeps order."""

    def __init__(self):
        super().__init__()
        self.free_at, self.done = 0, []

    def launch(self, meaning, host_ns, device_ns):
        start = self.now
        with self.phase(meaning):
            self.now += host_ns
        begun = max(start, self.free_at)
        self.free_at = max(
            begun + device_ns, self.now
        )  # the event after it is put into the stream when the host is through
        self.done.append((begun, self.free_at - begun, meaning, 0))

    def train(self, host_ns, device_ns):
        self.launch(FORWARD, host_ns, device_ns)
        self.launch(BACKWARD, host_ns, 2 * device_ns)
        self.launch(OPTIMIZER, host_ns, device_ns // 2)

    def synchronise(self):
        """What ``loss.item()`` does."""
        self.now = max(self.now, self.free_at)

    def device(self):
        columns = [
            np.array(c) for c in zip(*sorted(self.done, key=lambda s: (s[0], -s[1])), strict=True)
        ]
        yes = np.ones(len(columns[0]), dtype=bool)
        return Timeline(*columns[:3], columns[3], yes, yes, [])

    def steps(self):
        host = self.timeline()
        steps = steps_of(host)
        return replace(steps, device=on_device(host, self.device(), steps.train))

    def figures(self):
        return figures([Rank(0, "here", self.steps())])


def shares(script):
    return {name: row["share"] for name, row in script.figures()["steps"]["phases"].items()}


def said(script):
    return verdict(script.figures(), {"workers": 2})


def test_phases_are_those_of_the_device_and_sum_to_the_step():
    host = Host()
    for _ in host.iterate(20, wait=100 * US):
        host.train(200 * US, 10 * MS)
        host.synchronise()
    found = host.figures()["steps"]
    share = {name: row["share"] for name, row in found["phases"].items()}
    assert sum(share.values()) == pytest.approx(1)
    assert share["backward"] == pytest.approx(20 / 35.1, rel=0.02)
    assert share["forward"] == pytest.approx(10 / 35.1, rel=0.02)
    assert found["time_of"] == "device"
    assert found["host_phases"]["backward"]["share"] < 0.02
    assert found["device"]["idle"]["share"] < 0.02
    assert (said(host)["kind"], said(host)["evidence"]["phase"]) == ("compute-bound", "backward")


def test_work_that_ends_within_an_open_span_of_the_device():
    host = Host()
    for _ in host.iterate(3, wait=100 * US):
        host.train(200 * US, 10 * MS)
    start, duration, *_ = host.done[-1]
    # the innermost of the last spans takes no time, and lies in one that goes on
    host.done += [(start + duration // 2, 0, FORWARD, 0), (start + duration // 2, 1, FORWARD, 0)]
    assert host.figures()["steps"]["n"] == 3


def test_a_host_that_runs_ahead_does_not_make_steps_short():
    host = Host()
    for _ in host.iterate(50, wait=10 * US):
        host.train(100 * US, 10 * MS)
    host.synchronise()
    steps = host.steps()
    assert np.median(steps.train.time_ns) < MS
    assert np.median(steps.device.table.time_ns) == pytest.approx(35 * MS, rel=0.02)
    assert said(host)["kind"] == "compute-bound"


def test_waiting_for_input_while_the_device_works_is_no_wait():
    host = Host()
    for _ in host.iterate(20, wait=9 * MS):
        host.train(100 * US, 10 * MS)
    assert shares(host)["wait"] < 0.05
    assert said(host)["kind"] == "compute-bound"


def test_waiting_for_input_while_it_idles_is_input_bound():
    host = Host()
    for _ in host.iterate(20, wait=40 * MS):
        host.train(100 * US, MS)
        host.synchronise()
    assert shares(host)["wait"] == pytest.approx(40 / 43.5, rel=0.05)
    assert said(host)["kind"] == "input-bound"


def test_a_device_that_idles_without_a_wait_is_host_bound():
    host = Host()
    for _ in host.iterate(20, wait=100 * US):
        host.train(100 * US, 2 * MS)
        host.synchronise()
        host.idle(30 * MS)
    found = said(host)
    assert found["kind"] == "host-bound"
    assert found["evidence"]["idle"] == pytest.approx(30 / 37, rel=0.05)


def test_a_device_that_has_done_its_work_as_soon_as_it_is_started_is_host_bound():
    host = Host()
    for _ in host.iterate(20, wait=100 * US):
        host.train(10 * MS, MS)
    found = said(host)
    assert found["kind"] == "host-bound"
    assert found["evidence"]["launching"] > 0.9


def test_copies_that_the_host_waits_for_are_transfer_bound():
    host = Host()
    for _ in host.iterate(20, wait=100 * US):
        host.launch(TRANSFER, 20 * MS, 20 * MS)
        host.train(100 * US, MS)
    assert said(host)["kind"] == "transfer-bound"


def test_work_of_before_the_device_was_in_use_has_no_device_time():
    host = Host()
    for _ in host.iterate(20, wait=100 * US):
        host.train(200 * US, 10 * MS)
        host.synchronise()
    del host.done[0]  # the first forward has made the device's context
    table = host.steps().device.table
    assert table.own_ns[0, FORWARD] == 0
    assert table.own_ns[1:, FORWARD] == pytest.approx(np.full(19, 10 * MS), rel=0.01)
    assert (table.own_ns.sum(axis=1) == table.time_ns).all()
    assert table.own_ns[1:, [WAIT, REST]].sum(axis=1).max() < MS


def test_a_device_of_which_next_to_nothing_is_known_is_left_out():
    host = Host()
    for _ in host.iterate(20):
        host.train(200 * US, 10 * MS)
    host.done = host.done[:6]
    assert host.steps().device is None
    assert "time_of" not in host.figures()["steps"]
