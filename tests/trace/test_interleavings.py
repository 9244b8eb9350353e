"""Threads that come between one another at the worst moment: each test makes one such moment happen, by a hook at the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracing import Traced

# `aside` runs something in another thread to its end: what a switch of threads at this point would do.
ASIDE = (
    f"""
sys.path.append({str(Path(__file__).parent.parent)!r})  # where columns.py is
"""
    + """
def aside(do):
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
def once(original, also, before=False):
    calls = []
    def hook(*args, **kwargs):
        first = not calls
        calls.append(1)
        if first and before: also()
        found = original(*args, **kwargs)
        if first and not before: also()
        return found
    return hook
def shown(folder):
    from columns import read
    columns = read(folder)
    return [columns.arguments[code] for code in columns["args"].tolist()]
n = name("a", "b")
names = recorder._names
"""
)


def test_of_two_threads_that_intern_the_same_before_there_is_a_file_both_have_a_line(
    traced: Traced,
) -> None:
    traced.run(
        ASIDE
        + """
numbers = []
names._write = once(names._write, lambda: aside(lambda: numbers.append(recorder.arguments({"k": 1}))))
recorder.begin(FOLDER)
numbers.append(recorder.arguments({"k": 1}))
for number in numbers: span(n, 1, 2, number)
recorder.end()
assert shown(FOLDER) == [{"k": 1}] * 2
"""
    )


def test_threads_that_begin_the_file_together_keep_what_was_interned_before(traced: Traced) -> None:
    traced.run(
        ASIDE
        + """
recorder.begin(FOLDER)
before = [recorder.arguments({"before": i}) for i in range(16)]
all_in, original, here = threading.Barrier(16), names.begin_file, threading.local()
def begin_file():
    all_in.wait()  # all have found it incomplete
    number = original()
    recorder.arguments({"meanwhile": threading.get_ident()})
    return number
