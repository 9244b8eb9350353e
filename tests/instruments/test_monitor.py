"""``--monitor``: what the processes, the machine and its GPUs do while a script runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_nvml
import psutil
import pytest
import recorded
from conftest import Ended, Place

from voirkit.runs.opened import open_run
from voirkit.runs.other_processes import children_of
from voirkit_instruments.monitor.analyse import summarise
from voirkit_instruments.monitor.record import Machine, Sampler
from voirkit_instruments.monitor.record_gpus import Gpus
from voirkit_instruments.monitor.record_processes import Tree

FAKE = Path(fake_nvml.__file__).read_text()


class Made:
    """Processes that are not there: pid -> (children, own cpu seconds, those of children that ended, bytes read)."""

    def __init__(self, **processes: Any) -> None:
        self.now: dict[int, tuple[list[int], float, float, int]] = {}

    def children(self, pid: int) -> list[int]:
        return self.now[pid][0] if pid in self.now else []

    def open(self, pid: int) -> Any:
        made = self

        class Process:
            def oneshot(self) -> Any:
                from contextlib import nullcontext

                return nullcontext()

            def memory_info(self) -> Any:
                if pid not in made.now:
                    raise psutil.NoSuchProcess(pid)
                return SimpleNamespace(rss=100, shared=10)

            def cpu_times(self) -> Any:
                _, own, ended, _ = made.now[pid]
                return SimpleNamespace(
                    user=own, system=0.0, children_user=ended, children_system=0.0
                )

            def io_counters(self) -> Any:
                return SimpleNamespace(read_bytes=made.now[pid][3], write_bytes=0)

        return Process()


# processes


def test_what_is_counted_survives_the_processes_that_it_is_counted_of() -> None:
    made = Made()
    tree = Tree(1, made.children, made.open)
    made.now = {1: ([2, 3], 5.0, 0.0, 0), 2: ([], 1.0, 0.0, 0), 3: ([], 1.0, 0.0, 0)}
    assert tree.sample().cpu_seconds == 0
    made.now = {1: ([2, 3], 6.0, 0.0, 0), 2: ([], 3.0, 0.0, 500), 3: ([], 2.0, 0.0, 0)}
    assert tree.sample()[2:5] == (3, 4.0, 500)
    made.now = {
        1: ([3], 6.0, 3.5, 500),
        3: ([], 2.0, 0.0, 0),
    }  # the second was waited for: it is its parent's now
    assert tree.sample()[:5] == (200, 20, 2, 4.5, 500)
    made.now = {1: ([], 7.0, 3.5, 500)}  # the third was nobody's
    assert tree.sample().cpu_seconds == 5.5
    made.now = {1: ([4], 7.0, 3.5, 500), 4: ([], 0.5, 0.0, 0)}
    assert tree.sample().cpu_seconds == 6.0


def test_a_process_that_gets_the_number_of_one_that_ended() -> None:
    made = Made()
    tree = Tree(1, made.children, made.open)
    made.now = {1: ([2], 0.0, 0.0, 0), 2: ([], 0.0, 0.0, 0)}
    tree.sample()
    made.now = {1: ([2], 0.0, 0.0, 0), 2: ([], 9.0, 0.0, 0)}
    tree.sample()
    made.now = {1: ([2], 0.0, 9.0, 0), 2: ([], 1.0, 0.0, 0)}
    assert tree.sample().cpu_seconds == 10.0


def test_the_children_of_every_thread_are_found() -> None:
    import subprocess

    started: list[Any] = []
    command = [sys.executable, "-c", "input()"]
    thread = threading.Thread(
        target=lambda: started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    )
    thread.start()
    thread.join()
    try:
        assert started[0].pid in children_of(psutil.Process().pid)
    finally:
        started[0].communicate(b"\n")
    assert children_of(started[0].pid) == []


# GPUs


def test_a_gpu_that_fails_is_left_out_with_one_warning() -> None:
    told: list[str] = []
    gpus = Gpus(fake_nvml, told.append, visible="0,1")
    looks = [gpus.sample() for _ in range(4)]
    assert looks[0]["0"] == {
        "memory": [1024, 8192],
        "load": 0.75,
        "temperature": 61,
        "power": 250,
        "throttle": ["power cap"],
    }
    assert "power" not in looks[0]["1"]
    assert [sorted(look) for look in looks] == [["0", "1"], ["0", "1"], ["0"], ["0"]]
    assert told == ["monitor: GPU 1 cannot be read any more and is left out (GPU is lost)."]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("", []),
        ("-1", []),
        ("0", ["0"]),
        ("1,7,0", ["1"]),
        ("GPU-second", ["1"]),
        ("MIG-x,0", ["0"]),
    ],
)
def test_only_the_gpus_that_the_program_sees_are_looked_at(
    visible: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_nvml, "_looks", {0: 10, 1: 10})
    assert list(Gpus(fake_nvml, pytest.fail, visible).sample()) == seen


# figures


def test_levels_have_least_mean_and_most_and_counts_the_same_per_second(tmp_path: Path) -> None:
    body = """
    for at_s, rss, read in ((0, 100, 0), (1, 300, 50), (3, 200, 50)):
        for name, value in (("rss", rss), ("read", read)):
            recorder.counter(recorder.name("monitor", name, kind="counter", value="bytes"), NOW + at_s * 10**9, value)
    """
    with open_run(str(recorded.record_with_manifest(tmp_path / "run", body))) as run:
        found = summarise([run], [], {"monitor": {"interval_s": 1.0}})
    assert found is not None
    assert found["monitor"] == {
        "interval_s": 1.0,
        "rss": {"min": 100, "mean": 200, "max": 300, "units": "bytes"},
        "read": {
            "min": 0,
            "mean": pytest.approx(50 / 3),
            "max": 50,
            "total": 50,
            "units": "bytes/s",
        },
    }


def test_a_first_and_a_last_sample_come_whatever_the_interval_and_the_thread_is_joined() -> None:
    recorded: list[tuple[str, float]] = []
    recorder = SimpleNamespace(
        name=lambda category, name, kind, value: name,
        counter=lambda name, at, value: recorded.append((name, value)),
    )
    looks = iter([(0, {"cpudata": {}}, {"rss": 1.0}), (10**9, {"cpudata": {}}, {"rss": 2.0})])
    given: list[Any] = []
    machine = SimpleNamespace(sample=lambda: next(looks), close=lambda: given.append("closed"))
    sampler = Sampler(machine, 3600, recorder, lambda **data: given.append(set(data)), pytest.fail)
    sampler.start()
    sampler.stop()
    assert recorded == [("rss", 1.0), ("rss", 2.0)]
    assert given == [{"task", "time", "cpudata"}] * 2 + ["closed"]
    assert "voirkit-monitor" not in {thread.name for thread in threading.enumerate()}
    assert sampler.summary()["samples"] == 2


def test_a_sample_that_fails_is_told_once_and_the_thread_goes_to_its_end() -> None:
    def fail() -> Any:
        raise OSError("no /proc")

    told: list[str] = []
    sampler = Sampler(
        SimpleNamespace(sample=fail, close=lambda: None), 0.001, None, None, told.append
    )
    sampler.start()
    deadline = time.monotonic() + 60
    while not sampler.failed and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    sampler.stop()
    assert told == ["monitor: no more samples are taken (OSError: no /proc)."]


def test_a_look_at_this_machine_has_all_it_gives() -> None:
    machine = Machine(None)
    machine.sample()
    at_ns, given, figures = machine.sample()
    assert {"load", "memory", "rss", "cores"} <= given["cpudata"].keys()
    assert figures["rss"] >= figures["shared"] > 0
    assert 0 < at_ns <= time.perf_counter_ns()


# runs

SCRIPT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nb = bytearray(80_000_000)\\nfor i in range(0, len(b), 4096): b[i] = 1\\ntime.sleep(0.5)"])
print("done")
"""
VOIRFILE = """
def instrument_x(ov):
    seen = set()
    ov.given.subscribe(lambda event: seen.update(event))
    yield ov.phases.finalize
    ov.summary["seen"] = sorted(key for key in seen if key.endswith("data"))
"""


