"""Probes in child processes: their events reach the parent's stream, once each, and the program does not notice."""

from __future__ import annotations

import collections
import enum
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ended, Place

from voirkit import probing
from voirkit.probes.plain import plain

METHODS = ("fork", "spawn", "forkserver")


def run(place: Place, *words: str, voirkit: bool = False, **options: Any) -> Ended:
    """Run with the voirkit that is being tested, wherever python found it."""
    env = {**options.pop("env", {}), **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {})}
    return (place.voirkit if voirkit else place.python)(*words, env=env, timeout=60, **options)


def said(place: Place, program: str, *words: str) -> Any:
    """What a program says as JSON in its last line; warnings are errors in it, and it must say nothing else on stderr."""
    place.write(program=program)
    ended = run(place, "-W", "error", "program.py", *words)
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out.splitlines()[-1])


def forked(function: Callable[[], object], code: int = 0) -> int:
    """Run a function in a child made by fork; returns the child's process id when it has ended."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    return pid


def half(n: int) -> float:
    result = n / 2
    return result


def count_to(n: int) -> None:
    for i in range(n):
        x = i  # noqa: F841


# what arrives


def test_a_forked_child() -> None:
    with probing("half(n) > result").values() as seen:
        pid = forked(lambda: half(3))
    assert seen == [{"n": 3, "result": 1.5, "$pid": pid}]


def test_the_events_of_the_parent_itself_have_no_pid() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: half(3))
        half(4)
    assert sorted((e["result"], "$pid" in e) for e in seen) == [(1.5, True), (2.0, False)]


def test_children_of_children() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: (half(1), forked(lambda: (half(2), forked(lambda: half(3)))), half(4)))
    assert sorted(e["result"] for e in seen) == [0.5, 1.0, 1.5, 2.0]
    assert len({e["$pid"] for e in seen}) == 3


def test_several_probes_are_told_apart() -> None:
    with probing("half > n").values() as first, probing("half > result").values() as second:
        forked(lambda: half(3))
    assert [list(e) for e in first + second] == [["n", "$pid"], ["result", "$pid"]]


def test_totals_and_raw_events() -> None:
    with (
        probing("count_to(x)", probe_type="total", raw=True).values() as totals,
        probing("half > result", raw=True).values() as raw,
    ):
        forked(lambda: (count_to(3), half(3)))
    assert totals[0]["x"].values == [0, 1, 2]
    assert (raw[0]["result"].name, raw[0]["result"].value) == ("result", 1.5)


def test_pairs_of_several_children_are_not_mixed_up() -> None:
    probe = probing("count_to(!#enter as begin, !!#exit as end)")
    ids: list[Any] = []
    probe.subscribe(lambda event: ids.append((event["$wrap"]["id"], event["$wrap"]["step"])))
    with probe:
        forked(lambda: count_to(1))
        forked(lambda: count_to(1))
        count_to(1)
    assert [step for _, step in sorted(ids)] == ["begin", "end"] * 3
    assert len({number for number, _ in ids}) == 3


def test_the_copies_of_the_subscribers_in_a_child_are_not_called(place: Place) -> None:
    program = """
        import os
        from voirkit import probing
        def f(n):
            x = n
        with probing("f > x") as probe:
            probe.print()
            probe["x"].min().print("least {}")
            if os.fork() == 0:
                f(1)
            else:
                os.wait()
    """
    place.write(program=program)
    ended = run(place, "program.py")
    assert ended.code == 0
    assert ended.out.startswith("{'x': 1, '$pid': ")
    assert ended.out.endswith("}\nleast 1\n")
    assert ended.out.count("\n") == 2


def test_values_are_replaced_in_forked_children() -> None:
    results: list[Any] = []
    probe = probing("half > result", overridable=True)
    probe.override(10)
    probe.subscribe(results.append)
    read, write = os.pipe()
    with probe:
        forked(lambda: os.write(write, str(half(3)).encode()))
    assert os.read(read, 100) == b"10"
    assert [e["result"] for e in results] == [1.5]
    os.close(read)
    os.close(write)


def test_an_event_arrives_while_the_child_lives() -> None:
    seen: list[float] = []
    probe = probing("half > result")
    probe.subscribe(lambda event: seen.append(time.monotonic()))
    ready, go = os.pipe()
    with probe:
        pid = os.fork()
        if pid == 0:
            half(3)
            os.read(ready, 1)
            os._exit(0)
        begun = time.monotonic()
        while not seen and time.monotonic() < begun + 10:
            time.sleep(0.001)
        assert len(seen) == 1
        assert seen[0] < begun + 1
        os.write(go, b"!")
        os.waitpid(pid, 0)
    os.close(ready)
    os.close(go)


WORK = """
    import json, multiprocessing, os, sys
    from concurrent.futures import ProcessPoolExecutor

    def work(n):
        half = n / 2
        return half

    def even(value):
        return value % 2 == 0

    if __name__ == "__main__":
        from voirkit import probing
        context = multiprocessing.get_context(sys.argv[1])
