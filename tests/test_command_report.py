"""``voirkit report``: what a run came to, of finished, running and killed runs, of one directory and of several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLEAN, Ended, Place
from live_training import TRAINING

pytestmark = pytest.mark.long

FINISHED = TRAINING + "Training().epoch()\n"
KILLED = TRAINING + "import signal\nTraining().epoch()\nos.kill(os.getpid(), signal.SIGKILL)\n"
ON_GPU = (
    TRAINING
    + """
import signal

class OnGpu(Training):
    free_at = 0
    def span(self, category, name, share, value=None, number=0, **arguments):
        begun = max(self.now, self.free_at)
        super().span(category, name, share, value, number, **arguments)
        if category == "compute":
            self.free_at = max(begun + 8 * MS, self.now)
            recorder.span(recorder.name(category, name, kind="device", value=value), begun, self.free_at, recorder.arguments(arguments))

OnGpu().epoch()
os.kill(os.getpid(), signal.SIGKILL)
"""
)


def report(place: Place, *words: str) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "report", *words)


def test_a_finished_run_is_shown_as_at_its_end_and_its_summary_as_it_is(place: Place) -> None:
    place.write(main=FINISHED)
    ran = place.run(sys.executable, "-m", "voirkit", "main.py")
    shown = report(place)  # the latest
    assert shown.code == 0
    assert " ".join(shown.out.split()).startswith("main.py")
    for words in (
        "input-bound",
        "train_rate",
        "memory  peak",
        "10 steps, 40 items",
        "run directory",
    ):
        assert words in shown.out, shown.out
        assert words in ran.err, ran.err
    assert "\x1b" not in shown.out + ran.err
    assert shown.err == ""
    told = json.loads(report(place, "--json", "voirkit-runs/latest").out)
    assert told == json.loads((place.folder / "voirkit-runs/latest/summary.json").read_text())
    assert told["ended"] == "normal"
    assert told["verdict"]["evidence"]["workers"] == 0
    assert "num_workers=" in told["verdict"]["next"]
    assert told["verdict"]["next"].startswith(told["advice"][0]["do"])
    assert told["steps"]["n"] == 10


def test_a_killed_run_is_read_from_its_segments(place: Place) -> None:
    place.write(main=KILLED)
    assert place.voirkit("main.py").code == -9
    assert list((place.folder / "run/trace").glob("*.seg"))
    shown = report(place, "run")
    assert shown.code == 0
    assert "was killed" in shown.out
    assert "input-bound" in shown.out
    told = json.loads(report(place, "run", "--json").out)
    assert (told["ended"], told["exit_code"], told["steps"]["n"]) == ("killed", None, 10)


def test_a_run_on_a_gpu_has_the_shares_of_the_device(place: Place) -> None:
    place.write(main=ON_GPU)
    place.voirkit("main.py")
    first, shown = json.loads(report(place, "run", "--json").out), report(place, "run").out
    assert first["steps"]["time_of"] == "device"
    assert first["verdict"]["kind"] == "compute-bound"
    assert 20e-3 < first["steps"]["time_s"]["median"] < 30e-3
    assert first["steps"]["host_time_s"]["median"] == pytest.approx(10e-3, rel=0.01)
    assert "step on the device" in shown


def test_a_run_that_goes_on_is_read_as_it_is(place: Place) -> None:
    place.write(main=TRAINING + "Training().epoch()\nprint('trained', flush=True)\ninput()\n")
    command = [sys.executable, "-m", "voirkit", "--run-dir", "run", "main.py"]
    process = subprocess.Popen(
        command,
        cwd=place.folder,
        env=CLEAN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"trained\n"
        told = json.loads(report(place, "run", "--json").out)
        assert (told["ended"], told["steps"]["n"]) == ("running", 10)
        assert "is still running" in report(place, "run").out
    finally:
        process.communicate(b"\n")


def test_the_ranks_of_a_run_may_lie_in_several_directories(place: Place) -> None:
    place.write(main=FINISHED)
    for rank in ("0", "1"):
        env = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
        assert (
            place.run(
                sys.executable, "-m", "voirkit", "--run-dir", f"of-{rank}", "main.py", env=env
            ).code
            == 0
        )
    told = json.loads(report(place, "--json", "of-1", "of-0").out)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert (told["steps"]["n"], told["steps"]["items"], told["world_size"]) == (10, 80, 2)
    assert json.loads(report(place, "--json", "of-0").out)["ranks"] == []


def test_several_runs_are_shown_one_after_the_other(place: Place) -> None:
    place.write(main=FINISHED, other="print('hello')")
    place.run(sys.executable, "-m", "voirkit", "--run-dir", "one", "main.py")
    place.run(sys.executable, "-m", "voirkit", "--run-dir", "two", "other.py")
    shown = report(place, "one", "two", "one").out
    assert shown.count("run directory") == 2
    assert shown.index("main.py") < shown.index("other.py")
    assert [one["command"] for one in json.loads(report(place, "one", "two", "--json").out)] == [
        ["main.py"],
        ["other.py"],
    ]


def _spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:60] + b"\x07" * (len(data) - 120) + data[-60:])


@pytest.mark.parametrize("what", ["missing", "foreign", "a file", "damaged"])
def test_what_can_not_be_read_is_said_without_a_traceback(place: Place, what: str) -> None:
    (place.folder / "foreign").mkdir()
    place.write({"foreign/photo.jpg": "", "a file": ""}, main=KILLED)
    if what == "damaged":
        place.run(sys.executable, "-m", "voirkit", "--run-dir", "damaged", "main.py")
        report(place, "damaged")  # puts the trace to rest
        for file in (place.folder / "damaged").rglob("*.parquet"):
            _spoil(file)
    shown = report(place, what)
    assert "Traceback" not in shown.err
    if what != "damaged":
        assert (shown.code, shown.out) == (2, "")
        assert shown.err.startswith(f"voirkit: {what}: ")
    elif shown.code:
        assert "it is damaged" in shown.err
    else:
        assert "cannot be read" in shown.err


def test_an_encoding_that_lacks_what_is_drawn_gets_what_is_like_it(place: Place) -> None:
    place.write(main=FINISHED)
    ran = place.run(sys.executable, "-m", "voirkit", "main.py", env={"PYTHONIOENCODING": "ascii"})
    shown = place.run(sys.executable, "-m", "voirkit", "report", env={"PYTHONIOENCODING": "ascii"})
    for text in (ran.err, shown.out):
        assert text.isascii()
        assert "####" in text
        assert "?" not in text
    assert (ran.code, shown.code, shown.err) == (0, 0, "")


def test_a_summary_of_another_shape_is_said_and_made_anew(place: Place) -> None:
    place.write(main="print()")
    place.voirkit("main.py")
    path = place.folder / "run" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loader": ["x"], "rates": "x"}))
    ended = place.run(sys.executable, "-m", "voirkit", "report", "run")
    assert ended.code == 0
    assert "is not like any that voirkit writes (rates, loader)" in ended.err
