"""Probes in the processes of multiprocessing and concurrent.futures, with each start method."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Place
from forking import METHODS, run, said

WORK = """
    import json, multiprocessing, os, shlex, sys, tools
    from concurrent.futures import ProcessPoolExecutor

    def work(n):
        half = n / 2
        return half

    def even(value):
        return value % 2 == 0

    def several(queue):
        for function, argument in ((work, 102), (work, 103), (tools.double, 3), (tools.double, 4), (shlex.quote, "word")):
            function(argument)
        queue.put([name for name in ("voirkit.probes.engine", "giving", "reactivex", "voirkit.streams.reactive", "typing_extensions") if name in sys.modules])

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

    if __name__ == "__main__":
        from voirkit import probing
        context = multiprocessing.get_context(sys.argv[1])
"""
TOOLS = "def double(n):\n    twice = 2 * n\n    return twice\n"


@pytest.fixture(scope="module", params=METHODS)
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What is seen of a process, a pool and an executor; one program for each way to start them, since starting takes its time."""
    place = Place(tmp_path_factory.mktemp(request.param)).write(tools=TOOLS)
    found: dict[str, Any] = said(place, WORK + """
        from voirkit import streams
        told = []
        streams.report = told.append
        workers = 2 if sys.argv[1] == "fork" else 1
        with (
            probing("//work(n) > half").values() as seen,
            probing("work(n~between(0, 9)) > half", "tools.double(n=3) > twice", "shlex.quote > s").values() as scoped,
            probing("work(n~even) > half").values() as conditioned,
        ):
            queue = context.SimpleQueue()
            child = context.Process(target=several, args=(queue,))
            child.start()
            loaded = queue.get()
            child.join()
            with context.Pool(workers) as pool:
                pool.map(work, range(4))
            with ProcessPoolExecutor(workers, mp_context=context) as pool:
                list(pool.map(work, range(10, 14)))
        print(json.dumps({
            "seen": [[e["n"], e["half"], e["$pid"] not in (None, os.getpid())] for e in seen],
            "scoped": [{k: v for k, v in e.items() if k != "$pid"} for e in scoped],
            "conditioned": [e["n"] for e in conditioned],
            "loaded": loaded,
            "told": "".join(told),
        }))
    """, request.param)  # fmt: skip
    return {**found, "method": request.param}


def test_processes_pools_and_executors(started: dict[str, Any]) -> None:
    assert sorted(started["seen"]) == [
        [n, n / 2, True] for n in (*range(4), *range(10, 14), 102, 103)
    ]


def test_names_in_scope_mean_the_same_functions(started: dict[str, Any]) -> None:
    scoped = started["scoped"]
    assert sorted(e["n"] for e in scoped if "half" in e) == [0, 1, 2, 3]
    assert [e for e in scoped if "half" not in e] == [{"n": 3, "twice": 6}, {"s": "word"}]


def test_a_condition_with_a_name_of_the_program_is_known_in_copies_alone(
    started: dict[str, Any],
) -> None:
    assert sorted(started["conditioned"]) == (
        [0, 2, 10, 12, 102] if started["method"] == "fork" else []
    )
    assert ("what 'even' in its condition means is unknown there." in started["told"]) is (
        started["method"] != "fork"
    )


def test_a_child_that_is_not_a_copy_loads_no_streams(started: dict[str, Any]) -> None:
    if started["method"] != "fork":
        assert started["loaded"] == ["voirkit.probes.engine"]


def test_children_of_spawned_processes(place: Place) -> None:
    seen = said(place.write(tools=TOOLS), WORK + """
        with probing("//work > half").values() as seen:
            child = context.Process(target=more, args=("spawn",))
            child.start()
            pid = os.fork()
            if pid == 0:
                more("spawn")
                os._exit(0)
            os.waitpid(pid, 0)
            child.join()
        print(json.dumps([sorted(e["half"] for e in seen), len({e["$pid"] for e in seen})]))
    """, "spawn")  # fmt: skip
    assert seen == [[0.5, 0.5, 1.0, 1.0, 1.5, 1.5], 6]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_can_not_be_seen_or_replaced_there_is_told_once(place: Place, method: str) -> None:
    place.write(tools=TOOLS, program=WORK.replace("return half", "print(half, flush=True)") + """
        def make():
            def inner():
                x = 1
            return inner
        inner = make()
        with probing("inner > x") as hidden, probing("//work > half", overridable=True) as probe:
            hidden.print()
            probe.override(10)
            for _ in range(2):
                child = context.Process(target=work, args=(1,))
                child.start()
                child.join()
            inner()
            work(1)
    """)  # fmt: skip
    ended = run(place, "program.py", method)
    assert (ended.code, ended.out) == (0, "0.5\n0.5\n{'x': 1}\n10\n")
    line = next(
        i
        for i, line in enumerate((place.folder / "program.py").read_text().splitlines(), 1)
        if "overridable" in line
    )
    assert ended.err.count("cannot be seen in processes that are spawned") == 1
    assert ended.err.count("voirkit: ") == 2
    assert (
        f"voirkit: probe '//work > half' ({place.folder}/program.py:{line}): it replaces values, which cannot be done in processes that are "
        "spawned: nothing is replaced nor seen there.\n  It can in processes that are forked: multiprocessing.set_start_method('fork').\n"
    ) in ended.err
