"""Every kind of batch is counted; what cannot be counted is said once and never raises."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from voirkit_instruments.steps.batch_sizes import ItemCounter, count_items

IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8)
Pair = namedtuple("Pair", "x y")


class Sized:
    def __len__(self) -> int:
        return 5


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __repr__(self) -> str:
        raise RuntimeError("do not print")


class Slotted:
    """A batch without a ``__dict__``; in alphabetical order its first slot would be the edges."""

    __slots__ = ("x", "edges", "never_set")  # noqa: RUF023  # the order is the subject

    def __init__(self, x: Any = IMAGES) -> None:
        self.x, self.edges = x, torch.zeros(2, 30)


class SlottedMore(Slotted):
    __slots__ = ("a_number",)

    def __init__(self) -> None:
        super().__init__()
        self.a_number = torch.zeros(3)


class WithDictionary(Slotted):
    """A subclass without ``__slots__``: what its base declares is in slots, the rest in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = torch.zeros(5)


class WithPrivateSlot:
    __slots__ = ("__tokens", "a_mask")

    def __init__(self) -> None:
        self.__tokens, self.a_mask = LABELS, torch.zeros(2, 3)


class GraphsInSlots:
    __slots__ = ("num_graphs", "x")

    def __init__(self) -> None:
        self.num_graphs, self.x = 4, torch.zeros(90, 2)


@dataclass(slots=True)
class Fields:
    past: Any
    future: Any = LABELS


@dataclass
class BaseInDictionary:
    past: Any


@dataclass(slots=True)
class DerivedInSlots(BaseInDictionary):
    future: Any = LABELS