names.begin_file = begin_file
threads = [threading.Thread(target=span, args=(n, i, i, before[i])) for i in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
recorder.end()
assert sorted(one["before"] for one in shown(FOLDER)) == list(range(16))
"""
    )


def test_a_recording_that_ends_while_another_thread_writes_a_line_touches_no_file_of_the_program(
    traced: Traced,
) -> None:
    traced.run(
        ASIDE
        + """
from voirkit.trace import files
def end():
    aside(recorder.end)
    global mine
    mine = open("mine", "wb", 0)
recorder.begin(FOLDER)
span(n, 1, 2)
files.os = type("os", (), dict(vars(os), write=staticmethod(once(os.write, end, before=True))))
name("a", "a new line")
assert os.path.getsize("mine") == 0
"""
    )


def test_the_descriptor_of_the_names_is_closed_when_nobody_writes_any_more(traced: Traced) -> None:
    traced.run("""
        before = os.listdir("/proc/self/fd")
        for i in range(3):
            recorder.begin(f"{FOLDER}{i}")
            span(name("a", "b"), 1, 2)
            assert recorder.end().events == 1
        assert os.listdir("/proc/self/fd") == before
    """)


def test_a_descriptor_that_the_program_has_closed_is_opened_anew(traced: Traced) -> None:
    traced.run(
        ASIDE
        + """
recorder.begin(FOLDER)
span(n, 0, 0)
for k in range(1, 4):
    os.closerange(3, 256)
    with open("mine", "wb", 0):
        span(n, k, k, recorder.arguments({"k": k}))
        span(n, k, k, recorder.arguments({"k": -k}))
    assert os.path.getsize("mine") == 0
recorder.end()
assert shown(FOLDER) == [{}, {"k": 1}, {"k": -1}, {"k": 2}, {"k": -2}, {"k": 3}, {"k": -3}]
"""
    )


def test_arguments_are_right_when_another_recording_begins_while_they_are_looked_for(
    traced: Traced,
) -> None:
    traced.run(
        ASIDE
        + """
def anew():
    recorder.end()
    recorder.begin(FOLDER + "2")
    span(n, 3, 4)  # with room in the new one
for hooked in ("_resolve", "_arrive", "_grow"):
    original = getattr(recorder, hooked)
    setattr(recorder, hooked, once(original, anew))
    number = recorder.arguments({"k": hooked})
    recorder.begin(FOLDER + "1")
    span(n, 1, 2, number)
    recorder.end()
    setattr(recorder, hooked, original)
    assert sorted(map(str, shown(FOLDER + "2"))) == sorted(["{}", str({"k": hooked})]), (hooked, shown(FOLDER + "2"))
    import shutil
    shutil.rmtree(FOLDER + "2"); shutil.rmtree(FOLDER + "1")
"""
    )


def test_a_thread_that_is_late_for_a_recording_says_nothing_about_the_next(traced: Traced) -> None:
    traced.run(
        ASIDE
        + """
def meanwhile():
    recorder.end()
    recorder.begin(FOLDER + "2")
    numbers = [recorder.arguments({"k": k}) for k in range(5)]
    span(n, 0, 0)
    later.append(numbers)
later = []
names.begin_file = once(names.begin_file, lambda: aside(meanwhile))
recorder.begin(FOLDER + "1")
span(n, 1, 2)
for k, number in enumerate(later[0]): span(n, k, k, number)
recorder.end()
assert [one for one in shown(FOLDER + "2") if one] == [{"k": k} for k in range(5)]
"""
    )


def test_a_recording_that_has_ended_makes_no_file_any_more(traced: Traced) -> None:
    traced.run(
        ASIDE
        + """
from voirkit.trace import recording
recording.Files = once(recording.Files, lambda: aside(recorder.end), before=True)
recorder.begin(FOLDER)
span(n, 1, 2)
assert os.listdir(FOLDER + "/trace") == []
"""
    )


def test_what_other_threads_record_while_the_cost_is_measured_goes_nowhere(traced: Traced) -> None:
    traced.run(
        ASIDE
        + """
from voirkit.trace import recording
recorder.begin(FOLDER)
span(n, 1, 2)
recording.perf_counter_ns = once(now, lambda: aside(lambda: span(n, 5, 6)))
measure = recording._cost_ns
def measured(engine):
    found = measure(engine)
    assert engine.close() == []
    return found
recording._cost_ns = measured
totals = recorder.end()
assert totals.events == 1 and totals.seconds > 0
"""
    )


# What comes between happens once at each instruction of the recorder's Python code that is reached, and in each turn of the loop once at most.
EVERYWHERE = """
from voirkit.trace import recording
recording._cost_ns = lambda engine: 0
given, runs = {}, []
def give(n, key, arguments, record):
    number = len(given) + 1
    given[number] = key, arguments
    record(n, number, number, recorder.arguments(arguments), number)
def record_something():
    k = len(given)
    give(name("c", f"n{k % 7}"), f"n{k % 7}", {"k": k % 11}, span)
    give(name("c", "same"), "same", {"turn": turn}, span)
class Node(Span):
    def refresh(self): self.args = recorder.arguments({"turn": turn})
node = Node(name("a", "node"))
def begin():
    recorder.end()
    runs.append(f"{FOLDER}/{len(runs)}")
    recorder.begin(runs[-1])
def anew():
    begin()
    record_something()
signal.signal(signal.SIGUSR1, lambda *_: record_something())
def raised(): signal.raise_signal(signal.SIGUSR1)
seen, armed, depth = set(), 0, 0
def tracer(frame, event, argument):
    global armed, depth
    if not frame.f_globals.get("__name__", "").startswith("voirkit.trace"): return None
    frame.f_trace_opcodes = True
    place = frame.f_code, frame.f_lasti
    if event == "opcode" and armed and place not in seen:
        seen.add(place)
        armed -= 1
        COMES_BETWEEN()
    return tracer
begin()
turn = last = 0
while turn - last < 20:
    turn, before, armed = turn + 1, len(seen), 1
    sys.settrace(tracer)
    give(name("m", f"m{turn}"), f"m{turn}", {"turn": turn}, span)
    recorder.changed()
    give(0, "node", {"turn": turn}, lambda n, start, end, args, value: node.record(start, end, value))
    sys.settrace(None)
    if len(seen) > before: last = turn
recorder.end()
assert len(seen) > 200, len(seen)
from columns import read
found = []
for run in runs:
    columns = read(run)
    for code, args, value in zip(columns["name"].tolist(), columns["args"].tolist(), columns["value"].tolist()):
        found.append(value)
        assert (columns.names[code].name, columns.arguments[args]) == given[value], (run, value)
assert sorted(found) == sorted(given)
"""


@pytest.mark.parametrize("what", ["raised()", "aside(record_something)", "aside(anew)"])
def test_nothing_is_lost_or_mixed_up_whatever_comes_between_at_any_instruction(
    traced: Traced, what: str
) -> None:
    traced.run(ASIDE + EVERYWHERE.replace("COMES_BETWEEN()", what), timeout=400)
