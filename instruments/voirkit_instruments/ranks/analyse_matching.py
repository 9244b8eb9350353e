"""The collectives that all ranks of a group have begun, and the alignment of the hosts' clocks by
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from voirkit.analysis.document import Collectives
from voirkit.analysis.nesting import NONE, Array
from voirkit.analysis.phases import REDUCTIONS


@dataclass(frozen=True)
class Group:
    """The collectives that all ranks of a process group have begun, in order."""

    name: str  # the name of the group
    ranks: tuple[int, ...]  # indices of the ranks in the group, ascending
    # when each member began each collective: one array of shape (n,) per member, as a matrix would
    # be a copy
    begun_ns: Sequence[Array]
    names: Array  # name of each collective; shape (n,)
    bytes: Array  # bytes that each rank passed in, -1 if not known; shape (n,)
    # True if all ranks waited for the collective before they began the next one; shape (n,)
    waited_for: Array

    def begun_in_ns(self, selection: Array | slice) -> Array:
        """Return when each member began the selected collectives; shape (members, n)."""
        return np.stack([begun_ns[selection] for begun_ns in self.begun_ns])


def matched(exchanged: Mapping[int, Collectives]) -> list[Group]:
    """Return the collectives of each group of at least two ranks. ``exchanged`` holds the
    collectives that each rank has begun, by index of the rank."""
    names = {name for collectives in exchanged.values() for name, _, _ in collectives.kinds}
    groups = []
    for name in sorted(names):
        members = {
            rank: collectives
            for rank, collectives in sorted(exchanged.items())
            if any(group == name for group, _, _ in collectives.kinds)
        }
        group = _match_group(name, members) if len(members) >= 2 else None
        if group is not None:
            groups.append(group)
    return groups


def _match_group(name: str, members: Mapping[int, Collectives]) -> Group | None:
    """Return the collectives that all members of one group have begun; None if they have none in
    common."""
    # Most members share one array of sequence numbers. Each distinct array is processed once.
    distinct = {id(member.number): member for member in members.values()}
    in_group = {key: _is_in_group(member, name) for key, member in distinct.items()}
    numbers = reduce(
        np.intersect1d,
        (np.unique(member.number[in_group[key]]) for key, member in distinct.items()),
    )
    if not len(numbers):
        return None
    places = {
        key: _find_last(numbers, member.number, in_group[key]) for key, member in distinct.items()
    }
    times = []
    for member in members.values():
        indices = places[id(member.number)]
        begun_ns = member.begun_ns
        is_every_one = np.array_equal(indices, np.arange(len(begun_ns)))
        times.append(begun_ns if is_every_one else begun_ns[indices])
    first = next(iter(members.values()))
    indices = places[id(first.number)]
    kinds = first.kind[indices]
    names = np.array([kind_name for _, kind_name, _ in first.kinds])[kinds]
    sizes = np.array([n_bytes for _, _, n_bytes in first.kinds])[kinds]
    waited_for = _is_waited_for(names, first.backward[indices])
    return Group(name, tuple(members), times, names, sizes, waited_for)


def _is_in_group(exchanged: Collectives, name: str) -> Array:
    """Return True for each collective that belongs to a group; shape (n,)."""
    return np.array([group == name for group, _, _ in exchanged.kinds], bool)[exchanged.kind]


def _find_last(numbers: Array, number: Array, in_group: Array) -> Array:
    """Return, for each of these numbers, the index of the last collective in the group that has
    it."""
    indices = np.flatnonzero(in_group)
    by_number = indices[np.argsort(number[indices], kind="stable")]
    last = np.searchsorted(number[by_number], numbers, side="right") - 1
    return by_number[last]


def _is_waited_for(names: Array, backward: Array) -> Array:
    """Return True for each collective, but False for a reduction that another collective of the
    same backward pass follows."""
    waited_for = np.ones(len(names), dtype=bool)
    in_pass = (backward[:-1] != NONE) & (backward[:-1] == backward[1:])
    waited_for[:-1] = ~(np.isin(names[:-1], REDUCTIONS) & in_pass)
    return waited_for


def aligned(
    groups: Sequence[Group], hosts: Sequence[str], shifts_ns: Sequence[int]
) -> tuple[Array, int | None]:
    """Align the clocks of hosts by the collectives: no rank can begin the next collective before
    all ranks have begun the one that it waited for.

    Args:
        groups: The collectives.
        hosts: The host of each rank.
        shifts_ns: What to add to the times of each rank to get times on the first rank's clock,
            according to the hosts' wall clocks.

    Returns:
        The shifts, corrected as far as necessary, and their largest possible error in nanoseconds:
            0 on one host, None if it is not known.
    """
    shifts = np.array(shifts_ns, dtype=np.int64)
    error = 0
    host_of = np.array(hosts)
    # by group: when the first and the last rank on the hosts aligned so far began each collective
    earlier: dict[int, tuple[Array, Array]] = {}
    for number, host in enumerate(dict.fromkeys(hosts)):
        times = _times_on_host(groups, hosts, host)
        shift = int(shifts[host_of == host][0])
        if number:
            low, high = _bounds_of_shift(groups, earlier, times)
            if not np.iinfo(np.int64).min < low <= high:
                return shifts, None
            shift = int(np.clip(shift, low, high))
            shifts[host_of == host] = shift
            error = max(error, high - shift, shift - low)
        for i, (first, last) in times.items():
            first, last = first + shift, last + shift
            if i in earlier:
                first = np.minimum(earlier[i][0], first)
                last = np.maximum(earlier[i][1], last)
            earlier[i] = first, last
    return shifts, error


def _times_on_host(
    groups: Sequence[Group], hosts: Sequence[str], host: str
) -> dict[int, tuple[Array, Array]]:
    """Return a dict from the index of each group that has a rank on a host to when the first and
    the last of these ranks began each collective."""
    times = {}
    for i, group in enumerate(groups):
        members = zip(group.ranks, group.begun_ns, strict=True)
        on_host = [begun_ns for rank, begun_ns in members if hosts[rank] == host]
        if on_host:
            times[i] = np.min(on_host, axis=0), np.max(on_host, axis=0)
    return times


def _bounds_of_shift(
    groups: Sequence[Group],
    earlier: Mapping[int, tuple[Array, Array]],
    times: Mapping[int, tuple[Array, Array]],
) -> tuple[int, int]:
    """Return the least and the most that can be added to a host's times, in nanoseconds."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for i, (first, last) in times.items():
        waited_for = groups[i].waited_for[:-1]
        if i in earlier and waited_for.any():
            earlier_first, earlier_last = earlier[i]
            low = max(low, int((earlier_last[:-1] - first[1:])[waited_for].max()))
            high = min(high, int((earlier_first[1:] - last[:-1])[waited_for].min()))
    return low, high
