"""The collectives that all ranks of a group have begun, and the clocks of hosts by them."""

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
    """The collectives that all ranks of a group have begun, in their order."""

    name: str  # of the group
    ranks: tuple[int, ...]  # indices of its members, ascending
    # when each member began each; an array of shape (n,) for each, as a matrix of all would be a
    # copy of what they know
    begun_ns: Sequence[Array]
    names: Array  # what each was; shape (n,)
    bytes: Array  # what each rank passed in; -1: not known. Same shape.
    # whether its ranks waited for each before they began the next one. Same shape.
    waited_for: Array

    def begun_in_ns(self, selection: Array | slice) -> Array:
        """When each member began some of them; shape (members, n)."""
        return np.stack([begun_ns[selection] for begun_ns in self.begun_ns])


def matched(exchanged: Mapping[int, Collectives]) -> list[Group]:
    """The collectives of each group of two ranks or more, from what each rank has begun, by its
    index."""
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
    """What all members of one group have begun; None where they have nothing in common."""
    # Most ranks share their numbers, and have the same places.
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
    """True for each collective of a group; shape (n,)."""
    return np.array([group == name for group, _, _ in exchanged.kinds], bool)[exchanged.kind]


def _find_last(numbers: Array, number: Array, in_group: Array) -> Array:
    """The index of the last collective of a group with each of these numbers."""
    indices = np.flatnonzero(in_group)
    by_number = indices[np.argsort(number[indices], kind="stable")]
    last = np.searchsorted(number[by_number], numbers, side="right") - 1
    return by_number[last]


def _is_waited_for(names: Array, backward: Array) -> Array:
    """True for each collective but a reduction before another collective of the same backward
    pass."""
    waited_for = np.ones(len(names), dtype=bool)
    in_pass = (backward[:-1] != NONE) & (backward[:-1] == backward[1:])
    waited_for[:-1] = ~(np.isin(names[:-1], REDUCTIONS) & in_pass)
    return waited_for


def aligned(
    groups: Sequence[Group], hosts: Sequence[str], shifts_ns: Sequence[int]
) -> tuple[Array, int | None]:
    """The clocks of hosts, held against each other: no rank can begin a collective before all have
    begun the one that it waited for.

    Args:
        groups: Collectives.
        hosts: Of each rank.
        shifts_ns: By rank, what is to be added to its times for those of the first one, by the
            hosts' own wall clocks.

    Returns:
        The same, moved as far as must be, and by how much at most it may be wrong: 0 on one host,
        None where that cannot be told.
    """
    shifts = np.array(shifts_ns, dtype=np.int64)
    error = 0
    host_of = np.array(hosts)
    # by group, when the first and the last of the hosts before began each
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
    """By group with a rank on a host, when the first and the last of its ranks there began each."""
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
    """The least and the most that can be added to a host's times, in nanoseconds."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for i, (first, last) in times.items():
        waited_for = groups[i].waited_for[:-1]
        if i in earlier and waited_for.any():
            earlier_first, earlier_last = earlier[i]
            low = max(low, int((earlier_last[:-1] - first[1:])[waited_for].max()))
            high = min(high, int((earlier_first[1:] - last[:-1])[waited_for].min()))
    return low, high
