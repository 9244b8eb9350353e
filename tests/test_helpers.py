"""``iterate`` is a for loop that gives progress and steps; ``log`` reaches the overseer; neither needs one."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from giving import give, given

from voirkit import current_overseer, iterate, log, set_current_overseer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Overseer:
    """As much of an overseer as the helpers speak to."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, data: dict[str, Any]) -> None:
        self.logged.append(data)


@pytest.fixture
def overseer() -> Iterator[Overseer]:
    overseer = Overseer()
    before = set_current_overseer(overseer)
    yield overseer
    set_current_overseer(before)


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """All that is given, with the wraps' ids left out."""
    found: list[dict[str, Any]] = []

    def keep(data: dict[str, Any]) -> None:
        wrap = data.get("$wrap")
        found.append({**data, "$wrap": (wrap["name"], wrap["step"])} if wrap else data)

    with given() as gv:
        gv.subscribe(keep)
        yield found


BEGIN, END = ("step", "begin"), ("step", "end")


def progress(i: int, n: int, task: str = "t") -> dict[str, Any]:
    return {"task": task, "progress": (i, n)}


def step(which: tuple[str, str], **keys: Any) -> dict[str, Any]:
    return {"task": "t", "$wrap": which, **keys}


class Closing:
    """A generator function whose generators note when they end."""

    def __init__(self, items: int = 3) -> None:
        self.items = items
        self.ended = 0

    def __call__(self) -> Iterator[int]:
        try:
            yield from range(self.items)
        finally:
            self.ended += 1


class Sized:
    """An iterable that says that it has another length than it has."""

    def __init__(self, items: list[Any], length: Callable[[], int]) -> None:
        self.items, self.length = items, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return self.length()


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


# the overseer and the log


def test_there_is_no_overseer_outside_voirkit() -> None:
    assert current_overseer() is None


def test_a_new_overseer_is_current_until_the_one_before_is_set_again() -> None:
    overseer = Overseer()
    before = set_current_overseer(overseer)
    assert current_overseer() is overseer
    assert set_current_overseer(before) is overseer
    assert current_overseer() is before


def test_log_reaches_the_overseer(overseer: Overseer) -> None:
    log(loss=1.5, step=3)
    assert overseer.logged == [{"loss": 1.5, "step": 3}]


def test_log_does_nothing_outside_voirkit() -> None:
    log(loss=1.5)


def test_a_thread_logs_to_the_same_overseer(overseer: Overseer) -> None:
    thread = threading.Thread(target=log, kwargs={"loss": 1.5})
    thread.start()
    thread.join()
    assert overseer.logged == [{"loss": 1.5}]


# iterate: what is given


def test_progress_is_given_before_the_first_item_and_after_each(
    events: list[dict[str, Any]],
) -> None:
    for x in iterate("t", "ab"):
        give(x=x)
    assert events == [
        progress(0, 2),
        {"task": "t", "x": "a"},
        progress(1, 2),
        {"task": "t", "x": "b"},
        progress(2, 2),
    ]


def test_no_progress_is_given_when_the_length_is_unknown(events: list[dict[str, Any]]) -> None:
    assert list(iterate("t", iter("ab"))) == ["a", "b"]
    assert events == []


def test_a_step_wraps_the_fetching_of_the_batch_and_the_body(events: list[dict[str, Any]]) -> None:
    class Loader(Sized):
        def __iter__(self) -> Iterator[Any]:
            for item in self.items:
                give(loading=item)
                yield item

    for x in iterate("t", Loader(["a"], lambda: 1), report_batch=True):
        give(x=x)
    assert events == [
        progress(0, 1),
        step(BEGIN, batch=None),
        {"task": "t", "loading": "a"},
        {"task": "t", "x": "a"},
        step(END, batch="a"),
        progress(1, 1),
    ]


def test_a_step_leaves_the_fetching_out_when_told_to_ignore_it(
    events: list[dict[str, Any]],
) -> None:
    def load() -> Iterator[str]:
        give(loading=1)
        yield "a"

    for x in iterate("t", load(), report_batch=True, ignore_loading=True):
        give(x=x)
    assert events == [
        {"task": "t", "loading": 1},
        step(BEGIN, batch="a"),
        {"task": "t", "x": "a"},
        step(END, batch="a"),
    ]


def test_a_loop_of_unknown_length_ends_with_a_step_without_a_batch(
    events: list[dict[str, Any]],
) -> None:
    list(iterate("t", iter("a"), report_batch=True))
    assert events == [
        step(BEGIN, batch=None),
        step(END, batch="a"),
        step(BEGIN, batch=None),
        step(END, batch=None),
    ]


