"""Each process has files of its own, whichever way it came to be and went."""

from __future__ import annotations

import sys

import pytest
from tracing import Traced


def by_process(traced: Traced) -> dict[int, list[tuple[str, dict[str, object]]]]:
    columns = traced.read()
    found: dict[int, list[tuple[str, dict[str, object]]]] = {p.pid: [] for p in columns.processes}
    for pid, name, args in zip(
        *(columns[key].tolist() for key in ("pid", "name", "args")), strict=True
    ):
        found[pid].append((columns.names[name].name, columns.arguments[args]))
    return found


def test_a_forked_child_has_its_own_files_and_knows_the_names_and_arguments_of_before(
    traced: Traced,
) -> None:
    out = traced.run("""
        pinned = recorder.arguments({"pinned": True})
        recorder.begin(FOLDER)
        n, other = name("a", "parent"), name("a", "child")
        later = recorder.arguments({"later": 1})
        span(n, 1, 2, pinned)
        for _ in range(3):
            if os.fork() == 0:
                with Span(other): span(other, 1, 2, later)
                span(other, 1, 2, pinned)
                span(other, 1, 2, recorder.arguments({"own": 1}))
                span(name("a", "new in the child"), 1, 2)
                os._exit(0)
            os.wait()
        with Span(n): pass
        print(os.getpid(), recorder.end().events)
    """)
    parent, events = map(int, out.split())
    found = by_process(traced)
    assert found.pop(parent) == [("parent", {"pinned": True}), ("parent", {})]
    assert events == 2
    child = [
        ("child", {"later": 1}),
        ("child", {}),
        ("child", {"pinned": True}),
        ("child", {"own": 1}),
        ("new in the child", {}),
    ]
    assert list(found.values()) == [child] * 3
    assert {p.ppid for p in traced.read().processes} >= {parent}


def test_a_child_that_records_nothing_makes_no_file(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        span(name("a", "b"), 1, 2)
        if os.fork() == 0: os._exit(0)
        os.wait()
    """)
    assert len(traced.files) == 2


def test_a_child_of_a_process_that_has_recorded_nothing_yet(traced: Traced) -> None:
    traced.run("""
        pinned = recorder.arguments({"k": 1})
        recorder.begin(FOLDER)
        n = name("a", "b")
        if os.fork() == 0:
            span(n, 1, 2, pinned)
            os._exit(0)
        os.wait()
    """)
    assert list(by_process(traced).values()) == [[("b", {"k": 1})]]


def test_arguments_that_are_no_longer_kept_reach_grandchildren(traced: Traced) -> None:
    traced.run("""
        from voirkit.trace import names
        names.MOST_ARGUMENTS = 4
        recorder.begin(FOLDER)
        n = name("a", "b")
        pinned = recorder.arguments({"pinned": 1})
        for i in range(1000): span(n, i, i, recorder.arguments({"i": i}))
        if os.fork() == 0:
            for i in range(1000): span(n, i, i, recorder.arguments({"i": i}))
            if os.fork() == 0:
                span(n, 7, 7, pinned)
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
    """)
    assert [records for records in by_process(traced).values() if len(records) == 1] == [
        [("b", {"pinned": 1})]
    ]


def test_fork_in_the_middle_of_many_threads_that_record(traced: Traced) -> None:
    out = traced.run("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        sys.setswitchinterval(1e-5)
        recorder.begin(FOLDER)
        n, c = name("a", "parent"), name("a", "child")
        counts, go = [0] * 8, True
        def work(i):
            s = Span(n)
            while go:
                with s: pass
                name("new", str(counts[i] % 977))
                counts[i] += 1
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads: t.start()
        children = []
        for k in range(40):
            pid = os.fork()
            if pid == 0:
                for i in range(3000): span(c, i, i, recorder.arguments({"i": i % 10}))
                os._exit(0)
            children.append(pid)
            time.sleep(0.01)
        ends = [os.waitpid(pid, 0)[1] for pid in children]
        go = False
        for t in threads: t.join()
        assert ends == [0] * 40
        print(sum(counts))
    """)
    assert traced.counts() == {"parent": int(out), "child": 40 * 3000}


