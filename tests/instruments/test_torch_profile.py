"""``--torch-profile`` and ``--memory-snapshot`` on whole runs: what is recorded agrees with the script, which is as it is without them."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Ended, Place
from small_overseer import SmallOverseer

from voirkit.runs.opened import open_run
from voirkit_instruments.memory.record import MemorySnapshot
from voirkit_instruments.steps.events import FORWARD, OPTIMIZER_STEP, StepEvents
from voirkit_instruments.torch_profile.record import StepCounter, TorchProfile, Window, parse_window

pytestmark = pytest.mark.long

TRAIN = """
import os, sys, threading
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(80, 16), torch.randint(0, 4, (80,)))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""
LOOP = """
for n, (x, y) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
    step(x, y)
"""


def _profile(run: Ended) -> dict[str, Any]:
    found: dict[str, Any] = run.summary["torch_profile"]
    return found


def _both(place: Place, script: str, *options: str) -> Ended:
    """Run a script with and without; it is the same."""
    place.write(main=script)
    plain, watched = place.python("main.py"), place.voirkit("--quiet", *options, "main.py")
    assert (watched.out, watched.code) == (plain.out, plain.code), watched.err
    return watched


def _asked(folder: Path, *words: str) -> str:
    """What one of voirkit's subcommands prints."""
    ended = Place(folder).run(sys.executable, "-m", "voirkit", *words)
    assert ended.code == 0, ended.err
    return ended.out


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Ten steps of which four are recorded, with memory; each forward keeps 16 MiB."""
    keeps = "kept = []\nclass Keeps(torch.nn.Module):\n    def forward(self, x):\n        kept.append(torch.ones(1 << 22)); return x\n"
    script = TRAIN + keeps + "model.append(Keeps())\n" + LOOP
    return _both(
        Place(tmp_path_factory.mktemp("profiled")),
        script,
        "--torch-profile=2:1:4",
        "--memory-snapshot=tracemalloc",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("banana", "is no window of steps"),
        ("1:2", "is no window of steps"),
        ("0:0:0", "records 0 steps"),
        ("0:0:5000", "must be 1 to 1000"),
    ],
)
def test_a_window_that_can_not_be_read_is_told_before_the_script_runs(
    place: Place, text: str, says: str
) -> None:
    ended = place.write(main="print('ran')").voirkit(f"--torch-profile={text}", "main.py")
    assert ended.code == 2
    assert says in ended.err
    assert "ran" not in ended.out


def test_a_window_holds_the_steps_that_its_numbers_say() -> None:
    assert [n for n in range(30) if n in parse_window("5:0:3")] == [5, 6, 7]
    assert [n for n in range(30) if n in parse_window("2:3:2:2")] == [5, 6, 10, 11]
    assert (Window(2, 3, 2, 2).first, Window(2, 3, 2, 2).end, Window(2, 3, 2, 2).total) == (
        5,
        12,
        4,
    )


def test_batches_that_are_not_trained_on_are_no_steps() -> None:
    edges: list[int] = []
    turns = StepCounter(edges.append, lambda: edges.append(-1))
    (
        turns.before_batch(),
        turns.before_batch(),
        turns.after_backward(),
        turns.before_batch(),
        turns.after_backward(),
        turns.before_batch(),
    )
    assert edges == [0, 0, 1, 2]
    turns.after_batch(None)
    assert edges[-1] == -1


def test_operators_are_counted_in_the_phase_that_calls_them(profiled: Ended) -> None:
    found = _profile(profiled)
    assert found["steps"] == [3, 4, 5, 6]
    assert found["why"] is None
    calls = {
        phase: {name: row["calls"] for name, row in part["operators"].items()}
        for phase, part in found["phases"].items()
    }
    assert (
        calls["forward"]["aten::addmm"],
        calls["forward"]["aten::relu"],
        calls["backward"]["AddmmBackward0"],
    ) == (8, 4, 8)
    assert "AddmmBackward0" not in calls["forward"]
    assert calls["optimizer"]["Optimizer.step#SGD.step"] == 4
    assert calls["other"]["aten::cross_entropy_loss"] == 4
    assert calls["wait"]["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == 4


def test_its_figures_are_those_of_torch(profiled: Ended) -> None:
    """The time of each operator, summed over the phases, equals its time in torch's own trace."""
    found = _profile(profiled)
    with gzip.open(profiled.folder / "run" / found["file"], "rt") as file:
        events = [
            event
            for event in json.load(file)["traceEvents"]
            if event.get("cat") in ("cpu_op", "user_annotation")
        ]
    left: dict[str, float] = {}
    for event in events:
        left[event["name"]] = left.get(event["name"], 0.0) + event["dur"] / 1e6
    for part in found["phases"].values():
        for name, row in part["operators"].items():
            assert row["self_cpu_s"] <= row["cpu_s"] + 1e-9
            left[name] = left.get(name, 0.0) - row["cpu_s"]
    assert not {
        name: seconds
        for name, seconds in left.items()
        if abs(seconds) > 1e-6 and name not in ("voirkit.mark", "(others)")
    }