"""


@pytest.mark.parametrize("method", METHODS)
def test_processes_pools_and_executors(place: Place, method: str) -> None:
    seen = said(place, WORK + """
        with probing("//work(n) > half").values() as seen:
            child = context.Process(target=work, args=(10,))
            child.start()
            child.join()
            with context.Pool(2) as pool:
                pool.map(work, range(4))
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                list(pool.map(work, range(4)))
        print(json.dumps([[e["n"], e["half"], e["$pid"] not in (None, os.getpid())] for e in seen]))
    """, method)  # fmt: skip
    assert sorted(seen) == sorted([[10, 5.0, True], *([n, n / 2, True] for n in range(4) for _ in range(2))])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_names_in_scope_mean_the_same_functions_in_spawned_processes(place: Place, method: str) -> None:
    place.write(tools="def double(n):\n    twice = 2 * n\n    return twice\n")
    program = WORK.replace("import json", "import tools, json")
    seen = said(place, program + """
        least = 3
        with probing("work(n~even) > half", "tools.double(n=least) > twice", "json.dumps > indent").values() as seen:
            for function, argument in ((work, 2), (work, 3), (tools.double, 3), (tools.double, 4), (json.dumps, 5)):
                child = context.Process(target=function, args=(argument,))
                child.start()
                child.join()
        print(json.dumps([{k: v for k, v in e.items() if k != "$pid"} for e in seen]))
    """, method)  # fmt: skip
    assert seen == [{"n": 2, "half": 1.0}, {"n": 3, "twice": 6}, {"indent": None}]


def test_children_of_spawned_processes(place: Place) -> None:
    seen = said(place, WORK.replace("def even", """
    def more(method):
        work(1)
        pid = os.fork()
        if pid == 0:
            work(2)
            os._exit(0)
        os.waitpid(pid, 0)
        child = multiprocessing.get_context(method).Process(target=work, args=(3,))
        child.start()
        child.join()

    def even""") + """
        with probing("//work > half").values() as seen:
            child = context.Process(target=more, args=("spawn",))
            child.start()
            child.join()
            pid = os.fork()
            if pid == 0:
                more("spawn")
                os._exit(0)
            os.waitpid(pid, 0)
        print(json.dumps([sorted(e["half"] for e in seen), len({e["$pid"] for e in seen})]))
    """, "spawn")  # fmt: skip
    assert seen == [[0.5, 0.5, 1.0, 1.0, 1.5, 1.5], 6]


def test_what_can_not_be_seen_in_spawned_processes_is_said_once(place: Place) -> None:
    program = WORK + """
        def inner():
            x = 1
        with probing("inner > x") as probe:
            probe.print()
            for _ in range(2):
                child = context.Process(target=work, args=(1,))
                child.start()
                child.join()
            inner()
    """.replace("def inner", "inner = [None]\n        def make():\n            def inner():\n                x = 1\n            return inner\n        inner = make()\n        def _").replace("            x = 1\n        with", "            pass\n        with")  # fmt: skip
    place.write(program=program)
    ended = run(place, "program.py", "spawn")
    assert (ended.code, ended.out) == (0, "{'x': 1}\n")
    assert ended.err.count("can not be seen in processes that are spawned") == 1


LOADER = """
    import json, os, sys, threading
    import torch
    from torch.utils.data import DataLoader, Dataset
    from voirkit import probing

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            v = i * 10
            t = torch.ones(2, 3)
            return i

    def seen_with(workers, epochs=1, **more):
        with probing("//Data/__getitem__(v) > t").values() as seen:
            loader = DataLoader(Data(), batch_size=2, num_workers=workers, **more)
            batches = [batch.tolist() for _ in range(epochs) for batch in loader]
        return [batches, [[e["v"], e.get("$worker"), e.get("$pid", here) != here, e["t"] if workers else None] for e in seen]]

    if __name__ == "__main__":
        here = os.getpid()
