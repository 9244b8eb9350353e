"""``with span:`` records one span for each entry, wherever it is entered; the span itself holds no state."""

from __future__ import annotations

from tracing import Traced


def names_and_arguments(traced: Traced) -> list[tuple[str, object]]:
    columns = traced.read()
    return [
        (columns.names[n].name, columns.arguments[a])
        for n, a in zip(columns["name"].tolist(), columns["args"].tolist(), strict=True)
    ]


def test_it_is_the_time_between_entry_and_exit_by_the_clock_of_perf_counter(traced: Traced) -> None:
    out = traced.run("""
        recorder.begin(FOLDER)
        s = Span(name("a", "b"))
        t0 = time.perf_counter_ns()
        with s as entered:
            t1 = time.perf_counter_ns()
            time.sleep(0.01)
            t2 = time.perf_counter_ns()
        t3 = time.perf_counter_ns()
        assert entered is s
        print(t0, t1, t2, t3)
    """)
    t0, t1, t2, t3 = map(int, out.split())
    columns = traced.read()
    start, end = (
        int(columns["start_ns"][0]),
        int(columns["start_ns"][0] + columns["duration_ns"][0]),
    )
    assert t0 <= start <= t1
    assert t2 <= end <= t3


def test_nested_recursive_and_left_by_exceptions_each_entry_is_one_span(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        s = Span(name("a", "b"))
        def deep(n):
            with s:
                if n: deep(n - 1)
        deep(9)
        with s, s, s: pass
        for i in range(3):
            try:
                with s: raise KeyError(i)
            except KeyError as exc:
                assert exc.args == (i,) and exc.__context__ is None
            for _ in "x":
                with s: break
        def leave():
            with s: return 5
        assert leave() == 5
        with contextlib.ExitStack() as stack:
            assert stack.enter_context(s) is s
            assert stack.enter_context(s) is s
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(s)
                raise KeyError
        except KeyError: pass
    """)
    columns = traced.read()
    assert columns.rows == 10 + 3 + 6 + 1 + 3
    deep = columns["duration_ns"][:10].tolist()
    assert deep == sorted(deep)  # the innermost ends first
    assert min(columns["duration_ns"].tolist()) >= 0


def test_interleaved_coroutines_and_generators_have_their_own_times(traced: Traced) -> None:
    traced.run("""
        import asyncio
        recorder.begin(FOLDER)
        s = Span(name("a", "b"))
        async def wait(end, next_end):
            with s: await end.wait()
            next_end.set()
        async def main():
            ends = [asyncio.Event() for _ in range(4)]
            async def begin(): ends[0].set()  # when all are waiting
            await asyncio.gather(*(wait(ends[k], ends[k + 1]) for k in (2, 0, 1)), begin())
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(s)
        asyncio.run(main())
        def items():
            with s: yield 1
        one, two = items(), items()
        next(one); next(two)
        one.close(); del two
    """)
    columns = traced.read()
    durations = columns["duration_ns"].tolist()
    assert len(durations) == 6
    starts = columns["start_ns"].tolist()
    assert (
        starts[2]
        < starts[0]
        < starts[1]
        < starts[0] + durations[0]
        < starts[1] + durations[1]
        < starts[2] + durations[2]
    )


def test_one_span_in_many_threads_at_once(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        s = Span(name("a", "b"))
        barrier = threading.Barrier(4)
        def work():
            with s:
                barrier.wait()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
    """)
    columns = traced.read()
    assert columns.rows == 4
    assert len(set(columns["tid"].tolist())) == 4


def test_a_span_brings_its_arguments_up_to_date_when_it_is_used_after_a_change(
    traced: Traced,
) -> None:
    out = traced.run("""
        class Node(Span):
            def __init__(self, number):
                super().__init__(number)
                self.values, self.refreshed = {}, 0
            def refresh(self):
                self.refreshed += 1
                self.args = recorder.arguments(self.values)
        recorder.begin(FOLDER)
        a, b = Node(name("c", "a")), Node(name("c", "b"))
        with a: pass
        with a: pass          # the first record made the files, after which spans are brought up to date as well
        a.values = {"step": 1}
        with a: pass          # nobody said that it had changed
        recorder.changed()
        with a:
            with b: pass
        with a:
            a.values = {"step": 2}
            recorder.changed()
        a.record(5, 6)
        a.record(5, 7, value=3, name_id=b.name_id)
        for _ in range(1000):
            with b: pass
        print(a.refreshed, b.refreshed)
    """)
    assert names_and_arguments(traced)[:8] == [
        ("a", {}), ("a", {}), ("a", {}), ("b", {}), ("a", {"step": 1}), ("a", {"step": 2}), ("a", {"step": 2}), ("b", {"step": 2}),
    ]  # fmt: skip
    assert [int(n) <= 5 for n in out.split()] == [True, True]
    assert traced.read()["value"].tolist()[7] == 3


def test_a_disabled_span_records_nothing(traced: Traced) -> None:
    out = traced.run("""
        class Node(Span):
            wanted = True
            def refresh(self):
                self.enabled = self.wanted
        recorder.begin(FOLDER)
        s = Node(name("a", "b"))
        def on(wanted):
            s.wanted = wanted
            recorder.changed()
        with s: pass
        on(False)
        with s as entered: assert entered is s
        s.record(1, 2)
        assert not s.is_on()
        with s: on(True)
        with s: pass
        assert s.is_on()
        with s: on(False)
        s.enabled = True
        with s: pass
        recorder.end()
        assert not s.is_on()
    """)
    assert out == ""
    assert traced.read().rows == 3


def test_a_refresh_that_fails_is_told_once_and_the_span_is_recorded(traced: Traced) -> None:
    out, err = traced.told("""
        class Node(Span):
            def refresh(self):
                raise LookupError("no")
        Node.refresh.__globals__["__name__"] = "voirkit.ai"
        told = []
        recorder.begin(FOLDER, tell=told.append)
        s = Node(name("a", "b"))
        for _ in range(3):
            recorder.changed()
            with s: pass
        print(len(told), told[0])
    """)
    assert out.startswith("1 the arguments of a span cannot be had (LookupError: no)")
    assert err == ""
    assert traced.read().rows == 3


def test_a_span_may_be_entered_before_a_recording_and_left_in_it(traced: Traced) -> None:
    traced.run("""
        s = Span(name("a", "b"))
        with s:
            recorder.begin(FOLDER)
        with s: pass
        with s:
            recorder.end()
    """)
    assert traced.read().rows == 1
