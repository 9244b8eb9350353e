"""What records carry: what was said about a node or those above it, the latest of it, in values that a trace can hold."""

from __future__ import annotations

import enum
import threading

import pytest
from annotating import args


def said(node):
    with node:
        pass


def test_what_is_said_about_a_node_holds_for_all_below(ai, recorded):
    ai.compute.update(epoch=7)
    said(ai.compute.forward)
    said(ai.compute)
    said(ai.compute.forward.derive("x"))
    said(ai.comm.send)
    assert [e.args for e in recorded()] == [{"epoch": 7}, {"epoch": 7}, {"epoch": 7}, {}]


def test_it_holds_until_something_else_is_said(ai, recorded):
    ai.update(epoch=1, step=1)
    said(ai.device)
    ai.update(step=2)
    said(ai.device)
    assert [e.args for e in recorded()] == [{"epoch": 1, "step": 1}, {"epoch": 1, "step": 2}]


def test_the_latest_counts_wherever_it_was_said(ai, recorded):
    ai.compute.forward.update(epoch=1)
    ai.update(epoch=2)
    said(ai.compute.forward)
    ai.compute.forward.update(epoch=3)
    said(ai.compute.forward)
    said(ai.compute.backward)
    assert [e.args for e in recorded()] == [{"epoch": 2}, {"epoch": 3}, {"epoch": 2}]


def test_a_node_that_is_derived_later_carries_what_was_said_before(ai, recorded):
    ai.data.update(epoch=4, args={"k": "v"})
    said(ai.data.preprocess.derive("late"))
    assert args(recorded(), "preprocess.late") == [{"epoch": 4, "k": "v"}]


def test_a_record_has_the_arguments_of_its_end(ai, recorded):
    with ai.compute:
        ai.compute.update(step=5)
    assert args(recorded(), "compute") == [{"step": 5}]


def test_arguments_in_parentheses_belong_to_that_use(ai, recorded):
    said(ai.compute.forward(epoch=1, args={"a": "v"}))
    said(ai.compute.forward)
    assert args(recorded(), "forward") == [{"epoch": 1, "a": "v"}, {}]


def test_arguments_in_parentheses_count_more_than_what_is_said_about_the_tree(ai, recorded):
    use = ai.compute.forward(epoch=1)
    ai.update(epoch=2, step=3)
    said(use)
    use.update(epoch=9)
    said(use)
    assert args(recorded(), "forward") == [{"epoch": 1, "step": 3}, {"epoch": 9, "step": 3}]


def test_a_decorator_with_arguments_gives_them_to_its_function_only(ai, recorded):
    @ai.compute.forward(args={"a": 1})
    def f():
        pass

    @ai.compute.forward
    def g():
        pass

    f()
    g()
    f()
    assert args(recorded(), "forward") == [{"a": 1}, {}, {"a": 1}]


def test_a_use_of_a_use_has_the_arguments_of_both(ai, recorded):
    said(ai.compute(epoch=1)(step=2))
    said(ai.compute(epoch=1).derive("x"))
    assert [e.args for e in recorded()] == [{"epoch": 1, "step": 2}, {"epoch": 1}]


def test_arguments_can_be_removed(ai, recorded):
    ai.update(epoch=1, step=2, args={"lr": 0.1})
    ai.compute.forget("step", "lr", "unknown")
    said(ai.compute.forward)
    said(ai.device)
    ai.update(step=3)
    said(ai.compute.forward)
    assert [e.args for e in recorded()] == [
        {"epoch": 1},
        {"epoch": 1, "step": 2, "lr": 0.1},
        {"epoch": 1, "step": 3},
    ]


def test_none_says_nothing_about_a_named_argument_and_is_a_value_among_the_others(ai, recorded):
    ai.update(epoch=1)
    ai.update(epoch=None, args={"k": None})
    said(ai.device)
    assert args(recorded(), "device") == [{"epoch": 1, "k": None}]


def test_a_change_of_type_replaces_the_value(ai, recorded):
    for value in (1.5, 2, "s", True):
        ai.update(args={"k": value})
        said(ai.device)
    assert args(recorded(), "device") == [{"k": 1.5}, {"k": 2}, {"k": "s"}, {"k": True}]


def test_update_returns_the_node(ai):
    assert ai.compute.update(epoch=1) is ai.compute
    assert ai.compute.forget("epoch") is ai.compute


@pytest.mark.parametrize("call", ["update", "__call__"])
def test_a_keyword_that_is_none_is_a_type_error(ai, call):
    with pytest.raises(TypeError, match="foo"):
        getattr(ai.compute, call)(foo=1)