"""


@pytest.mark.parametrize("method", METHODS)
def test_loader_workers(place: Place, method: str) -> None:
    (batches, seen), (plain_batches, plain_seen) = said(place, LOADER + """
        print(json.dumps([seen_with(2, multiprocessing_context=sys.argv[1]), seen_with(0)]))
    """, method)  # fmt: skip
    tensor = {"$type": "torch.Tensor", "shape": [2, 3], "dtype": "torch.float32"}
    assert batches == plain_batches
    assert plain_seen == [[10 * i, None, False, None] for i in range(8)]
    assert sorted(seen, key=lambda e: e[0]) == [[10 * i, i // 2 % 2, True, tensor] for i in range(8)]


def test_workers_that_stay_for_the_next_epoch(place: Place) -> None:
    _, seen = said(place, LOADER + """
        print(json.dumps(seen_with(2, 2, multiprocessing_context="fork", persistent_workers=True)))
    """)  # fmt: skip
    assert sorted(e[0] for e in seen) == sorted([10 * i for i in range(8)] * 2)


def test_who_subscribes_later_hears_the_children_too_if_somebody_listened_when_they_began() -> None:
    heard: list[Any] = []
    ready, go = os.pipe()
    with probing("half > result").values() as seen, probing("half > result") as probe:
        probe.subscribe(lambda event: None)
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)
            half(3)
            os._exit(0)
        probe.subscribe(heard.append)
        os.write(go, b"!")
        os.waitpid(pid, 0)
    assert [e["result"] for e in heard] == [e["result"] for e in seen] == [1.5]
    os.close(ready)
    os.close(go)


def test_what_is_missed_of_children_that_began_when_nobody_listened_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Any] = []
    ready, go = os.pipe()
    with probing("half > result") as probe:
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)
            half(3)
            os._exit(0)
        assert capfd.readouterr().err == ""
        probe.subscribe(heard.append)
        probe.subscribe(heard.append)
        os.write(go, b"!")
        os.waitpid(pid, 0)
        forked(lambda: half(5))
    assert [e["result"] for e in heard] == [2.5, 2.5]
    assert capfd.readouterr().err.count("nobody listened to it when processes were started before: it sees nothing in those.") == 1
    os.close(ready)
    os.close(go)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_that_values_are_not_replaced_in_spawned_processes_is_told_once(place: Place, method: str) -> None:
    place.write(program=WORK.replace("return half", "print(half, flush=True)") + """
        with probing("//work > half", overridable=True) as probe:
            probe.override(10)
            for _ in range(2):
                child = context.Process(target=work, args=(1,))
                child.start()
                child.join()
            work(1)
    """)  # fmt: skip
    ended = run(place, "program.py", method)
    assert (ended.code, ended.out) == (0, "0.5\n0.5\n10\n")
    line = next(i for i, line in enumerate((place.folder / "program.py").read_text().splitlines(), 1) if "overridable" in line)
    assert ended.err == (
        f"voirkit: probe '//work > half' ({place.folder}/program.py:{line}): it replaces values, which can not be done in processes that are "
        "spawned: nothing is replaced nor seen there.\n  It can in processes that are forked: multiprocessing.set_start_method('fork').\n"
    )


# when a child is in a hurry, or killed


def test_a_hundred_thousand_events_are_taken_or_counted() -> None:
    probe = probing("count_to > x")
    seen: list[Any] = []
    probe.subscribe(lambda event: seen.append(event["x"]))
    with probe:
        forked(lambda: count_to(100_000))
    assert len(seen) + probe.dropped == 100_000
    assert seen == sorted(set(seen))
    assert probe.events == len(seen)


def test_what_does_not_fit_is_counted_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    probe = probing("count_to > x")
    seen: list[Any] = []
    gate, open_gate = os.pipe()

    def slow(event: Any) -> None:
        if not seen:
            os.read(gate, 1)
        seen.append(event["x"])

    probe.subscribe(slow)
    with probe:
        forked(lambda: count_to(100_000))
        assert probe.dropped > 50_000
        os.write(open_gate, b"!")
    assert len(seen) > 5_000
    assert len(seen) + probe.dropped == 100_000
    assert seen == list(range(len(seen)))
    lines = [line for line in capfd.readouterr().err.splitlines() if "lost" in line]
    assert len(lines) == 1
    assert f"{probe.dropped} events" in lines[0]
    os.close(gate)
    os.close(open_gate)


def test_a_killed_child_loses_nothing_that_it_sent() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: (half(1), half(2), os.kill(os.getpid(), signal.SIGKILL)))
    assert [e["result"] for e in seen] == [0.5, 1.0]


def test_a_large_value_arrives_as_what_it_is() -> None:
    text = "x" * 50_000

    def give(n: int) -> None:
        for _ in range(n):
            t = text  # noqa: F841

    with probing("give > t").values() as seen:
        forked(lambda: give(10))
    assert [e["t"] for e in seen] == [text] * 10
    assert plain("x" * 100_000) == {"$type": "str", "len": 100_000}


def test_large_values_never_make_a_child_wait_and_are_taken_or_counted() -> None:
    seen: list[Any] = []
    gate, open_gate = os.pipe()

    def give(n: int) -> None:
        for i in range(n):
            t = "x" * (60_000 if i % 2 else 3_000)  # noqa: F841

    def timed() -> None:
        begun = time.monotonic()
        give(400)
        os._exit(int((time.monotonic() - begun) * 100))

    probe = probing("give > t")
    probe.subscribe(lambda event: (seen or os.read(gate, 1), seen.append(event)))
    with probe:
        pid = os.fork()
        if pid == 0:
            timed()
        hundredths = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(open_gate, b"!")
    assert hundredths < 90
    assert len(seen) + probe.dropped == 400
    assert probe.dropped > 0
    os.close(gate)
    os.close(open_gate)


def test_raw_events_that_are_too_large_arrive_as_what_they_are() -> None:
    def give() -> None:
        t = tuple("x" * 60_000 for _ in range(10))  # noqa: F841

    with probing("give > t", raw=True).values() as seen:
        forked(give)
    assert seen[0]["t"].value["$type"] == "tuple"


def test_what_is_dropped_before_a_child_could_connect_is_counted(place: Place) -> None:
    place.write(program="""
        import os, resource, time
        from voirkit import probing
        def work(n):
            half = n / 2
        with probing("work > half") as probe:
            seen = probe.accum()
            pid = os.fork()
            if pid == 0:
                before = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (4, before[1]))
                for _ in range(5):
                    work(1)
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                time.sleep(1.1)
                work(2)
                os._exit(0)
            os.waitpid(pid, 0)
        print([e["half"] for e in seen], probe.dropped)
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.out) == (0, "[1.0] 5\n")