@pytest.mark.parametrize(("batch_size", "size"), [(len, 3), (7, 7)])
def test_a_step_carries_the_batch_size_when_told_how(
    events: list[dict[str, Any]], batch_size: Callable[[str], int] | int, size: int
) -> None:
    list(iterate("t", ["abc"], report_batch=True, batch_size=batch_size))
    list(iterate("t", ["abc"], report_batch=True, ignore_loading=True, batch_size=batch_size))
    assert [e for e in events if "$wrap" in e] == [
        step(BEGIN, batch_size=None),
        step(END, batch_size=size),
        step(BEGIN, batch_size=size),
        step(END, batch_size=size),
    ]


def test_each_turn_has_a_wrap_of_its_own() -> None:
    with given() as gv:
        ids = gv["?$wrap"].map(lambda w: w["id"]).accum()
        list(iterate("t", "ab", report_batch=True))
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_nothing_happens_before_the_first_item_is_asked_for(events: list[dict[str, Any]]) -> None:
    iterate("t", "ab", report_batch=True)
    assert events == []


# iterate: it is a for loop


def test_the_task_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="the task must be a string, such as 'train', not list"):
        iterate([1, 2], "task")  # type: ignore[arg-type]


def test_what_can_not_be_iterated_over_is_the_usual_error() -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        next(iterate("t", 5))  # type: ignore[arg-type]


def test_the_iterable_is_asked_until_it_ends_although_its_length_is_known() -> None:
    closing = Closing(2)

    class Loader(Sized):
        def __iter__(self) -> Iterator[Any]:
            return closing()

    loop = iterate("t", Loader([], lambda: 2), report_batch=True)
    assert [next(loop), next(loop)] == [0, 1]
    assert closing.ended == 0
    assert next(loop, None) is None
    assert closing.ended == 1


def test_a_length_that_is_too_short_loses_no_item(events: list[dict[str, Any]]) -> None:
    assert list(iterate("t", Sized([1, 2, 3], lambda: 1))) == [1, 2, 3]
    assert events == [progress(0, 1), progress(1, 1), progress(2, 2), progress(3, 3)]


def test_a_length_that_is_too_short_keeps_every_step(events: list[dict[str, Any]]) -> None:
    list(iterate("t", Sized([1, 2], lambda: 1), report_batch=True))
    assert [e["batch"] for e in events if e.get("$wrap") == END] == [1, 2]


def test_a_length_that_is_too_long_ends_where_the_items_end(events: list[dict[str, Any]]) -> None:
    assert list(iterate("t", Sized([1], lambda: 5))) == [1]
    assert events == [progress(0, 5), progress(1, 5)]


def test_a_list_that_grows_in_the_loop_is_followed(events: list[dict[str, Any]]) -> None:
    work = [1]
    for x in iterate("t", work):
        if x < 3:
            work += [x + 1, 9]
    assert [e["progress"] for e in events] == [(0, 1), (1, 1), (2, 5), (3, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, RuntimeError])
def test_a_length_that_can_not_be_told_is_no_error(error: type[Exception]) -> None:
    def fail() -> int:
        raise error

    assert list(iterate("t", Sized([1], fail))) == [1]


@pytest.mark.parametrize(
    "options", [{}, {"report_batch": True}, {"report_batch": True, "ignore_loading": True}]
)
def test_a_break_ends_the_step_and_lets_the_iterable_go(
    events: list[dict[str, Any]], options: dict[str, bool]
) -> None:
    closing = Closing()
    for _ in iterate("t", closing(), **options):
        break
    assert closing.ended == 1
    assert [e["$wrap"] for e in events] == ([BEGIN, END] if options else [])


def test_an_iterator_that_the_program_holds_goes_on_after_a_break() -> None:
    numbers = (i for i in range(4))
    for _ in iterate("t", numbers, report_batch=True):
        break
    assert list(numbers) == [1, 2, 3]


def test_an_exception_in_the_body_ends_the_step_and_the_iterable(
    events: list[dict[str, Any]],
) -> None:
    closing = Closing()

    def body() -> None:
        for _ in iterate("t", closing(), report_batch=True):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    assert closing.ended == 1
    assert [e["$wrap"] for e in events] == [BEGIN, END]


def test_an_exception_of_the_iterable_ends_the_step_and_passes(
    events: list[dict[str, Any]],
) -> None:
    def load() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(iterate("t", load(), report_batch=True))
    assert [e["$wrap"] for e in events] == [BEGIN, END, BEGIN, END]


