"""A decorated function does what it did, looks as it looked, and is recorded for as long as its work takes."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import pickle
import sys
import time
import types
import weakref
from itertools import pairwise

import pytest
from annotating import counts, names

from voirkit.ai import ai as the_tree


@the_tree.compute.forward
def module_level(x):
    """Doubles."""
    return 2 * x


def test_what_it_returns_and_takes_is_unchanged(ai, recorded):
    @ai.compute.forward
    def f(a, /, b, *rest, c=3, **more):
        return a, b, rest, c, more

    assert f(1, 2, 5, c=4, self=6, fn=7) == (1, 2, (5,), 4, {"self": 6, "fn": 7})
    assert str(inspect.signature(f)) == "(a, /, b, *rest, c=3, **more)"
    assert names(recorded()) == ["forward"]


def test_it_keeps_its_name_its_documentation_and_what_it_was():
    assert (module_level.__name__, module_level.__qualname__, module_level.__doc__) == (
        "module_level",
        "module_level",
        "Doubles.",
    )
    assert module_level.__wrapped__(4) == 8
    assert pickle.loads(pickle.dumps(module_level)) is module_level


def test_what_it_raises_comes_out_and_is_recorded(ai, recorded):
    error = ValueError("x")

    @ai.compute.forward
    def f():
        raise error

    with pytest.raises(ValueError, match="x") as caught:
        f()
    assert caught.value is error
    assert names(recorded()) == ["forward"]


@pytest.mark.parametrize("how", ["bare", "called", "function"])
def test_three_spellings_of_preparing(ai, recorded, how):
    init = ai.checkpoint.init

    class C:
        def __init__(self):
            self.n = 1

        __init__ = {"bare": init, "called": init(), "function": lambda fn: init(fn=fn)}[how](
            __init__
        )

    assert C().n == 1
    with ai.checkpoint.init, ai.checkpoint.init():
        pass
    assert counts(recorded()) == {"checkpoint.init": 3}


def test_methods_of_every_kind(ai, recorded):
    class C:
        @ai.data.item
        def plain(self):
            return self

        @ai.data.item
        @classmethod
        def of_class(cls):
            return cls

        @classmethod
        @ai.data.item
        def of_class_inside(cls):
            return cls

        @ai.data.item
        @staticmethod
        def static(x):
            return x

        @property
        @ai.data.item
        def value(self):
            return 1

    c = C()
    assert (c.plain(), c.of_class(), C.of_class_inside(), c.static(2), C.static(2), c.value) == (
        c,
        C,
        C,
        2,
        2,
        1,
    )
    assert counts(recorded()) == {"item": 6}


def test_callables_that_are_no_functions(ai, recorded):
    class Model:
        def __call__(self, x):
            return x + 1

    assert ai.compute.forward(Model())(1) == 2
    assert ai.compute.forward(functools.partial(max, 3))(2) == 3
    assert ai.compute.forward(len)("ab") == 2
    assert counts(recorded()) == {"forward": 3}


def test_a_property_stays_one(ai, recorded):
    class C:
        def __init__(self):
            self._x = 1

        @ai.data.item
        @property
        def x(self):
            """An x."""
            return self._x

        @ai.data.item
        @x.setter
        def x(self, value):
            self._x = value

        @ai.data.preprocess
        @functools.cached_property
        def once(self):
            return [self._x]

    c = C()
    c.x = 2
    assert (c.x, c.once, c.once is c.once, C.x.__doc__) == (2, [2], True, "An x.")
    with pytest.raises(AttributeError):
        del c.x
    assert counts(recorded()) == {"item": 2, "preprocess": 1}


@the_tree.checkpoint.init
class Decorated:
    """A model."""

    def __init__(self, x=1):
        self.x = x


class Derived(Decorated):
    pass


def test_a_class_stays_itself_and_the_making_of_its_objects_is_recorded(recorded):
    made = Decorated(x=2)
    assert isinstance(made, Decorated)
    assert isinstance(Derived(), Decorated)
    assert (Decorated.__name__, Decorated.__doc__, str(inspect.signature(Decorated))) == (
        "Decorated",
        "A model.",
        "(x=1)",
    )
    assert pickle.loads(pickle.dumps(Decorated)) is Decorated
    assert pickle.loads(pickle.dumps(made)).x == 2
    assert counts(recorded()) == {"checkpoint.init": 2}


def test_a_class_without_an_init_of_its_own_is_a_clear_type_error_and_unchanged(ai):
    for kind in (int, list, types.new_class("Plain"), types.new_class("Heir", (Decorated,))):
        before = dict(vars(kind))
        with pytest.raises(
            TypeError,
            match=f"__init__ of its own, which {kind.__name__} has not: decorate the method",
        ):
            ai.compute.forward(kind)
        assert "__init__" in before or dict(vars(kind)) == before


def test_what_can_not_be_called_is_a_type_error(ai):
    with pytest.raises(TypeError, match="decorates a function, not int"):
        ai.compute.forward(5)


def test_recursion_gives_a_record_for_each_call(ai, recorded):
    @ai.compute.forward
    def f(n):
        return f(n - 1) if n else 0

    f(3)
    found = recorded()
    assert counts(found) == {"forward": 4}
    assert all(outer.duration_ns >= inner.duration_ns for outer, inner in pairwise(found))


# coroutines


def test_a_coroutine_function_stays_one_and_lasts_until_its_work_ends(ai, recorded):
    @ai.compute.forward
    async def f(x):
        await asyncio.sleep(0.02)
        return x

    assert inspect.iscoroutinefunction(f)
    assert asyncio.run(f(5)) == 5
    (event,) = recorded()
    assert 19e6 < event.duration_ns < 5e9


def test_interleaved_coroutines_keep_their_own_times(ai, recorded):
    @ai.compute.forward
    async def f(seconds):
        begun = time.perf_counter_ns()
        await asyncio.sleep(seconds)
        return begun, time.perf_counter_ns()

    async def main():
        return await asyncio.gather(f(0.06), f(0.01))

    inside = asyncio.run(main())
    assert inside[0][0] < inside[1][0] < inside[1][1] < inside[0][1]
    (long, short), now = recorded(), time.perf_counter_ns()
    for event, (begun, ended) in ((long, inside[0]), (short, inside[1])):
        assert event.start_ns <= begun < ended <= event.start_ns + event.duration_ns < now
    assert short.start_ns + short.duration_ns < inside[0][1]


def test_a_cancelled_coroutine_is_recorded(ai, recorded):
    @ai.compute.forward
    async def f():
        await asyncio.sleep(60)

    async def main():
        task = asyncio.ensure_future(f())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert names(recorded()) == ["forward"]


def test_a_coroutine_that_never_runs_is_not_recorded(ai, recorded):
    @ai.compute.forward
    async def f():
        pass

    f().close()
    assert recorded() == []


def test_partials_of_coroutine_functions_and_such_as_are_marked(ai, recorded):
    async def f(x):
        await asyncio.sleep(0.01)
        return x

    assert asyncio.run(ai.compute.forward(functools.partial(f, 2))()) == 2
    if sys.version_info >= (3, 12):
        assert asyncio.run(ai.compute.forward(inspect.markcoroutinefunction(lambda: f(3)))()) == 3
    assert all(e.duration_ns > 9e6 for e in recorded())


def test_a_coroutine_made_of_a_generator_can_be_awaited(ai, recorded):
    @ai.compute.forward
    @types.coroutine
    def f():
        yield
        return 3

    async def main():
        return await f()

    assert asyncio.run(main()) == 3
    assert names(recorded()) == ["forward"]


# generators


def test_a_generator_function_stays_one_and_lasts_until_its_end(ai, recorded):
    @ai.dataloader.fetch
    def f(n):
        for i in range(n):
            time.sleep(0.01)
            yield i
        return "end"

    assert inspect.isgeneratorfunction(f)

    def outer():
        return (yield from f(2))

    g = outer()
    assert [next(g), next(g)] == [0, 1]
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == "end"
    (event,) = recorded()
    assert event.duration_ns > 19e6


def test_a_generator_takes_what_is_sent_and_thrown(ai, recorded):
    @ai.dataloader.fetch
    def f():
        got = yield 0
        try:
            yield got
        except KeyError as exc:
            yield exc

    g = f()
    error = KeyError("k")
    assert [next(g), g.send("a"), g.throw(error)] == [0, "a", error]
    g.close()
    assert names(recorded()) == ["fetch"]


def test_a_generator_that_is_left_ends_there(ai, recorded):
    @ai.dataloader.fetch
    def f():
        yield from range(10)

    for i in f():
        if i == 2:
            break
    assert names(recorded()) == ["fetch"]


def test_a_generator_that_never_runs_is_not_recorded(ai, recorded):
    @ai.dataloader.fetch
    def f():
        yield 1

    f()
    assert recorded() == []


# asynchronous generators


def test_an_asynchronous_generator_function_stays_one_and_lasts_until_its_end(ai, recorded):
    @ai.dataloader.fetch
    async def f(n):
        for i in range(n):
            await asyncio.sleep(0.01)
            yield i

    async def main():
        return [i async for i in f(3)]

    assert inspect.isasyncgenfunction(f)
    assert asyncio.run(main()) == [0, 1, 2]
    (event,) = recorded()
    assert event.duration_ns > 29e6


def test_an_asynchronous_generator_takes_what_is_sent_and_thrown(ai, recorded):
    closed = []

    @ai.dataloader.fetch
    async def f():
        try:
            got = yield 0
            try:
                yield got
            except KeyError as exc:
                yield exc
            yield 3
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main():
        g = f()
        error = KeyError("k")
        assert [
            await g.__anext__(),
            await g.asend("a"),
            await g.athrow(error),
            await g.__anext__(),
        ] == [0, "a", error, 3]
        await g.aclose()
        with pytest.raises(StopAsyncIteration):
            await g.__anext__()
        other = f()
        await other.__anext__()
        with pytest.raises(ZeroDivisionError):
            await other.athrow(ZeroDivisionError())

    asyncio.run(main())
    assert closed == [True, True]
    assert names(recorded()) == ["fetch", "fetch"]


def test_an_asynchronous_generator_that_swallows_what_is_thrown_just_ends(ai, recorded):
    @ai.dataloader.fetch
    async def f():
        try:
            yield 1
        except KeyError:
            return

    async def main():
        g = f()
        await g.__anext__()
        with pytest.raises(StopAsyncIteration):
            await g.athrow(KeyError())

    asyncio.run(main())
    assert names(recorded()) == ["fetch"]


def test_items_are_not_kept_by_what_decorates(ai, recorded):
    class Batch:
        pass

    @ai.dataloader.fetch
    async def f():
        for _ in range(2):
            yield Batch()

    @ai.dataloader.fetch
    def g():
        for _ in range(2):
            yield Batch()

    async def main():
        it = f()
        seen = weakref.ref(await it.__anext__())
        gc.collect()
        assert seen() is None
        await it.aclose()

    asyncio.run(main())
    it = g()
    seen = weakref.ref(next(it))
    assert seen() is None
    for batch in ai.dataloader.fetch.iter([Batch()]):
        seen = weakref.ref(batch)
        del batch
    assert seen() is None