def test_the_probe_may_end_before_the_child() -> None:
    ready, go = os.pipe()
    with probing("half > result").values() as seen:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            half(1)
            os.read(ready, 1)
            for _ in range(100_000):
                half(2)
            os._exit(7)
        while not seen:
            time.sleep(0.001)
    os.write(go, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(seen) == 1
    os.close(ready)
    os.close(go)


# the values


class Odd:
    """Raises at whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = None  # type: ignore[assignment]


def test_plain_values_arrive_as_they_are_and_others_as_what_they_are() -> None:
    import numpy
    import torch

    class Color(enum.IntEnum):
        RED = 3

    pair = collections.namedtuple("pair", "a b")
    for value in (1, -(10**30), 0.1, float("inf"), True, None, "ä\ud800", (), (1, "a", None, False)):
        assert plain(value) == value
        assert type(plain(value)) is type(value)
    for value, want in ((Color.RED, 3), (numpy.float64(0.5), 0.5), (numpy.int32(7), 7), (numpy.bool_(True), True), (pair(1, 2), (1, 2))):
        assert plain(value) == want
        assert type(plain(value)) is type(want)
    assert plain(torch.Size([2, 3])) == (2, 3)
    assert plain(torch.zeros(2, 0, dtype=torch.int8)) == {"$type": "torch.Tensor", "shape": [2, 0], "dtype": "torch.int8"}
    assert plain(torch.nn.Parameter(torch.zeros(1)))["$type"] == "torch.nn.parameter.Parameter"
    assert plain(numpy.zeros((2, 3))) == {"$type": "numpy.ndarray", "shape": [2, 3], "dtype": "float64"}
    assert plain([1, 2]) == {"$type": "list", "len": 2}
    assert plain((1, [2])) == {"$type": "tuple", "len": 2}
    assert plain(tuple(range(1000))) == {"$type": "tuple", "len": 1000}
    assert plain(Odd()) == {"$type": f"{__name__}.Odd"}


# the program is unchanged


UNCHANGED = """
    import json, multiprocessing, os, signal, sys, threading, warnings

    def work(n, tell=None):
        half = n / 2
        if tell is not None:
            import pickle
            found = vars(multiprocessing.current_process())
            tell.put([sorted(found), sys.path, sorted(os.environ), sys.argv, sorted(k for k in vars(sys.modules["__main__"]))])
        return half

    class Mine(multiprocessing.get_context("spawn").Process):
        def __getstate__(self):
            print(sorted(vars(self)))
            return {**vars(self), "more": 1}

        def run(self):
            print(self.more, work(2))

    def fails(how):
        work(1)
        if how == "exit":
            sys.exit(5)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "_exit":
            os._exit(6)
        raise ValueError(how)

    if __name__ == "__main__":
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            child = context.Process(target=work, args=(4, queue))
            child.start()
            print(json.dumps(queue.get()))
            child.join()
            print(sorted(vars(child)), child.exitcode)
            for how in ("exit", "kill", "_exit", "raise"):
                child = context.Process(target=fails, args=(how,))
                child.start()
                child.join()
                print(method, how, child.exitcode)
            try:
                context.Process(target=lambda: 0).start()
            except Exception as exc:
                import traceback
                print("".join(traceback.format_exception(exc)))
        child = Mine()
        child.start()
        child.join()
        pid = os.fork()
        if pid == 0:
            work(1)
            print("the child goes on", flush=True)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no child is left")
        sys.exit(4)
"""


def test_a_program_with_children_runs_as_under_python(place: Place) -> None:
    place.write(main=UNCHANGED, voirfile="def instrument_x(ov):\n    ov.probe('//work > half').subscribe(lambda event: None)\n")
    bare = run(place, "main.py", env={"PYTHONWARNINGS": "error"})
    probed = run(place, "--quiet", "main.py", voirkit=True, env={"PYTHONWARNINGS": "error"})
    assert (bare.code, probed.code) == (4, 4)
    assert re.sub("0x[0-9a-f]+", "0x", probed.out) == re.sub("0x[0-9a-f]+", "0x", bare.out)
    assert sorted(_told(probed.err)) == sorted(_told(bare.err))
    assert probed.summary["probes"][0]["events"] == 3 * 5 + 2
    assert probed.summary["dropped"] == {}


def _told(text: str) -> list[str]:
    return [line for line in text.splitlines() if "Process-" not in line and "Process Process" not in line]


def test_drops_stand_in_the_summary(place: Place) -> None:
    place.write(
        main="import os, time\ndef work():\n    for i in range(60000):\n        x = i\npid = os.fork()\nif pid == 0:\n    work()\n    os._exit(0)\nos.waitpid(pid, 0)\n",
        voirfile="""
            import time
            def instrument_x(ov):
                first = []
                def slow(event):
                    if not first:
                        first.append(event)
                        time.sleep(4)
                ov.probe("//work > x").subscribe(slow)
        """,
    )
    ended = run(place, "main.py", voirkit=True)
    assert ended.code == 0
    dropped = ended.summary["dropped"]["//work > x"]
    assert dropped > 0
    assert dropped + ended.summary["probes"][0]["events"] == 60_000
    assert ended.err.count(f"{dropped} events of child processes were lost") == 1


def test_nothing_is_left_when_the_probes_have_ended() -> None:
    import multiprocessing.process
    import threading

    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    with probing("half > result").values() as seen:
        forked(lambda: half(1))
        assert "__reduce_ex__" in vars(multiprocessing.process.BaseProcess)
    assert len(seen) == 1
    assert "__reduce_ex__" not in vars(multiprocessing.process.BaseProcess)
    assert [t.name for t in threading.enumerate() if t.name == "voirkit-events"] == []
    assert (os.listdir("/proc/self/fd") if sys.platform == "linux" else []) == before


def test_a_spawned_child_loads_no_streams(place: Place) -> None:
    loaded = said(place, WORK.replace("def even", """
    def tell(queue):
        work(1)
        queue.put([name for name in ("voirkit.probes.engine", "giving", "reactivex", "voirkit.reactive", "typing_extensions") if name in sys.modules])

    def even""") + """
        with probing("//work > half").values() as seen:
            queue = context.SimpleQueue()
            child = context.Process(target=tell, args=(queue,))
            child.start()
            loaded = queue.get()
            child.join()
        print(json.dumps([loaded, len(seen)]))
    """, "spawn")  # fmt: skip
    assert loaded == [["voirkit.probes.engine"], 1]


def test_without_children_there_is_no_thread_and_no_socket() -> None:
    import threading

    from voirkit.probes import processes

    with probing("half > result").values():
        half(1)
        assert processes._exchange is None
        assert [t.name for t in threading.enumerate() if t.name == "voirkit-events"] == []


def test_a_child_that_puts_a_file_in_the_place_of_a_standard_one_gets_that_number(place: Place) -> None:
    place.write(program="""
        import os
        from voirkit import probing
        def work(n):
            half = n / 2
        def child(fd):
            os.close(fd)
            if fd == 1:
                os.close(0)
            work(1)
            os.open(f"file{fd}", os.O_CREAT | os.O_WRONLY)
            if fd == 1:
                os.open("file1", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"written")
            work(2)
            os._exit(0)
        with probing("work > half").values() as seen:
            for fd in (0, 1, 2):
                pid = os.fork()
                if pid == 0:
                    child(fd)
                assert os.waitpid(pid, 0)[1] == 0
        print([e["half"] for e in seen], [open(f"file{fd}").read() for fd in (0, 1, 2)])
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.out, ended.err) == (0, "[0.5, 1.0, 0.5, 1.0, 0.5, 1.0] ['written', 'written', 'written']\n", "")