def with_module(place: Place, module: str, text: str, **programs: str) -> Callable[..., Ended]:
    """voirkit with a module in place of an installed one."""
    place.write({f"lib/{module}.py": text}, **programs)

    def run(*words: str, visible: str = "") -> Ended:
        return place.voirkit(
            *words, env={"PYTHONPATH": str(place.folder / "lib"), "CUDA_VISIBLE_DEVICES": visible}
        )

    return run


def test_a_monitored_run(place: Place) -> None:
    ended = with_module(place, "pynvml", FAKE, main=SCRIPT, voirfile=VOIRFILE)(
        "--monitor=0.02", "main.py", visible="0,1"
    )
    assert (ended.code, ended.out) == (0, "done\n")
    summary = ended.summary
    assert summary["seen"] == ["cpudata", "gpudata", "iodata", "netdata"]
    monitor = summary["monitor"]
    assert monitor["interval_s"] == 0.02
    assert monitor["samples"] >= 3
    assert monitor["cost_s"] > 0
    assert monitor["gpu0_power"] == {"min": 250, "mean": 250, "max": 250, "units": "W"}
    assert 0 < monitor["rss"]["min"] <= monitor["rss"]["mean"] <= monitor["rss"]["max"]
    assert monitor["processes"]["max"] == 2
    assert [w for w in summary["warnings"] if "GPU" in w] == [
        "monitor: GPU 1 cannot be read any more and is left out (GPU is lost)."
    ]
    with open_run(str(place.folder / "run")) as run:
        names = (
            run.connection()
            .execute(
                "SELECT DISTINCT name FROM spans WHERE kind = 'counter' AND category = 'monitor'"
            )
            .fetchall()
        )
        falls = (
            "SELECT count(*) FROM (SELECT number - lag(number) OVER (PARTITION BY name ORDER BY start_ns) AS d FROM spans "
            "WHERE kind = 'counter' AND name IN ('read', 'write', 'net_sent')) WHERE d < 0"
        )
        assert run.connection().execute(falls).fetchone() == (0,)
    assert {"rss", "cpu", "read", "gpu0_load"} <= {name for (name,) in names}


def test_without_the_package_that_reads_gpus_all_else_is_monitored(place: Place) -> None:
    ended = with_module(place, "pynvml", "raise ImportError(name='pynvml')", main="print('hello')")(
        "--monitor", "main.py"
    )
    assert (ended.code, ended.out) == (0, "hello\n")
    assert "rss" in ended.summary["monitor"]


def test_what_is_no_interval_is_refused(place: Place) -> None:
    place.write(main="print('hello')")
    ended = place.voirkit("--monitor=often", "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "--monitor=often" in ended.err


def test_an_exception_of_the_script_has_its_last_sample_too(place: Place) -> None:
    ended = with_module(place, "pynvml", FAKE, main="1 / 0")("--monitor=3600", "main.py")
    assert ended.code == 1
    monitor = json.loads((place.folder / "run" / "summary.json").read_text())["monitor"]
    assert monitor["samples"] == 2
    assert "gpu0_load" not in monitor