def test_operators_lie_in_the_phases_of_the_same_clock(profiled: Ended) -> None:
    assert _profile(profiled)["clock_error_s"] < 1e-3
    with open_run(profiled.folder / "run") as opened:
        query = (
            "SELECT count(*), count(p.name) FROM spans o LEFT JOIN spans p ON p.kind = 'phase' AND p.name = 'backward' "
            "AND o.start_ns >= p.start_ns AND o.start_ns + o.duration_ns <= p.start_ns + p.duration_ns "
            "WHERE o.kind = 'operator' AND o.name = 'AddmmBackward0'"
        )
        assert opened.connection().execute(query).fetchall() == [(8, 8)]


def test_the_timeline_shows_phases_and_operators(profiled: Ended) -> None:
    _asked(profiled.folder, "export", "run", "--format", "chrome", "--output", "run.chrome")
    events = json.loads((profiled.folder / "run.chrome").read_text())["traceEvents"]
    lanes = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    lane = {event["name"]: lanes[event["tid"]] for event in events if event["ph"] == "X"}
    assert (lane["forward"], lane["aten::addmm"]) == ("MainThread", "MainThread: operator")


def test_whoever_opens_the_run_again_finds_the_same(profiled: Ended) -> None:
    assert json.loads(_asked(profiled.folder, "report", "run", "--json"))[
        "torch_profile"
    ] == _profile(profiled)


def test_memory_is_told_by_phase_and_operator(profiled: Ended) -> None:
    assert "no CUDA device was used" in profiled.err
    phases = profiled.summary["memory"]["phases"]
    assert phases["forward"]["n"] == 10
    assert (
        phases["forward"]["rss"]["growth"]
        > 9 * (16 << 20)
        > 16 << 20
        > phases["optimizer"]["rss"]["growth"]
    )
    assert phases["forward"]["python"]["peak"] > 0
    forward = _profile(profiled)["phases"]["forward"]
    assert forward["bytes"] >= 4 * (16 << 20)
    assert forward["operators"]["aten::addmm"]["bytes"] == 4 * 4 * 8 * (32 + 4)


def test_the_page_has_operators_and_memory(profiled: Ended) -> None:
    _asked(profiled.folder, "report", "--html=page.html", "run")
    page = (profiled.folder / "page.html").read_text()
    assert all(text in page for text in ("aten::addmm", "Memory by phase", "AddmmBackward0"))


def test_a_script_that_profiles_itself_has_the_profiler(place: Place) -> None:
    own = """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    step(x, y)
print(sum(event.count for event in profile.key_averages() if event.key == "aten::addmm"))
"""
    run = _both(
        place,
        TRAIN + LOOP.replace("step(x, y)", "step(x, y)\n    if n == 6: break") + own,
        "--torch-profile=2:0:20",
    )
    assert "the script uses torch's profiler itself" in _profile(run)["why"]
    assert "there can be only one" in run.err
    assert _profile(run)["steps"] == [2, 3, 4, 5]


@pytest.mark.slow
def test_a_profiler_of_another_thread_has_it_too(place: Place) -> None:
    own = """
    def other():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.ones(3) @ torch.ones(3)
        print(sum(event.count for event in profile.key_averages() if event.key == "aten::dot"))
    if n == 4:
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
"""
    run = _both(place, TRAIN + LOOP + own, "--torch-profile=2:0:6")
    assert "there can be only one" in run.err


def test_a_window_that_the_run_does_not_reach_is_told(place: Place) -> None:
    run = _both(place, TRAIN + LOOP, "--torch-profile=20:0:3")
    assert "the run had 10 steps, and the window begins after 20" in run.err
    assert "voirkit --torch-profile=4:0:3 SCRIPT" in run.err
    assert _profile(run)["why"] in run.err


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('no torch')", "did not import torch"),
        ("import torch\nprint(torch.ones(2).sum())", "no step of a training was seen"),
    ],
)
def test_a_script_that_does_not_train_is_told_so(place: Place, script: str, says: str) -> None:
    assert says in _both(place, script, "--torch-profile").err


