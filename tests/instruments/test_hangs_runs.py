"""Programs that hang, two ranks with gloo or one process with workers: what their files say when all of them have been killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place, free_port

from voirkit_instruments.hangs import FOLDER

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less"),
]

_MOST_S = 200  # that a case may take on a busy machine

TRAIN = """
import os, sys, threading, time
import torch, torch.distributed as dist

case, rank, size = sys.argv[1], int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if size > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if case == "worker" and index == 20:
            time.sleep(1000)
        return torch.randn(4)

def evaluate():
    count = 0
    while True:
        count += 1

def read(path):
    with open(path, "r+b", buffering=0) as file:
        file.read(1)

def deadlock():
    lock = threading.Lock()
    with lock:
        lock.acquire()

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    shared = torch.ones(8)
    workers = {"num_workers": 2, "multiprocessing_context": "fork"} if case == "worker" else {}
    for number, batch in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=4, **workers)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        if size > 1 and not (case == "skip" and rank == 1 and number == 11):
            dist.all_reduce(shared)
        optimizer.step()
        if number == 11:
            if case == "loop" and rank == 1:
                evaluate()
            if case == "read" and rank == 1:
                read("fifo")
            if case == "shape":
                dist.broadcast(torch.ones(8 if rank else 4), 1 if rank else 0)
                dist.all_reduce(torch.ones(8))
            if case == "kill" and rank == 1:
                os.kill(os.getpid(), 9)
            if case == "lock":
                deadlock()
        time.sleep(0.6 if case == "slow" and number > 3 else 0.02)
        if number == 20:
            break
    if case == "slow":
        if rank == 0:
            began = time.monotonic()
            with torch.no_grad():
                while time.monotonic() - began < 9:
                    model(batch)
                    time.sleep(0.3)
        dist.barrier()
    if case == "skip" and rank == 1:
        time.sleep(1000)  # were it to end, gloo might tell the other

main()
print("done", rank, flush=True)
"""


class Launched:
    """The ranks of one program, each under voirkit."""

    def __init__(self, folder: Path, case: str, size: int, limit_s: str) -> None:
        self.run, self.size = folder / "run", size
        port = free_port()
        words = [
            sys.executable,
            "-m",
            "voirkit",
            "--run-dir",
            str(self.run),
            "--hang",
            limit_s,
            "main.py",
            case,
        ]
        self.outputs = [folder / f"err{rank}" for rank in range(size)]
        self.ranks = []
        for rank in range(size):
            group = (
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
                if size > 1
                else {}
            )
            with open(self.outputs[rank], "w") as out:
                self.ranks.append(
                    subprocess.Popen(
                        words,
                        cwd=folder,
                        env={**CLEAN, "OMP_NUM_THREADS": "1", **group},
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                )

    def said(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.outputs)

    def written(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.run / FOLDER).glob("*.json")):
            try:
                found.append(json.loads(path.read_text()))
            except (OSError, ValueError):
                pass
        return found

    def wait_for(self, is_there: Any) -> None:
        until = time.monotonic() + _MOST_S
        while not is_there() and time.monotonic() < until:
            time.sleep(0.1)
        assert is_there(), self.said()

    def wait_for_hang(self) -> None:
        """Until the line has been said, which is after all ranks have written."""
        self.wait_for(lambda: "the run hangs" in self.said())

    def kill(self) -> None:
        for rank in self.ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            rank.wait()

    def report(self) -> dict[str, Any]:
        """``hangs`` of the report, made of the files alone."""
        self.kill()
        done = subprocess.run(
            [sys.executable, "-m", "voirkit", "report", "--json", str(self.run)],
            env=CLEAN,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
        )
        found: dict[str, Any] = json.loads(done.stdout)["hangs"]
        return found


@pytest.fixture
def launch(place: Place) -> Iterator[Any]:
    """Start the ranks of a case; they are killed when the test is over."""
    place.write(main=TRAIN)
    os.mkfifo(place.folder / "fifo")
    launched: list[Launched] = []

    def start(case: str, size: int = 2, limit_s: str = "3") -> Launched:
        launched.append(Launched(place.folder, case, size, limit_s))
        return launched[-1]

    yield start
    for one in launched:
        one.kill()


def test_a_rank_in_an_endless_loop_is_named_with_its_line_and_the_other_with_its_collective(
    launch: Any,
) -> None:
    run = launch("loop")
    run.wait_for_hang()
    assert run.said().count("the run hangs") == 1
    [hang] = run.report()["hangs"]
    assert "rank 0 waits in all_reduce 13" in hang["sentence"], hang["sentence"]
    assert "rank 1 is in evaluate(), main.py:" in hang["sentence"]
    assert hang["different"] == ["all_reduce 13 has not been called by rank 1 (its last is 12)."]
    assert {row["rank"] for row in hang["ranks"] if row["threads"][0]["frames"]} == {0, 1}


def test_a_rank_that_reads_is_named_with_the_file(launch: Any) -> None:
    run = launch("read")
    run.wait_for_hang()
    [hang] = run.report()["hangs"]
    assert "rank 1 is in read(), main.py:" in hang["sentence"], hang["sentence"]
    assert hang["sentence"].endswith("/fifo")


def test_a_rank_that_skips_a_collective_is_seen_by_the_numbers(launch: Any) -> None:
    run = launch("skip")
    run.wait_for_hang()
    [hang] = run.report()["hangs"]
    assert "rank 0 waits in all_reduce 21" in hang["sentence"], hang["sentence"]
    assert "rank 1 is in main(), main.py:" in hang["sentence"], hang["sentence"]


def test_ranks_that_call_collectives_of_different_kinds_or_shapes_are_told(launch: Any) -> None:
    run = launch("shape")
    run.wait_for(
        lambda: "the run hangs" in run.said() or any(rank.poll() is not None for rank in run.ranks)
    )
    time.sleep(2)  # gloo may abort one of them: the other then hangs, or ends by an exception
    found = run.report()
    if found["hangs"]:
        assert (
            "waits in" in found["hangs"][0]["sentence"]
            or "wait in" in found["hangs"][0]["sentence"]
        )
    else:
        assert {one["how"] for one in found["ends"]} <= {"died", "exception"}


def test_a_rank_that_was_killed_is_named(launch: Any) -> None:
    run = launch("kill")
    run.wait_for(
        lambda: (
            run.ranks[1].poll() is not None
            and (run.ranks[0].poll() is not None or "the run hangs" in run.said())
        )
    )
    ends = [(one["rank"], one["how"]) for one in run.report()["ends"]]
    # Torch ends the other now and then by SIGABRT (pytorch#179291): then nobody knows which of the two was first.
    assert ends[0] == (1, "died") or sorted(ends) == [(0, "died"), (1, "died")]


def test_a_loader_worker_that_hangs_is_named(launch: Any) -> None:
    run = launch("worker", size=1)
    run.wait_for_hang()
    [hang] = run.report()["hangs"]
    assert hang["sentence"].startswith("the program waits for the data loader, main(), main.py:"), (
        hang["sentence"]
    )
    assert "is sleeping" in hang["sentence"]
    assert len(hang["ranks"][0]["workers"]) == 2


def test_a_deadlock_on_a_lock_is_named_with_its_line(launch: Any) -> None:
    run = launch("lock", size=1)
    run.wait_for_hang()
    [hang] = run.report()["hangs"]
    assert "the program is in deadlock(), main.py:" in hang["sentence"]
    assert hang["sentence"].endswith("waiting for a lock or another thread")


def test_a_run_that_is_slow_but_living_is_not_called_a_hang(launch: Any) -> None:
    run = launch(
        "slow", limit_s="6"
    )  # steps of 0.6 s, then 9 s of evaluation in one rank, for which the other waits
    run.wait_for(lambda: all(rank.poll() is not None for rank in run.ranks))
    assert "the run hangs" not in run.said()
    assert run.said().count("done") == 2
    assert run.report() is None


@contextmanager
def started_in(folder: Path, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher, which is killed with its ranks in the end; what they say is in ``err``."""
    with open(folder / "err", "w") as err:
        started = subprocess.Popen(
            words,
            cwd=folder,
            env={**CLEAN, "OMP_NUM_THREADS": "1"},
            stdout=err,
            stderr=err,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        started.terminate()  # torchrun ends its ranks then, which are in sessions of their own
        try:
            started.wait(60)
            os.killpg(started.pid, signal.SIGKILL)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            started.kill()
        started.wait()


SPAWNS = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    shared = torch.ones(8)
    for number in range(40):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).sum().backward()
        dist.all_reduce(shared)
        optimizer.step()
        if number == 20:
            dist.barrier()
            while not os.path.exists("go"):
                pass
            if rank == 1:
                os.kill(os.getpid(), 9)

