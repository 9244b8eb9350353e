"""Which parameters an optimizer has, what is known of each, and which of them are looked at in which step."""

from __future__ import annotations

import operator
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from voirkit_instruments.parameters_figures import Figures
    from voirkit_instruments.parameters_named import Name

AT_FIRST = 64 << 20  # bytes: up to here all parameters are looked at in the first step, which has a copy of each


class Watched:
    """A parameter that an optimizer steps, or one of the models' that none does.

    Attributes:
        name: What it is called.
        where: Its group and place in it; None if no optimizer has it.
        meta: (type, dtype, device, requires_grad, shape) as they were seen last; None if it has not been seen.
        state: The flags that were recorded last, of a step.
        zeroed: Those after ``zero_grad``.
        why_not: Why its data is not looked at; empty if it is.
        place: How many elements are sampled, and how far apart; None: none are.
        is_whole: All of them are.
        turn: In which step of each round it is looked at.
        ids: Interned names of its records, by category.
        digest: Its last one.
    """

    __slots__ = ("digest", "ids", "is_whole", "meta", "name", "place", "ref", "state", "stride", "turn", "where", "why_not", "zeroed")

    def __init__(self, parameter: Any, name: Name, where: tuple[int, int] | None) -> None:
        self.ref = weakref.ref(parameter)
        self.name, self.where = name, where
        self.meta: Any = None
        self.state = self.zeroed = -1
        self.why_not = ""
        self.place: tuple[int, int] | None = None
        self.is_whole = False
        self.stride: Any = None
        self.turn = 0
        self.ids: dict[str, int] = {}
        self.digest: int | None = None


class Group:
    """Parameters on one device, of one type: their samples are taken together.

    Attributes:
        at: Their places among all.
        starts: Where the sample of each begins among those of all.
    """

    __slots__ = ("at", "starts")

    def __init__(self, at: list[int], counts: list[int]) -> None:
        self.at = at
        self.starts = [sum(counts[:n]) for n in range(len(counts))]


class Plan:
    """What is watched in the steps of one optimizer.

    Args:
        ordinal: The optimizer's number.
        kind: Its class's name.
        every: How many steps a round has.

    Attributes:
        n: How many steps it has made.
        watched: What is watched.
        groups: Their groups.
    """

    def __init__(self, ordinal: int, kind: str, every: int) -> None:
        self.ordinal, self.kind, self.every = ordinal, kind, every
        self.n = 0
        self.args = 0
        self.watched: list[Watched] = []
        self.groups: list[Group] = []
        self.turns: list[list[int]] = []
        self.all_at_first = True
        self.models = self.others = -1  # how many models and optimizers were known when it was made
        self._by_id: dict[int, Watched] = {}

    def is_of(self, parameters: Sequence[Any]) -> bool:
        """Whether it was made for these very parameters."""
        return len(parameters) == len(self.watched) and all(map(operator.is_, parameters, [one.ref() for one in self.watched]))

    def take(self, parameters: Sequence[Any], wheres: Sequence[tuple[int, int] | None], name_of: Callable[[Any, Any], Name]) -> None:
        """Watch these from now on; what was known of those that stay is kept."""
        known, self._by_id, self.watched = self._by_id, {}, []
        for parameter, where in zip(parameters, wheres, strict=True):
            one = known.get(id(parameter))
            if one is None or one.ref() is not parameter:
                one = Watched(parameter, name_of(parameter, where), where)
            elif one.where != where:
                one.where, one.meta = where, None
            self.watched.append(one)
            self._by_id[id(parameter)] = one

    def arrange(self, parameters: Sequence[Any], figures: Figures) -> None:
        """Sort what is watched into groups and turns."""
        kinds: dict[tuple[Any, Any], list[int]] = {}
        sizes = [0] * len(parameters)
        for at, (parameter, one) in enumerate(zip(parameters, self.watched, strict=True)):
            one.place = one.stride = None
            if one.why_not:
                continue
            sizes[at] = parameter.numel() * parameter.element_size()
            one.stride = parameter.stride()
            one.place = figures.place(parameter)
            one.is_whole = one.place is not None and one.place[0] == parameter.numel()
            if one.place is not None:
                kinds.setdefault((parameter.device, parameter.dtype), []).append(at)
        self.groups = [Group(ats, [self.watched[at].place[0] for at in ats]) for ats in kinds.values()]  # type: ignore[index]
        total, before = sum(sizes) or 1, 0.0
        self.turns = [[] for _ in range(self.every)]
        for at, (one, size) in enumerate(zip(self.watched, sizes, strict=True)):
            one.turn = min(int((before + size / 2) / total * self.every), self.every - 1)
            before += size
            if not one.why_not:
                self.turns[one.turn].append(at)
        self.all_at_first = total <= AT_FIRST

    def due(self) -> list[int]:
        """The places of those that are looked at in this step."""
        if self.n == 0 and self.all_at_first:
            return [at for turn in self.turns for at in turn]
        return self.turns[self.n % self.every]