@pytest.mark.parametrize("ignore_loading", [True, False])
def test_a_stop_iteration_of_the_batch_size_does_not_end_the_loop_in_silence(
    ignore_loading: bool,
) -> None:
    def batch_size(batch: int) -> int:
        return next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(
            iterate(
                "t", [1, 2], report_batch=True, ignore_loading=ignore_loading, batch_size=batch_size
            )
        )


@pytest.mark.parametrize(
    "options", [{}, {"report_batch": True}, {"report_batch": True, "ignore_loading": True}]
)
def test_the_last_batch_is_let_go_before_the_next_is_fetched(options: dict[str, bool]) -> None:
    class Batch:
        pass

    alive: list[int] = []

    def load() -> Iterator[Batch]:
        refs: list[weakref.ref[Batch]] = []
        for _ in range(3):
            alive.append(sum(r() is not None for r in refs))
            batch = Batch()
            refs.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in iterate("t", load(), **options):
        del batch
    assert alive == [0, 0, 0]


# iterate: the task


@pytest.mark.parametrize("leave", ["end", "break"])
def test_the_task_is_not_inherited_after_the_loop(events: list[dict[str, Any]], leave: str) -> None:
    for _ in iterate("t", "ab"):
        if leave == "break":
            break
    give(after=1)
    assert events[-1] == {"after": 1}


def test_an_inner_loop_has_its_own_task_and_gives_the_outer_one_back(
    events: list[dict[str, Any]],
) -> None:
    for _ in iterate("outer", [0]):
        list(iterate("inner", [0]))
        give(x=1)
    assert [e["task"] for e in events] == ["outer", "inner", "inner", "outer", "outer"]


def test_loops_that_end_in_another_order_than_they_began_leave_no_task_behind(
    events: list[dict[str, Any]],
) -> None:
    first, second = iterate("first", "ab"), iterate("second", "ab")
    next(first)
    next(second)
    first.close()  # type: ignore[attr-defined]
    give(x=1)
    assert events[-1] == {"task": "second", "x": 1}
    second.close()  # type: ignore[attr-defined]
    give(x=2)
    assert events[-1] == {"x": 2}


def test_what_is_inherited_around_the_loop_is_kept(events: list[dict[str, Any]]) -> None:
    with give.inherit(epoch=1):
        list(iterate("t", "a"))
        give(x=1)
    assert events == [
        {"epoch": 1, **progress(0, 1)},
        {"epoch": 1, **progress(1, 1)},
        {"epoch": 1, "x": 1},
    ]


def test_a_loop_dropped_in_another_thread_ends_without_a_complaint(
    events: list[dict[str, Any]],
) -> None:
    loops = [iterate("t", "ab")]
    next(loops[0])
    thread = threading.Thread(target=loops.clear)
    thread.start()
    thread.join()
    gc.collect()
    give(after=1)
    assert events[-1] == {"after": 1}


# outside voirkit


def test_outside_voirkit_iterate_imports_no_giving() -> None:
    code = """
import sys
from voirkit import iterate, log
log(x=1)
print([x for x in iterate("t", range(3), report_batch=True, batch_size=1)], "giving" in sys.modules)
"""
    assert python(code) == "[0, 1, 2] False\n"


def test_outside_voirkit_iterate_is_a_for_loop_to_the_iterable() -> None:
    code = """
from voirkit import iterate
def numbers():
    try:
        yield from range(3)
    finally:
        print("ended")
held = (i for i in range(3))
for x in iterate("t", held): break
print(list(held))
for x in iterate("t", numbers()): break
print("after")
"""
    assert python(code) == "[1, 2]\nended\nafter\n"


def test_outside_voirkit_iterate_gives_if_the_program_uses_giving() -> None:
    code = """
from voirkit import iterate
from giving import given
with given() as gv:
    gv.print()
    for x in iterate("t", "a"): pass
"""
    assert python(code) == "{'task': 't', 'progress': (0, 1)}\n{'task': 't', 'progress': (1, 1)}\n"


def test_with_an_overseer_giving_is_imported_when_the_loop_is_first_advanced() -> None:
    code = """
import sys
from types import SimpleNamespace
from voirkit import iterate, set_current_overseer
set_current_overseer(SimpleNamespace(log=print))
loop = iterate("t", "ab")
print("giving" in sys.modules)
next(loop)
print("giving" in sys.modules)
"""
    assert python(code) == "False\nTrue\n"