if __name__ == "__main__":
    mp.spawn(work, (int(sys.argv[1]),), nprocs=2)
"""


def test_a_rank_that_its_parent_saw_killed_is_named_with_the_signal(place: Place) -> None:
    place.write(main=SPAWNS)
    port = free_port()
    words = [sys.executable, "-m", "voirkit", "--run-dir", "run", "main.py", str(port)]
    with started_in(place.folder, words) as started:
        until = time.monotonic() + _MOST_S
        while (
            len(list((place.folder / "run" / FOLDER).glob("*.json"))) < 2
            and time.monotonic() < until
        ):
            time.sleep(0.1)
        (place.folder / "go").write_text("")
        assert started.wait(_MOST_S) == 1
    lines = place.python("-m", "voirkit", "report", "run").out
    assert "Rank 1 was killed by SIGKILL, after step 2" in lines


SLEEPS = """
import os, time
import torch, torch.distributed as dist

rank, again = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if not again:  # the ranks that are started again may find addresses of the first ones in the store, and wait for those
    dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
shared = torch.ones(8)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).sum().backward()
    if not again:
        dist.all_reduce(shared)
    optimizer.step()
    time.sleep(0.02)
    if step == 15 and rank == 1 and not again:
        with open("hung.tmp", "w") as file:
            file.write(f"{os.getpid()} {time.time()}")
        os.rename("hung.tmp", "hung")
        time.sleep(10_000)
"""


def test_goodput_has_the_time_in_which_a_rank_slept_until_it_was_killed_and_started_again(
    place: Place,
) -> None:
    place.write(main=SLEEPS)
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    words = [
        sys.executable,
        *launcher,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--hang",
        "3",
        "main.py",
    ]
    with started_in(place.folder, words) as started:
        until = time.monotonic() + _MOST_S
        while (
            "the run hangs" not in (place.folder / "err").read_text() and time.monotonic() < until
        ):
            time.sleep(0.1)
        pid, since = (place.folder / "hung").read_text().split()
        time.sleep(2)
        os.kill(int(pid), signal.SIGKILL)
        slept_s = time.time() - float(since)
        assert started.wait(_MOST_S) == 0
    goodput = json.loads(place.python("-m", "voirkit", "report", "--json", "run").out)["goodput"]
    assert goodput["attempts"] == 2
    assert slept_s - 2 < goodput["parts"]["hang"]["total_s"] < slept_s + 2  # of 5 s or more
    assert sum(part["total_s"] for part in goodput["parts"].values()) == pytest.approx(
        goodput["total_s"]
    )
