"""``dft_fn``: categories and names of the user's own, and what a function's parameters say of a call."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import time

import pytest
from annotating import args, counts, names

from voirkit.dftracer import EntityRelation, TagDType, TagType, TagValue, ai, dft_fn, dftracer


def test_a_block_has_its_category_and_name(recorded):
    with dft_fn("io", "load", epoch=1, step=2, image_idx=3, image_size=4):
        pass
    (event,) = recorded()
    assert (event.category, event.name) == ("io", "load")
    assert event.args == {"epoch": 1, "step": 2, "image_idx": 3, "image_size": 4.0}


def test_without_a_name_it_has_that_of_the_function_that_makes_it(recorded):
    def load():
        with dft_fn("io"):
            pass

    load()
    assert names(recorded()) == ["load"]


def test_every_block_of_one_object_is_recorded(recorded):
    fn = dft_fn("io", "load")
    for _ in range(3):
        with fn:
            pass
    with fn, fn:
        pass
    assert counts(recorded()) == {"load": 5}


def test_flush_records_since_the_last_reset(recorded):
    fn = dft_fn("io", "load")
    fn.flush()
    assert fn.reset() is fn
    fn.update(step=1).flush()
    first, second = recorded()
    assert first.start_ns + first.duration_ns <= second.start_ns
    assert (first.args, second.args) == ({}, {"step": 1})


def test_what_was_flushed_in_a_block_is_not_recorded_again_at_its_end(recorded):
    with dft_fn("io", "load") as fn:
        for step in range(3):
            fn.reset().update(step=step)
            fn.flush()
    assert args(recorded(), "load") == [{"step": 0}, {"step": 1}, {"step": 2}]


def test_an_exception_leaves_its_record(recorded):
    fn = dft_fn("io", "load")

    @fn.log
    def f():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        f()
    with pytest.raises(ValueError, match="x"), fn:
        raise ValueError("x")
    assert [e.name.rpartition(".")[2] for e in recorded()] == ["f", "load"]


def test_a_function_is_recorded_by_its_qualified_name(recorded):
    fn = dft_fn("io")

    class A:
        @fn.log
        def m(self):
            return 1

        @fn.log_init
        def __init__(self):
            self.x = 1

        @fn.log_static
        @staticmethod
        def above():
            return 2

        @staticmethod
        @fn.log_static
        def below():
            return 3

        @fn.log(name="other")
        def n(self):
            return 4

        @fn.log()
        def o(self):
            return 5

    a = A()
    assert (a.x, a.m(), a.above(), A.below(), a.n(), a.o()) == (1, 1, 2, 3, 4, 5)
    here = "test_a_function_is_recorded_by_its_qualified_name.<locals>.A."
    assert names(recorded()) == [
        here + "__init__",
        here + "m",
        here + "above",
        here + "below",
        "other",
        here + "o",
    ]


def test_parameters_of_certain_names_are_arguments_of_that_call_only(recorded):
    fn = dft_fn("io")

    @fn.log(name="f")
    def f(x, step=7, *, epoch=None, image_size=2):
        return x

    f(1)
    f(1, 8, epoch=3)
    f(1, step=9, image_size=None)
    with fn:
        pass
    found = recorded()
    assert args(found, "f") == [
        {"step": 7, "image_size": 2.0},
        {"step": 8, "epoch": 3, "image_size": 2.0},
        {"step": 9},
    ]
    assert found[-1].args == {}


def test_the_first_parameter_counts_too(recorded):
    @dft_fn("io").log(name="f")
    def f(step):
        pass

    f(4)
    assert args(recorded(), "f") == [{"step": 4}]


def test_attributes_of_self_are_arguments_if_they_are_numbers(recorded):
    fn = dft_fn("io")

    class A:
        epoch = 3

        def step(self):
            pass

        @property
        def image_idx(self):
            raise RuntimeError("not now")

        image_size = object()

        @fn.log(name="m")
        def m(self):
            pass

    A().m()
    assert args(recorded(), "m") == [{"epoch": 3}]


def test_what_is_said_about_the_object_holds_for_its_functions(recorded):
    fn = dft_fn("io", epoch=1)

    @fn.log(name="f")
    def f():
        pass

    f()
    fn.update(epoch=2, args={"k": "v"})
    f()
    fn.disable()
    f()
    fn.enable()
    f()
    assert args(recorded(), "f") == [{"epoch": 1}, {"epoch": 2, "k": "v"}, {"epoch": 2, "k": "v"}]


def test_it_can_be_made_disabled(recorded):
    fn = dft_fn("io", "x", enable=False)

    @fn.log
    def f():
        pass

    f()
    with fn:
        fn.flush()
    list(fn.iter([1]))
    fn.log_metadata("k", "v")
    assert recorded() == []


def test_a_loop(recorded):
    fn = dft_fn("io", "x")
    assert list(fn.iter("ab")) == ["a", "b"]
    for _ in fn.iter("ab", name="lines", iter_name="n"):
        break
    assert [(e.name, e.args) for e in recorded()] == [
        ("loop.iter", {"step": 1}), ("loop.yield", {"step": 1}), ("loop.iter", {"step": 2}), ("loop.yield", {"step": 2}),
        ("lines.iter", {"n": 1}), ("lines.yield", {"n": 1}),
    ]  # fmt: skip


def test_coroutines_and_generators(recorded):
    fn = dft_fn("io")

    @fn.log(name="c")
    async def c(step):
        await asyncio.sleep(0.01)
        return step

    @fn.log(name="g")
    def g(step):
        yield step

    assert inspect.iscoroutinefunction(c)
    assert asyncio.run(c(1)) == 1
    assert list(g(2)) == [2]
    found = recorded()
    assert [(e.name, e.args) for e in found] == [("c", {"step": 1}), ("g", {"step": 2})]
    assert found[0].duration_ns > 9e6


def test_metadata(recorded):
    dft_fn("io", "x").log_metadata("batch", 32)
    dftracer.get_instance().set_app_metadata_string("model", "mlp")
    found = [(e.category, e.name, e.kind, e.args) for e in recorded()]
    assert found == [
        ("dftracer", "batch", "meta", {"value": 32}),
        ("dftracer", "model", "meta", {"value": "mlp"}),
    ]


def test_an_event_that_was_timed_elsewhere(recorded):
    log = dftracer.get_instance()
    before, start = time.perf_counter_ns(), log.get_time() - 5000
    log.log_event(
        "x",
        "cat",
        start,
        3000,
        {"n": TagValue(3, TagDType.INT, TagType.KEY).value()},
        {"f": 1.5},
        {"s": "t"},
    )
    log.log_event("wrong", "cat", "no", None)
    with ai.compute:
        pass
    x, later = recorded()
    assert (x.category, x.name, x.args, x.duration_ns) == (
        "cat",
        "x",
        {"n": 3, "f": 1.5, "s": "t"},
        3_000_000,
    )
    assert 4.9e6 < later.start_ns - x.start_ns < 5.1e6 + time.perf_counter_ns() - before


def test_values_with_dftracers_marks_are_values(recorded):
    with dft_fn("io", "x").update(args={"n": TagValue(3, TagDType.INT)}):
        pass
    assert args(recorded(), "x") == [{"n": 3}]


def test_things_that_are_used_are_named_until_the_next_reset(recorded):
    fn = dft_fn("io", "x")
    number = fn.uses("file", "a.npy")
    assert (
        number
        == dftracer.get_instance().declare_entity("file", "a.npy")
        == fn.uses("file", "a.npy")
    )
    fn.generates("tensor", 3)
    fn.relate(EntityRelation.CONTAINS, number)
    fn.relate("no such", number)
    fn.flush()
    fn.reset().flush()
    assert args(recorded(), "x") == [
        {"used": "file:a.npy, file:a.npy", "generated": "tensor:3"},
        {},
    ]


def test_it_can_be_pickled_and_copied(recorded):
    for fn in (
        pickle.loads(pickle.dumps(dft_fn("io", "x", epoch=1))),
        copy.deepcopy(dft_fn("io", "x", epoch=1)),
    ):
        with fn:
            pass
    assert args(recorded(), "x") == [{"epoch": 1}, {"epoch": 1}]
