"""Steps on the clock of a GPU: what it worked on, what it waited for, from the spans of the host and those of the device.

The host only starts the work of forward and backward: how long it took, and when a step was really over, the device's spans tell. They
are on the host's clock already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import (
    BACKWARD,
    CHECKPOINT,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    REST,
    TRANSFER,
    WAIT,
    DeviceTable,
    Table,
    Timeline,
)

_WORK = (FORWARD, BACKWARD, OPTIMIZER)
_COLUMNS = REST + 1
# What of the host is said of the time in which the device has nothing to do; the rest is the script's own Python, and starting of work.
_OF_HOST = (WAIT, TRANSFER, CHECKPOINT, COMMUNICATION)
_SLACK_NS = 20_000  # how far the clock of events may be off
_LATE_NS, _LATE = 50_000, 0.1  # a device that ends no later than this after the host, or this part of the host's time, was starved


def on_device(host: Timeline, device: Timeline, table: Table) -> DeviceTable | None:
    """Steps as the device saw them.

    Args:
        host: The spans of the training thread.
        device: Those of the work that it started, ascending by start.
        table: Its training steps by the host's clock.

    Returns:
        The same steps, each to the end of what was started in it, with the time of the device by phase; None if too little of the device
        is known.
    """
    of_host, of_device = _match(host, device)
    if not len(table) or len(of_device) < 2:
        return None
    starts, ends = table.start_ns, table.start_ns + table.time_ns
    turn = np.searchsorted(starts, host.start_ns[of_host], side="right") - 1
    inside = (turn >= 0) & (host.start_ns[of_host] < ends[np.maximum(turn, 0)])
    if np.unique(turn[inside]).size < len(table) / 2:
        return None
    over = ends.copy()
    np.maximum.at(over, turn[inside], (device.start_ns + device.duration_ns)[of_device[inside]])
    over = np.maximum.accumulate(over)
    begun = starts.copy()
    begun[1:] = np.maximum(begun[1:], over[:-1])  # the work of the step before goes on
    over = np.maximum(over, begun)
    own = _between(begun, over, _segments(host, device))
    time = over - begun
    own[:, REST] += np.maximum(time - own.sum(axis=1), 0)
    starved = _starved(host, device, of_host, of_device)
    launching = np.zeros(len(table))
    np.add.at(launching, turn[inside & starved], device.duration_ns[of_device[inside & starved]])
    launching = np.minimum(launching, own[:, list(_WORK)].sum(axis=1)).astype(np.int64)
    return DeviceTable(Table(begun, own.sum(axis=1), table.items, own), launching)


def _match(host: Timeline, device: Timeline) -> tuple[Array, Array]:
    """Indices of host spans and of the device spans of the work that they started.

    The n-th device span of a kind is of the n-th host span of that kind, but for the first, which have none before CUDA is in use.
    """
    hosts, devices = [], []
    for meaning in np.unique(device.meaning).tolist():
        of_host, of_device = np.flatnonzero(host.meaning == meaning), np.flatnonzero(device.meaning == meaning)
        n = min(len(of_host), len(of_device))
        of_device = of_device[len(of_device) - n :]
        spare = len(of_host) - n
        while spare and (device.start_ns[of_device] + _SLACK_NS < host.start_ns[of_host[spare : spare + n]]).any():
            spare -= 1  # no work begins before it is started
        hosts.append(of_host[spare : spare + n])
        devices.append(of_device)
    if not hosts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(hosts), np.concatenate(devices)


def _starved(host: Timeline, device: Timeline, of_host: Array, of_device: Array) -> Array:
    """Which work ended as soon as the host had started the last of it: the device had time left."""
    ends = (host.start_ns + host.duration_ns)[of_host]
    late = (device.start_ns + device.duration_ns)[of_device] - ends
    bound = np.maximum(_LATE_NS, _LATE * host.duration_ns[of_host])
    return np.isin(device.meaning[of_device], _WORK) & (late < bound)


def _segments(host: Timeline, device: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning), one after the other: the device's work, and what the host was at while there was none."""
    busy = _flat(device)
    found = list(busy)
    at = 0
    for start, end, meaning in _flat(host):
        if meaning not in _OF_HOST:
            continue
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        i = at
        while i < len(busy) and busy[i][0] < end:
            if busy[i][0] > start:
                found.append((start, busy[i][0], meaning))
            start = max(start, busy[i][1])
            i += 1
        if start < end:
            found.append((start, end, meaning))
    return sorted(found)


def _flat(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning) of the innermost span at each instant."""
    found: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, meaning)
    now = 0

    def until(at: int) -> None:
        nonlocal now
        while open_ and now < at:
            end, meaning = open_[-1]
            if end > now:
                found.append((now, min(end, at), meaning))
                now = min(end, at)
            if end <= at:
                open_.pop()
        now = at

    rows = zip(timeline.start_ns.tolist(), timeline.duration_ns.tolist(), timeline.meaning.tolist(), strict=True)
    for start, duration, meaning in rows:
        until(start)
        open_.append((start + duration, meaning))
    while open_:
        until(open_[-1][0])
    return found


def _between(begun: Array, over: Array, segments: Sequence[tuple[int, int, int]]) -> Array:
    """Time by step and meaning, shape (n, 10)."""
    own = np.zeros((len(begun), _COLUMNS), dtype=np.int64)
    if not segments:
        return own
    start, end, meaning = (np.array(column, dtype=np.int64) for column in zip(*segments, strict=True))
    for one in np.unique(meaning).tolist():
        chosen = meaning == one
        points = np.stack([start[chosen], end[chosen]], axis=1).ravel()
        spent = np.zeros(len(points))
        spent[1::2] = np.cumsum(end[chosen] - start[chosen])
        spent[2::2] = spent[1:-1:2]
        base = points[0]  # of 64 bits a float has 53
        own[:, one] = np.round(np.interp(over - base, points - base, spent) - np.interp(begun - base, points - base, spent)).astype(
            np.int64
        )
    return own
