"""Whatever records while python ends: it does not crash, and says nothing."""

from __future__ import annotations

import sys

import pytest
from tracing import Traced

# Python 3.10 itself crashes, once in a thousand times, where a daemon thread waits for the GIL as the interpreter goes (take_gil).
DAEMONS = 4 if sys.version_info >= (3, 11) else 0


def test_daemon_threads_atexit_handlers_and_late_destructors_may_record(traced: Traced) -> None:
    for _ in range(5):
        traced.run(
            """
            import atexit
            atexit.register(lambda: [span(n, 1, 2) for _ in range(5000)])
            recorder.begin(FOLDER)
            n = name("a", "b")
            s = Span(n)
            class Late:
                def __init__(self): self.use = (span, Span, s, n, recorder.name, recorder.arguments, recorder.changed)
                def __del__(self):
                    span, Span, s, n, name, arguments, changed = self.use
                    for i in range(5000):
                        span(n, 1, 2)
                        with s: pass
                    changed()
                    with s: pass
                    with Span(n): pass
                    name("a", "new"), arguments({"new": 1})
            late = Late()
            sys.late = Late()
            loop = Late(); loop.loop = loop
            def forever():
                mine = Late()
                while True:
                    with s: pass
            threads = [threading.Thread(target=forever, daemon=True) for _ in range(DAEMONS)]
            for t in threads: t.start()
            for _ in range(5): span(n, 1, 2)
            time.sleep(0.05)
        """.replace("DAEMONS", str(DAEMONS))
        )
        assert traced.counts()["b"] > 4


def test_recording_that_was_not_ended_goes_on_in_destructors_at_the_end(traced: Traced) -> None:
    traced.run("""
        import atexit
        recorder.begin(FOLDER)
        atexit.unregister(recorder.end)
        n = name("a", "b")
        s = Span(n)
        class Late:
            def __init__(self): self.use = (span, s, n)
            def __del__(self):
                span, s, n = self.use
                for i in range(50_000):
                    span(n, 1, 2)
                    with s: pass
        sys.late = Late()
        span(n, 1, 2)
        builtins = sys.modules["builtins"]
        builtins.later = Late()
    """)
    assert traced.counts()["b"] >= 1


def test_a_thread_that_outlives_the_main_one(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        def work():
            time.sleep(0.2)
            for i in range(1000): span(n, i, i)
        threading.Thread(target=work).start()
    """)
    assert traced.counts() == {"b": 1000}


@pytest.mark.parametrize(
    "end",
    ["sys.exit(3)", "os._exit(3)", "os.kill(os.getpid(), 9)", "os.abort()", "raise SystemExit(3)"],
)
def test_however_the_program_ends_nothing_is_lost(traced: Traced, end: str) -> None:
    traced.run(
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        recorder.begin(FOLDER)
        for i in range(10_000): span(name("a", "b"), i, i)
        {end}
    """,
        code=-9 if "kill" in end else -6 if "abort" in end else 3,
    )
    assert traced.counts() == {"b": 10_000}


def test_subinterpreters_have_files_of_their_own(traced: Traced) -> None:
    traced.run("""
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        recorder.begin(FOLDER)
        span(name("a", "main"), 1, 2)
        one = interpreters.create()
        interpreters.run_string(one, '''if True:
            import sys
            sys.path[:] = %r
            from voirkit.trace import recorder
            recorder.begin(%r)
            for i in range(10): recorder.span(recorder.name("a", "sub"), i, i)
            recorder.end()
        ''' % (sys.path, FOLDER))
        interpreters.destroy(one)
        span(name("a", "main"), 1, 2)
    """)
    assert traced.counts() == {"main": 2, "sub": 10}
