"""Which parameters an optimizer has, what is known of each, and which of them are looked at in which step."""

from __future__ import annotations

import operator
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from voirkit_instruments.parameters.record_figures import Figures
    from voirkit_instruments.parameters.record_names import Name

# How many parameters on the CPU are sampled in a step, and the most steps between two samples of one: a sample of 62 tensors costs 0.9 ms
# behind an Adam.step, whose data is in the caches.
SAMPLED, MOST_ROUNDS = 8, 8


class Watched:
    """A parameter that an optimizer steps, or one of the models' that none does.

    Attributes:
        name: What it is called.
        where: Its group and place in it; None if no optimizer has it.
        meta: (type, dtype, device, requires_grad, shape, whether it is readable, stride) as they were seen last; None: not yet.
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
        groups: For each step of a short round, the groups of what is sampled in it.
        none: Of each parameter, whether it had no gradient in the last step.
        is_finite: No NaN or Inf has been seen in the last step.
        alarms: How often there was one after there was none.
        last_ns: When its last step began.
    """

    def __init__(self, ordinal: int, kind: str, every: int) -> None:
        self.ordinal, self.kind, self.every = ordinal, kind, every
        self.n = 0
        self.args = 0
        self.watched: list[Watched] = []
        self.groups: list[list[Group]] = []
        self.none: list[bool] = []
        self.is_finite = True
        self.alarms = self.last_ns = 0
        self.turns: list[list[int]] = []
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
        self.none = [False] * len(parameters)

    def looked_at(self) -> list[int]:
        """The places of those whose data is looked at in this step."""
        return [*(at for group in self.sampled() for at in group.at), *self.due()] if self.groups else []

    def arrange(self, parameters: Sequence[Any], figures: Figures) -> None:
        """Sort what is watched into groups and turns."""
        rounds: list[dict[tuple[Any, Any], list[int]]] = [{} for _ in range(self._rounds(len(parameters)))]
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
                for number, kinds in enumerate(rounds):
                    if at % len(rounds) == number or parameter.device.type != "cpu":
                        kinds.setdefault((parameter.device, parameter.dtype), []).append(at)
        self.groups = [
            [Group(ats, [self.watched[at].place[0] for at in ats]) for ats in kinds.values()]  # type: ignore[index]
            for kinds in rounds
        ]
        total, before = sum(sizes) or 1, 0.0
        self.turns = [[] for _ in range(self.every)]
        for at, (one, size) in enumerate(zip(self.watched, sizes, strict=True)):
            one.turn = min(int((before + size / 2) / total * self.every), self.every - 1)
            before += size
            if not one.why_not:
                self.turns[one.turn].append(at)

    def sampled(self) -> list[Group]:
        """The groups that are sampled in this step: in the first one all."""
        return self.groups[self.n % len(self.groups)] if self.n else [group for groups in self.groups for group in groups]

    def _rounds(self, count: int) -> int:
        return max(1, min(count // SAMPLED, MOST_ROUNDS, self.every))

    def due(self) -> list[int]:
        """The places of those that are looked at in this step."""
        return self.turns[self.n % self.every]
