"""Threads: each has a segment, which another takes over when it has ended."""

from __future__ import annotations

from tracing import Traced


def test_threads_by_the_thousand_reuse_segments(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        def work(i):
            for k in range(10):
                span(n, i, i + k)
        for i in range(0, 3000, 4):
            threads = [threading.Thread(target=work, args=(i + k,), name=f"worker {i + k}") for k in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
    """)
    columns = traced.read()
    assert columns.rows == 30_000
    segments = [path for path in traced.files if path.suffix == ".seg"]
    assert len(segments) <= 8
    # Native ids come again in a process, but each record is of a thread that was named before it.
    assert set(zip(columns["pid"].tolist(), columns["tid"].tolist(), strict=True)) <= set(
        columns.threads
    )
    assert all(name.startswith("worker ") for name in columns.threads.values())


def test_64_threads_at_once(traced: Traced) -> None:
    traced.run("""
        sys.setswitchinterval(1e-5)
        recorder.begin(FOLDER)
        s = Span(name("a", "span"))
        barrier = threading.Barrier(64)
        def work(i):
            n = name("a", f"thread {i}")
            barrier.wait()
            for k in range(3000):
                with s:
                    span(n, k, k + 1, recorder.arguments({"k": k % 7, "i": i}), i)
        threads = [threading.Thread(target=work, args=(i,), name=f"t{i}") for i in range(64)]
        for t in threads: t.start()
        for t in threads: t.join()
    """)
    counts = traced.counts()
    assert counts.pop("span") == 64 * 3000
    assert counts == {f"thread {i}": 3000 for i in range(64)}
    columns = traced.read()
    for i in (0, 17, 63):
        mine = columns["name"] == [n.name for n in columns.names].index(f"thread {i}")
        tids = set(columns["tid"][mine].tolist())
        assert {columns.threads[columns.processes[0].pid, tid] for tid in tids} == {f"t{i}"}
        assert {columns.arguments[a]["i"] for a in columns["args"][mine].tolist()} == {i}
        assert columns["start_ns"][mine].tolist() == list(
            range(3000)
        )  # in the order in which they were recorded


def test_arguments_from_before_the_file_are_right_however_many_threads_complete_it(
    traced: Traced,
) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n, first = name("a", "b"), recorder.arguments({"k": "first"})
        for i in range(20):
            recorder._process.recording._files().complete = False  # as another thread sees the file that arrives meanwhile
            recorder.arguments({"k": i})
        span(n, 0, 1, first)
    """)
    columns = traced.read()
    assert [columns.arguments[number] for number in columns["args"].tolist()] == [{"k": "first"}]


def test_of_two_threads_that_intern_the_same_before_the_file_both_have_its_line(
    traced: Traced,
) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        numbers = []
        original = recorder._names._write
        def write(line, is_name):  # where the other thread comes in
            recorder._names._write = original
            numbers.append(recorder.arguments({"k": 1}))
        recorder._names._write = write
        numbers.append(recorder.arguments({"k": 1}))
        n = name("a", "b")
        for number in numbers:
            span(n, 0, 1, number)
    """)
    columns = traced.read()
    assert [columns.arguments[number] for number in columns["args"].tolist()] == [
        {"k": 1},
        {"k": 1},
    ]


def test_names_and_arguments_interned_by_many_threads_at_once_are_right(traced: Traced) -> None:
    traced.run("""
        sys.setswitchinterval(1e-6)
        recorder.begin(FOLDER)
        barrier = threading.Barrier(16)
        def work():
            barrier.wait()
            for k in range(400):
                span(name("a", f"n{k}"), k, k, recorder.arguments({"k": k}), k)
        threads = [threading.Thread(target=work) for _ in range(16)]
        for t in threads: t.start()
        for t in threads: t.join()
    """)
    columns = traced.read()
    assert columns.rows == 16 * 400
    for code, args, value in zip(
        columns["name"].tolist(), columns["args"].tolist(), columns["value"].tolist(), strict=True
    ):
        assert columns.names[code].name == f"n{value}"
        assert columns.arguments[args] == {"k": value}
    assert len({name.name for name in columns.names}) == 400


def test_no_thread_has_more_than_8_mib_mapped(traced: Traced) -> None:
    out = traced.run("""
        layout.LARGEST_WINDOW = 1 << 22
        recorder.begin(FOLDER)
        n = name("a", "b")
        def mapped():
            total = 0
            with open("/proc/self/maps") as file:
                for line in file:
                    if ".seg" in line:
                        a, b = line.split()[0].split("-")
                        total += int(b, 16) - int(a, 16)
            return total
        most = 0
        def watch(event, args):
            global most
            if event in ("mmap.__new__", "open"): most = max(most, mapped() if event == "mmap.__new__" else most)
        for i in range(1_000_000):
            span(n, i, i)
            if i % 50_000 == 0: most = max(most, mapped())
        print(most, len(os.listdir("/proc/self/fd")))
    """)
    most, descriptors = map(int, out.split())
    assert 0 < most <= 4 << 20
    assert descriptors < 10


def test_a_million_spans_leave_nothing_in_memory(traced: Traced) -> None:
    out = traced.run("""
        from voirkit.trace import names
        names.MOST_ARGUMENTS = 50
        recorder.begin(FOLDER)
        s, n = Span(name("a", "b")), name("a", "c")
        class Node(Span):
            def refresh(self): self.args = recorder.arguments({"i": i})
        node = Node(n)
        def some(times):
            global i
            for i in range(times):
                with s: pass
                span(n, i, i, value=i)
                with node: pass
                if i % 10 == 0:
                    recorder.changed()
        def memory():
            gc.collect()
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
        some(200_000)
        before = memory(), sys.getallocatedblocks()
        some(350_000)
        after = memory(), sys.getallocatedblocks()
        print(after[0] - before[0], after[1] - before[1])
    """)
    kib, blocks = map(int, out.split())
    assert kib < 1500
    assert blocks < 2000


def test_a_thread_that_python_did_not_start_records_and_stays_unknown_to_threading(
    traced: Traced,
) -> None:
    traced.run("""
        import ctypes, _thread
        recorder.begin(FOLDER)
        n = name("a", "b")
        done = threading.Event()
        def work():
            for i in range(10): span(n, i, i)
            done.set()
        _thread.start_new_thread(work, ())
        done.wait()
        assert threading.enumerate() == [threading.main_thread()]
        assert len(threading._active) == 1
    """)
    assert traced.read().rows == 10


def test_of_eight_threads_that_intern_and_record_the_same_at_once_no_span_is_lost_or_has_what_is_anothers(
    traced: Traced,
) -> None:
    out = traced.run("""
        sys.setswitchinterval(1e-5)
        recorder.begin(FOLDER)
        barrier = threading.Barrier(8)
        def work(thread):
            barrier.wait()
            for i in range(5000):
                span(name("stress", f"name {i // 50}"), i, i + thread, recorder.arguments({"i": i // 25}), thread * 5000 + i)
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        totals = recorder.end()
        print(totals.events, totals.dropped)
    """)
    assert out.split() == ["40000", "{}"]
    columns = traced.read()
    records = zip(
        *(columns[key].tolist() for key in ("value", "name", "start_ns", "duration_ns", "args")),
        strict=True,
    )
    found = {
        value: (columns.names[name].name, start, duration, columns.arguments[args])
        for value, name, start, duration, args in records
    }
    assert found == {
        thread * 5000 + i: (f"name {i // 50}", i, thread, {"i": i // 25}) for thread in range(8) for i in range(5000)
    }  # fmt: skip
    assert columns.rows == 40_000