def test_a_program_without_standard_files_gets_their_numbers_for_its_own(place: Place) -> None:
    place.write(program="""
        import os
        from voirkit import probing
        def work(n):
            half = n / 2
        with probing("work > half").values() as seen:
            os.close(0)
            os.close(1)
            for n in (1, 2):
                pid = os.fork()
                if pid == 0:
                    work(n)
                    os._exit(0)
                os.waitpid(pid, 0)
            while len(seen) < 2:
                pass
            assert os.open(os.devnull, os.O_RDONLY) == 0
            assert os.open("out", os.O_CREAT | os.O_WRONLY) == 1
        print([e["half"] for e in seen])
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.err) == (0, "")
    assert (place.folder / "out").read_text() == "[0.5, 1.0]\n"


def test_a_child_that_closes_all_descriptors_keeps_its_own_files(place: Place) -> None:
    written = place.folder / "own.txt"

    def child() -> None:
        half(1)
        os.closerange(3, 1000)
        for _ in range(50):
            os.open(written, os.O_CREAT | os.O_WRONLY)
        half(2)

    with probing("half > result").values() as seen:
        forked(child)
    assert [e["result"] for e in seen] == [0.5]
    assert written.read_bytes() == b""


def test_a_child_is_not_waited_for(place: Place) -> None:
    program = """
        import os, time
        from voirkit import probing
        def f(n):
            x = n
        with probing("f > x") as probe:
            probe.print()
            if os.fork() == 0:
                os.close(1)
                os.close(2)
                f(1)
                time.sleep(30)
                os._exit(0)
            time.sleep(0.3)
    """
    place.write(program=program)
    begun = time.monotonic()
    ended = run(place, "program.py")
    assert ended.out.startswith("{'x': 1,")
    assert time.monotonic() - begun < 15


def test_a_global_probe_sees_children_that_python_waits_for_at_its_end(place: Place) -> None:
    program = """
        import multiprocessing, time
        from voirkit import global_probe
        def f(n):
            time.sleep(0.5)
            x = n
        if __name__ == "__main__":
            global_probe("//f > x").print()
            multiprocessing.get_context("fork").Process(target=f, args=(1,)).start()
    """
    place.write(program=program)
    ended = run(place, "-W", "error", "program.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("{'x': 1,")


def test_python_does_not_warn_of_forks_with_threads(place: Place) -> None:
    place.write(program="""
        import os, time, warnings
        from voirkit import probing
        def work(n):
            half = n / 2
        before = list(warnings.filters)
        with probing("work > half").values() as seen:
            for n in range(3):
                pid = os.fork()
                if pid == 0:
                    work(n)
                    os._exit(0)
                os.waitpid(pid, 0)
            while len(seen) < 3 or warnings.filters != before:
                time.sleep(0.001)
        print(len(seen))
    """)  # fmt: skip
    ended = run(place, "-W", "always", "program.py")
    assert (ended.code, ended.out, ended.err) == (0, "3\n", "")


def test_forks_while_events_come() -> None:
    with probing("half > result").values() as seen:
        children = []
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                for i in range(200):
                    half(2 * i)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    assert collections.Counter(e["$pid"] for e in seen) == dict.fromkeys(children, 200)