COUNTED = {
    "a tensor has its first dimension": (IMAGES, 8),
    "a tensor without dimensions is one item": (torch.tensor(3.0), 1),
    "an empty tensor has none": (torch.zeros(0, 3), 0),
    "a tuple of fields has the first one's": ((IMAGES, LABELS), 8),
    "a list of fields has the first one's": ([IMAGES, LABELS], 8),
    "a named tuple of fields has the first one's": (Pair(IMAGES, LABELS), 8),
    "a tuple whose first element has no dimension has the next one's": (
        (torch.tensor(1), "x", LABELS),
        8,
    ),
    "fields in fields": (((IMAGES, IMAGES), LABELS), 8),
    "fields in fields only": (((IMAGES, IMAGES), (LABELS, LABELS)), 8),
    "a dictionary has its first tensor's": ({"name": "x", "x": IMAGES, "y": LABELS}, 8),
    "a dictionary-like object too": (UserDict(input_ids=LABELS), 8),
    "an ordered dictionary too": (OrderedDict(x=LABELS), 8),
    "a dictionary of lists has the list's": ({"text": ["a", "b", "c"]}, 3),
    "dictionaries in dictionaries": ({"inputs": {"x": IMAGES}, "id": 3}, 8),
    "a pair of a dictionary and a tensor": (({"x": IMAGES}, LABELS), 8),
    "a list of ints has its length": ([4, 5, 6], 3),
    "a list of strings has its length": (["a", "b"], 2),
    "a list of numbers without dimensions has its length": ([torch.tensor(1), torch.tensor(2)], 2),
    "lists of different lengths are samples": ([[1, 2, 3], [4, 5], [6], [7]], 4),
    "equal lists are fields": ((["a", "b", "c"], [0, 1, 1]), 3),
    "dictionaries with the same keys are samples": ([{"image": IMAGES[0], "box": LABELS}] * 4, 4),
    "detection: images and targets, each a tuple": (
        ((IMAGES[0],) * 6, ({"boxes": torch.zeros(2, 4)},) * 6),
        6,
    ),
    "samples that nothing has collated": ([(IMAGES[0], 1)] * 6, 6),
    "samples of detection that nothing has collated": (
        [[IMAGES[0], {"boxes": torch.zeros(2, 4)}]] * 6,
        6,
    ),
    "a batch of one uncollated sample": ([(IMAGES[0], 1)], 1),
    "an object with a length": (Sized(), 5),
    "a deque": (deque([1, 2]), 2),
    "packed sequences": (pack_sequence([torch.zeros(3), torch.zeros(2)]), 2),
    "a batch of graphs": (SimpleNamespace(num_graphs=4, x=torch.zeros(90, 2)), 4),
    "an object with fields": (SimpleNamespace(tokens=IMAGES, y=LABELS), 8),
    "an object with slots": (Slotted(), 8),
    "an object with slots of its own and of its base class": (SlottedMore(), 8),
    "an object with slots and a dictionary": (WithDictionary(), 8),
    "an object with a slot whose name python changes": (WithPrivateSlot(), 8),
    "a batch of graphs that says so in a slot": (GraphsInSlots(), 4),
    "a dataclass with slots": (Fields(IMAGES), 8),
    "a dataclass with slots whose base class has none": (DerivedInSlots(IMAGES), 8),
    "slots in slots": (Fields(Fields({"x": IMAGES}), None), 8),
    "slots in a dictionary": ({"inputs": Fields(IMAGES), "id": 3}, 8),
    "a pair of an object with slots and a number": ((Fields(IMAGES), 3), 8),
    "a pair of an object with a dictionary and a string": ((SimpleNamespace(x=IMAGES), "train"), 8),
    "objects of one class are samples": ((Fields(IMAGES), Fields(IMAGES)), 2),
    "objects in a list are samples": ([Fields(IMAGES), WithDictionary()], 2),
    "an int is one item": (7, 1),
    "a string is one item": ("abc", 1),
    "an empty list has none": ([], 0),
    "an empty dictionary has none": ({}, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_batch_is_counted(name: str) -> None:
    batch, items = COUNTED[name]
    assert count_items(batch) == items


@pytest.mark.parametrize(
    "make", [lambda: None, object, Hostile, lambda: (i for i in range(3)), lambda: count_items]
)
def test_what_does_not_tell_its_length_is_unknown(make: Callable[[], object]) -> None:
    assert count_items(make()) is None


def test_a_generator_is_not_consumed() -> None:
    numbers = (i for i in range(3))
    count_items(numbers)
    assert list(numbers) == [0, 1, 2]


def test_a_list_that_holds_itself_ends() -> None:
    batch: list[Any] = []
    batch.append(batch)
    assert count_items(batch) is not None


def test_a_long_list_is_not_walked() -> None:
    class Counting(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("walked")

    assert count_items(Counting(range(100_000))) == 100_000


def test_an_unknown_batch_is_reported_once_without_its_repr() -> None:
    said: list[str] = []
    count = ItemCounter(said.append)
    assert [count(Hostile()), count(Hostile()), count([1, 2])] == [None, None, 2]
    assert len(said) == 1
    assert "Hostile" in said[0]


def test_a_counting_function_that_raises_counts_as_unknown() -> None:
    said: list[str] = []
    assert ItemCounter(said.append, len)(3) is None
    assert "TypeError" in said[0]


class Telling:
    """Whatever it is asked for by its own code, it tells."""

    asked: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.x, self.y = IMAGES, LABELS

    @property
    def shape(self) -> Any:
        self.asked.append("shape")
        return (3,)

    @property
    def num_graphs(self) -> int:
        self.asked.append("num_graphs")
        return 3

    def __len__(self) -> int:
        self.asked.append("len")
        return 3

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


class TellingSlots:
    """Its slots are read where they lie, not through what its class puts before them."""

    __slots__ = ("_x", "asked")
    telling: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self._x = IMAGES

    def __getattribute__(self, name: str) -> Any:
        TellingSlots.telling.append(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        TellingSlots.telling.append(name)
        raise AttributeError(name)

    @property
    def shape(self) -> Any:
        return (3,)


class TellingList(list[Any]):
    asked: ClassVar[list[str]] = []

    def __getitem__(self, at: Any) -> Any:
        self.asked.append("getitem")
        return super().__getitem__(at)

    def __len__(self) -> int:
        self.asked.append("len")
        return 1


class TellingTensor(torch.Tensor):
    asked: ClassVar[list[str]] = []

    @property
    def batch_size(self) -> int:
        self.asked.append("batch_size")
        return 3


@pytest.mark.parametrize(
    ("make", "items"),
    [
        (Telling, 8),
        (TellingSlots, 8),
        (lambda: [Telling()], 1),
        (lambda: {"x": Telling()}, 8),
        (lambda: TellingList([IMAGES, LABELS]), 8),
        (lambda: IMAGES.as_subclass(TellingTensor), 8),
    ],
)
def test_a_batch_of_a_class_of_the_program_is_counted_without_running_its_code(
    make: Callable[[], object], items: int
) -> None:
    assert count_items(make()) == items
    assert Telling.asked == TellingSlots.telling == TellingList.asked == TellingTensor.asked == []