def test_torch_imported_before_there_is_a_run_directory_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(
        "voirkit_instruments.torch_profile.record_window.Recorded",
        lambda *given: begun.append(given[:2]) or object(),
    )
    ov: Any = SmallOverseer(options={"trace_limit": 1})
    profile, torch = TorchProfile(ov, Window(5, 0, 3), False), SimpleNamespace()
    profile.start(torch)  # type: ignore[arg-type]  # by a voirfile
    ov.run_dir = str(tmp_path)
    profile.script_loaded()
    assert begun == [(torch, str(tmp_path))]


def test_an_exception_in_the_window_is_the_scripts_own(place: Place) -> None:
    run = _both(
        place, TRAIN + LOOP + "    if n == 6: raise ValueError('mine')\n", "--torch-profile"
    )
    assert run.code == 1
    assert "ValueError: mine" in run.err
    assert _profile(run)["steps"] == [5]
    assert "1 of 3 steps" in _profile(run)["why"]


def test_a_run_that_is_killed_in_the_window_says_what_is_lost(place: Place) -> None:
    place.write(main=TRAIN + LOOP + "    if n == 6: os.kill(os.getpid(), 9)\n")
    assert place.voirkit("--quiet", "--torch-profile", "main.py").code in (-9, 137)
    for _ in range(2):
        assert (
            "it is lost"
            in json.loads(_asked(place.folder, "report", "run", "--json"))["torch_profile"]["why"]
        )


def test_workers_that_are_forked_in_the_window_are_not_recorded(place: Place) -> None:
    """The loop is left early, so that the next workers are forked before the loader has told that it has no more."""
    loop = """
for epoch in range(5):
    for n, (x, y) in enumerate(DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="fork")):
        if n == 2:
            break
        step(x, y)
print(os.system("exit 0"))
"""
    found = _profile(_both(place, TRAIN + loop, "--torch-profile=3:0:4"))
    assert found["steps"] == [3, 4, 5, 6]
    assert len(found["files"]) > 1
    assert found["phases"]["forward"]["operators"]["aten::addmm"]["calls"] == 8


@pytest.mark.slow
def test_an_evaluation_between_epochs_is_left_out(place: Place) -> None:
    loop = """
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=16):
        step(x, y)
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=16):
            model(x)
"""
    found = _profile(_both(place, TRAIN + loop, "--torch-profile=3:0:4"))
    assert found["steps"] == [3, 4, 5, 6]
    assert len(found["files"]) == 2
    assert "evaluation" not in found["phases"]
    assert found["phases"]["forward"]["operators"]["aten::addmm"]["calls"] == 8


@pytest.mark.slow
def test_without_a_loader_a_step_runs_from_one_step_of_the_optimizer_to_the_next(
    place: Place,
) -> None:
    found = _profile(
        _both(place, TRAIN + "for n in range(12): step(*data[:8])\n", "--torch-profile")
    )
    assert found["steps"] == [5, 6, 7]
    assert found["phases"]["optimizer"]["operators"]["Optimizer.step#SGD.step"]["calls"] == 3
    shares = {
        name: part["self_cpu_s"] / part["time_s"] for name, part in found["phases"].items()
    }  # of the same steps
    assert {name: share for name, share in shares.items() if share > 1.01} == {}
    assert shares["forward"] > 0.3


@pytest.mark.slow
def test_a_compiled_model_is_profiled(place: Place) -> None:
    found = _profile(
        _both(
            place,
            TRAIN + "model = torch.compile(model, backend='eager')\n" + LOOP,
            "--torch-profile",
        )
    )
    assert found["phases"]["forward"]["operators"]["aten::addmm"]["calls"] == 6


def test_a_script_that_traces_its_memory_itself_goes_on_doing_so() -> None:
    ov: Any = SmallOverseer()
    tracemalloc.start()
    try:
        snapshot = MemorySnapshot(ov, python=True)
        snapshot.torch_imported(SimpleNamespace(cuda=None))
        snapshot.end()
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert "the script uses tracemalloc itself" in ov.warned[0]


def test_a_script_that_closes_all_descriptors_is_as_it_is_without(place: Place) -> None:
    closes = """
for n in range(4):
    if n == 2:
        os.closerange(3, 256)
        mine = open("mine.txt", "w+"); mine.write("1 2 3"); mine.flush()
    step(*data[:8])
"""
    assert (
        _both(place, TRAIN + closes, "--memory-snapshot").summary["memory"]["phases"]["forward"][
            "n"
        ]
        >= 3
    )


def test_another_word_for_the_memory_is_refused(place: Place) -> None:
    assert place.write(main="").voirkit("--memory-snapshot=all", "main.py").code == 2