def test_what_is_said_about_a_disabled_node_is_kept(ai, recorded):
    ai.compute.disable()
    ai.compute.update(epoch=1)
    ai.compute.enable()
    said(ai.compute)
    assert args(recorded(), "compute") == [{"epoch": 1}]


class Text(str):
    def __repr__(self):
        raise RuntimeError("asked")

    __str__ = __format__ = __repr__


class Odd:
    def __repr__(self):
        raise RuntimeError("asked")

    __str__ = __bool__ = __eq__ = __hash__ = __int__ = __index__ = __float__ = __len__ = (
        __iter__
    ) = __repr__


class Meta(type):
    def __repr__(cls):
        raise RuntimeError("asked")

    __getattribute__ = __repr__


class Level(enum.IntEnum):
    HIGH = 3


class Numbers(dict):
    def items(self):
        raise RuntimeError("asked")


LOOP: list[object] = []
LOOP.append(LOOP)
VALUES = [
    (1, 1),
    (-(2**70), -(2**70)),
    (1.5, 1.5),
    ("a\"b\\\n\x00é\ud800", "a\"b\\\n\x00é\ud800"),
    (True, True),
    (None, None),
    ([1, "a", None, 2.5], "[1, 'a', None, 2.5]"),
    ((1,), "(1,)"),
    ({"a": [1]}, "{'a': [1]}"),
    (set(), "set()"),
    (Level.HIGH, 3),
    (Text("t"), "t"),
    (Odd(), "<test_arguments.Odd>"),
    ([Odd()], "[<test_arguments.Odd>]"),
    ({Text("k"): Odd()}, "{'k': <test_arguments.Odd>}"),
    (Numbers(a=1), "<test_arguments.Numbers>"),
    (Meta("M", (), {})(), "<test_arguments.M>"),
    (Meta("M", (), {}), "<test_arguments.Meta>"),
    (LOOP, "[[[[...]]]]"),
    (len, "<builtin_function_or_method>"),
    (b"x", "<bytes>"),
    (1j, "<complex>"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "shown"), VALUES, ids=[f"value{n}" for n in range(len(VALUES))])
def test_a_value_becomes_what_a_trace_can_hold(ai, recorded, value, shown):
    said(ai.device(args={"k": value}))
    ai.update(args={"k": value})
    said(ai.device)
    found = args(recorded(), "device")
    assert found == [{"k": shown}, {"k": shown}]
    assert type(found[0]["k"]) is type(shown)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_no_error(ai, recorded, value):
    said(ai.device(args={"k": value}))
    assert len(recorded()) == 1


def test_the_text_of_a_long_list_is_short(ai, recorded):
    said(ai.device(args={"k": list(range(10**6)), "s": ["x" * 10**6]}))
    (found,) = args(recorded(), "device")
    assert max(map(len, found.values())) <= 256


def test_a_number_of_numpy_is_a_number(ai, recorded):
    numpy = pytest.importorskip("numpy")
    said(
        ai.device(
            step=numpy.int64(3),
            args={"lr": numpy.float32(0.5), "no": numpy.bool_(False), "a": numpy.zeros(3)},
        )
    )
    assert args(recorded(), "device") == [
        {"step": 3, "lr": 0.5, "no": False, "a": "<numpy.ndarray>"}
    ]


def test_named_arguments_are_numbers_where_they_can_be(ai, recorded):
    said(ai.device(epoch=True, step="2", image_idx=Level.HIGH, image_size=6))
    (found,) = args(recorded(), "device")
    assert [(k, type(v), v) for k, v in found.items()] == [
        ("epoch", int, 1), ("step", str, "2"), ("image_idx", int, 3), ("image_size", float, 6.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [5, "text", [1], Odd(), [("a", 1)], {1: 2, Odd: 3, "x": 4}, {None: None}]
)
def test_nothing_that_is_given_as_arguments_raises(ai, recorded, wrong):
    said(ai.device(args=wrong))
    ai.update(args=wrong)
    said(ai.device)
    ai.update(epoch=wrong, step=wrong, image_idx=wrong, image_size=wrong)
    said(ai.device)
    assert len(recorded()) == 3


def test_threads_may_speak_while_others_record(ai, recorded):
    def work(n):
        for i in range(300):
            ai.update(step=i, args={f"k{n}-{i % 7}": i})
            with ai.compute.forward:
                pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ai.update(step=-1)
    said(ai.compute.forward)
    found = args(recorded(), "forward")
    assert len(found) == 1201
    assert found[-1]["step"] == -1
    assert len(found[-1]) == 29