def test_a_fork_inside_a_signal_handler_that_interrupts_recording(traced: Traced) -> None:
    out = traced.run("""
        recorder.begin(FOLDER)
        n, c = name("a", "parent"), name("a", "child")
        interrupting, forks = False, 0
        def interrupt(event, args):
            global interrupting, forks
            if event == "open" and not interrupting and forks < 6:
                interrupting = True
                forks += 1
                if os.fork() == 0:
                    span(c, 1, 2)
                    return  # the child goes on with what was interrupted
                os.wait()
                interrupting = False
        sys.addaudithook(interrupt)
        me = os.getpid()
        for i in range(5000):
            span(n, i, i)
            if os.getpid() != me:
                span(c, 3, 4)
                os._exit(0)
        sys.stdout.write(str(forks))
    """)
    forks = int(out)
    counts = traced.counts()
    assert forks == 6
    assert counts["child"] == 2 * forks
    assert counts["parent"] == 5000 + forks  # each child finished the one that it was in


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_is_started_anew_adopts_the_recording(traced: Traced, method: str) -> None:
    out = traced.run(f"""
        import multiprocessing
        def work(data, i):
            recorder.adopt(data)
            recorder.adopt(data)
            with Span(name("a", "child")): pass
            span(name("a", str(i)), 1, 2, recorder.arguments({{"i": i}}))
            if i == 1:
                os._exit(0)
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            assert recorder.inherited() is None
            recorder.begin(FOLDER, rank=2, host="here")
            span(name("a", "parent"), 1, 2)
            children = [context.Process(target=work, args=(recorder.inherited(), i), name=f"worker {{i}}") for i in range(3)]
            for child in children: child.start()
            for child in children: child.join()
            print(os.getpid(), [child.exitcode for child in children])
    """)
    assert out.split(maxsplit=1)[1] == "[0, 0, 0]\n"
    parent = int(out.split()[0])
    found = by_process(traced)
    assert found.pop(parent) == [("parent", {})]
    assert sorted(records[1][0] for records in found.values()) == ["0", "1", "2"]
    columns = traced.read()
    assert set(columns["rank"].tolist()) == {2}
    assert {p.name for p in columns.processes} == {"program.py", "worker 0", "worker 1", "worker 2"}


def test_exec_keeps_what_was_recorded_before_it(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER, rank=1)
        again = "again" in sys.argv
        for i in range(10): span(name("a", "after" if again else "before"), i, i)
        if not again:
            os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
    """)
    columns = traced.read()
    assert traced.counts() == {"before": 10, "after": 10}
    assert len({p.pid for p in columns.processes}) == 1
    assert [p.argv[1:] for p in columns.processes] == [[], ["again"]]


def test_os_exit_loses_nothing(traced: Traced) -> None:
    traced.run(
        """
        recorder.begin(FOLDER)
        for i in range(5000): span(name("a", "b"), i, i)
        os._exit(3)
    """,
        code=3,
    )
    assert traced.counts() == {"b": 5000}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_program_that_closes_all_descriptors_keeps_those_that_it_opens_then(
    traced: Traced,
) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        span(n, 0, 0)
        os.closerange(3, 100)
        files = [os.open(f"own {i}", os.O_RDWR | os.O_CREAT) for i in range(10)]
        for i in range(1, 10_000):
            span(n, i, i, recorder.arguments({"i": i // 1000}))
        if os.fork() == 0:
            span(n, -1, -1)
            for fd in files: os.fstat(fd)
            os._exit(0)
        assert os.wait()[1] == 0
        recorder.end()
        gc.collect()
        for fd in files:
            assert os.read(fd, 100) == b"", "something else was written into it"
            os.write(fd, b"x")
    """)
    assert traced.counts() == {"b": 10_001}


def test_processes_with_the_same_id_do_not_write_into_each_others_files(traced: Traced) -> None:
    # As ranks in containers: the same host name, the same process id.
    for _ in range(3):
        traced.run("""
            os.getpid = lambda: 7
            recorder.begin(FOLDER, host="same")
            for i in range(10): span(name("a", "b"), i, i)
        """)
    assert traced.counts() == {"b": 30}
    assert [p.stem for p in traced.read().processes] == ["same-r0-7", "same-r0-7.1", "same-r0-7.2"]