class _Cuda:
    """What of ``torch.cuda`` is used, as it is documented; no device is here."""

    def __init__(self) -> None:
        self.memory, self.done, self.held = self, [], 100
        self.queued: list[Any] = []

    def _lazy_call(self, call: Any) -> None:
        self.queued.append(call)

    def _cuda_attach_out_of_memory_observer(self, observer: Any) -> None:
        self.ran_out = observer

    def _snapshot(self) -> dict[str, Any]:
        def block(
            size: int, *frames: tuple[str, int], state: str = "active_allocated"
        ) -> dict[str, Any]:
            return {
                "size": size,
                "state": state,
                "frames": [{"filename": name, "line": n, "name": "f"} for name, n in frames],
            }

        torch = ("/usr/lib/site-packages/torch/nn/modules/linear.py", 5)
        blocks = [
            block(300, torch, ("/home/me/main.py", 9)),
            block(500, ("/home/me/main.py", 12)),
            block(50, torch),
        ]
        return {
            "segments": [
                {
                    "blocks": [
                        *blocks,
                        block(100, torch, ("/home/me/main.py", 9)),
                        block(9999, state="inactive"),
                    ]
                }
            ]
        }

    def memory_allocated(self) -> int:
        self.held += 50
        return self.held

    def _record_memory_history(self, enabled: str | None = "all", max_entries: int = 0) -> None:
        self.done.append(("history", enabled))

    def _dump_snapshot(self, path: str) -> None:
        Path(path).write_bytes(b"snapshot")
        self.done.append(("dump", Path(path).name.partition("-r0-")[2].partition(".")[2]))


def test_on_cuda_the_history_of_allocations_is_kept_and_written(tmp_path: Path) -> None:
    ov: Any = SmallOverseer()
    ov.run_dir = str(tmp_path)
    snapshot, cuda = MemorySnapshot(ov, python=False), _Cuda()
    steps, forwards = (
        ov.shared(StepEvents).around(
            event, SimpleNamespace(inside=0), lambda *_: 1, lambda *_: None
        )
        for event in (OPTIMIZER_STEP, FORWARD)
    )
    snapshot.torch_imported(SimpleNamespace(cuda=cuda, _C=cuda))
    assert cuda.done == []  # nothing initializes CUDA but the program
    for call in cuda.queued:
        call()
    assert cuda.done == [("history", "all")]  # before the first step
    optimizer = object()
    for enter, leave in (steps, forwards, forwards):
        leave(enter(optimizer), 0, optimizer)
    snapshot.end()
    assert cuda.done == [("history", "all"), ("dump", "snapshot.pickle"), ("history", None)]
    assert ov.summary["memory"]["phases"]["forward"]["device"] == {"growth": 100, "peak": 450}
    assert (tmp_path / ov.summary["memory"]["snapshot"]).read_bytes() == b"snapshot"
    assert ov.warned == []


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


def test_what_held_the_memory_of_a_device_when_it_ran_out_is_told_by_line(tmp_path: Path) -> None:
    ov: Any = SmallOverseer()
    ov.run_dir = str(tmp_path)
    snapshot, cuda = MemorySnapshot(ov, python=False), _Cuda()
    snapshot.torch_imported(SimpleNamespace(cuda=cuda, _C=cuda))
    cuda.queued[0]()
    cuda.ran_out(0, 1, 2, 3)
    try:
        raise OutOfMemoryError("CUDA out of memory")
    except OutOfMemoryError as exc:
        snapshot.end(exc)
    held = [
        {"where": "main.py:12", "bytes": 500},
        {"where": "main.py:9", "bytes": 400},
        {"where": "unknown", "bytes": 50},
    ]
    assert ov.summary["memory"]["out_of_memory"]["held_by"] == held
    assert "held by tensors made at main.py:12 500 bytes, main.py:9 400 bytes" in ov.warned[0]
    assert (tmp_path / ov.summary["memory"]["snapshot"]).exists()


def test_an_error_of_memory_names_its_phase_and_line(place: Place) -> None:
    place.write(
        main=TRAIN
        + """
class Large(torch.nn.Module):
    def forward(self, x):
        return torch.empty(1 << 50)

for n in range(4): step(*data[:8])
Large()(torch.ones(1))
"""
    )
    ended = place.voirkit("--memory-snapshot", "main.py")
    assert ended.code == 1
    assert ended.summary["memory"]["out_of_memory"]["phase"] == "forward"
    assert ended.summary["memory"]["out_of_memory"]["where"].startswith("main.py:")
    assert "out of memory in forward, at main.py:" in ended.err
