"""What records in the middle of recording: audit hooks, destructors, callbacks of the garbage collector; and what signal handlers raise."""

from __future__ import annotations

import pytest
from tracing import Traced

COUNTED = """
recorder.begin(FOLDER)
main, inner = name("t", "main"), name("t", "inner")
counts = {"main": 0, "inner": 0}
def record_inner():
    with Span(inner): pass
    t = now()
    span(inner, t, now())
    counts["inner"] += 2
"""


def test_records_while_a_window_is_made_are_in_the_file(traced: Traced) -> None:
    # Deterministic: the interruption comes in each of the system calls that make a window.
    out = traced.run(
        COUNTED
        + """
interrupting = False
def interrupt(event, args):
    global interrupting
    if event in ("open", "mmap.__new__", "os.scandir", "os.mkdir", "os.truncate") and not interrupting:
        interrupting = True
        record_inner()
        name("new", str(counts["inner"]))
        interrupting = False
sys.addaudithook(interrupt)
for i in range(20_000):
    span(main, i, i)
    counts["main"] += 1
sys.stdout.write(f"{counts['main']} {counts['inner']}")
"""
    )
    main, inner = map(int, out.split())
    assert traced.counts() == {"main": main, "inner": inner}
    assert inner >= 20


def test_an_audit_hook_that_records_each_time_is_bounded(traced: Traced) -> None:
    out = traced.run(
        COUNTED
        + """
def interrupt(event, args):
    if event == "open":
        span(inner, 1, 2)
sys.addaudithook(interrupt)
for i in range(5000):
    span(main, i, i)
print(recorder.end().dropped.get("t.main", 0))
"""
    )
    assert out == "0\n"
    assert traced.counts()["main"] == 5000


def test_destructors_and_gc_callbacks_record(traced: Traced) -> None:
    out = traced.run(
        COUNTED
        + """
class Node:
    def __init__(self): self.me = self
    def __del__(self): record_inner()
gc.callbacks.append(lambda phase, info: record_inner())
gc.set_threshold(20)
for i in range(30_000):
    Node()
    span(main, i, i, recorder.arguments({"i": [i], "n": i}))
    counts["main"] += 1
gc.disable()
gc.callbacks.clear()
print(counts["main"], counts["inner"])
sys.stdout.flush()
os._exit(0)
"""
    )
    main, inner = map(int, out.split())
    assert traced.counts() == {"main": main, "inner": inner}
    assert inner > 10_000


def test_what_a_signal_handler_raises_reaches_the_program_as_it_is(traced: Traced) -> None:
    out = traced.run(
        COUNTED
        + """
class Mine(Exception): pass
raised = caught = 0
pending = []
def interrupt(event, args):  # stands for a signal that arrives in the middle of making a window
    if event == "open" and pending:
        os.kill(os.getpid(), signal.SIGUSR1)
sys.addaudithook(interrupt)
def handler(number, frame):
    raise pending.pop()
signal.signal(signal.SIGUSR1, handler)
for i in range(40_000):
    if i % 1000 == 0 and not pending:
        pending.append([Mine("x"), TimeoutError("late"), KeyboardInterrupt(), ValueError("v"), StopIteration(), AttributeError()][raised % 6])
        raised += 1
    expected = type(pending[0]) if pending else None
    try:
        span(main, i, i)
    except BaseException as exc:
        assert type(exc) is expected, exc
        caught += 1
print(raised, caught, len(pending))
pending.clear()
"""
    )
    raised, caught, pending = map(int, out.split())
    assert caught == raised - pending
    assert caught > 5
    assert traced.counts() == {"main": 40_000}


@pytest.mark.parametrize("how", ["signal.default_int_handler", "signal.SIG_DFL"])
def test_ctrl_c_is_the_programs(traced: Traced, how: str) -> None:
    import signal as signals

    process = traced.start(
        COUNTED
        + f"""
signal.signal(signal.SIGINT, {how})
try:
    for _ in range(1001):
        span(main, 1, 2)
    print("ready", flush=True)
    while True:
        span(main, 1, 2)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signals.SIGINT)
    out, err = process.communicate(timeout=60)
    if how == "signal.SIG_DFL":
        assert process.returncode == -signals.SIGINT
    else:
        assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert traced.counts()["main"] > 1000


def test_an_exception_in_another_thread_is_that_threads(traced: Traced) -> None:
    out = traced.run(
        COUNTED
        + """
import ctypes
class Stop(Exception): pass
stopped = []
def work():
    try:
        begun.set()
        while True:
            with Span(main): pass
    except Stop:
        stopped.append(1)
for _ in range(20):
    begun = threading.Event()
    t = threading.Thread(target=work)
    t.start()
    begun.wait()
    time.sleep(0.02)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(t.ident), ctypes.py_object(Stop))
    t.join()
print(len(stopped))
"""
    )
    assert out == "20\n"
