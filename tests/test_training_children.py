"""Processes that the script starts itself and that train: ranks of one run, or processes that train each for itself."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import Place

pytestmark = pytest.mark.long

pytest.importorskip("torch")

# What each process prints it has counted itself.
SCRIPT = """
import os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(model, optimizer, batches, workers=0):
    n = 0
    data = TensorDataset(torch.randn(4 * batches, 3))
    for (x,) in DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        n += 1
    os.write(1, f"trained {n}\\n".encode())  # in one piece: ranks print at the same time

def rank(number, size, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    train(model, torch.optim.SGD(model.parameters(), 0.1), 6, workers=1)
    dist.destroy_process_group()
    if number == 1 and sys.argv[1] == "fails":
        raise LookupError("of rank 1")

def alone(model, optimizer, batches):
    torch.set_num_threads(1)
    train(model, optimizer or torch.optim.SGD(model.parameters(), 0.1), batches)

if __name__ == "__main__":
    if sys.argv[1] in ("ranks", "fails"):
        mp.spawn(rank, args=(2, tempfile.mktemp()), nprocs=2)
    else:
        model = nn.Linear(3, 2).share_memory()
        optimizer = torch.optim.SGD(model.parameters(), 0.1) if sys.argv[1] == "fork" else None
        context = mp.get_context(sys.argv[1])
        children = [context.Process(target=alone, args=(model, optimizer, n)) for n in (5, 7)]
        for child in children:
            child.start()
        for child in children:
            child.join()
"""


def test_ranks_that_the_script_spawns_are_those_of_the_run(place: Place) -> None:
    ended = place.write(main=SCRIPT).voirkit("main.py", "ranks")
    assert (ended.code, ended.out) == (0, "trained 6\ntrained 6\n"), ended.err
    summary = ended.summary
    assert (summary["world_size"], summary["steps"]["n"], summary["steps"]["items"]) == (2, 6, 48)
    assert [(row["rank"], row["steps"]) for row in summary["ranks"]] == [(0, 6), (1, 6)]
    assert summary["processes"] == []
    assert place.python("-m", "voirkit", "report", "run").code == 0  # the first reader compacts
    assert sorted(file.name for file in (place.folder / "run" / "steps").iterdir()) == [
        "rank=0.parquet",
        "rank=1.parquet",
    ]


@pytest.mark.parametrize("how", ["ranks", "spawn"])
def test_the_imports_of_processes_that_train_are_beside_those_of_the_script(
    place: Place, how: str
) -> None:
    said = "print(f'imports {t.perf_counter() - begun}\\n', end='', flush=True)\n"  # one write, which those of others are not amid
    timed = f"import time as t; begun = t.perf_counter()\nimport slow\n{said}"
    ended = place.write(main=timed + SCRIPT, slow="import time\ntime.sleep(0.5)\n").voirkit(
        "main.py", how
    )
    own = [float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("imports")]
    assert (
        len(own) == 3
    )  # the script's process and two that it starts, which begin at the same time
    assert ended.summary["wall"]["parts"]["import"]["total_s"] > own[0] + min(own[1:])
    again = json.loads(place.python("-m", "voirkit", "report", "--json", "run").out)["wall"][
        "parts"
    ]["import"]["total_s"]
    assert again == pytest.approx(ended.summary["wall"]["parts"]["import"]["total_s"])


def test_a_rank_that_fails_ends_the_program_as_it_would(place: Place) -> None:
    place.write(main=SCRIPT)
    plain, ended = place.python("main.py", "fails"), place.voirkit("--quiet", "main.py", "fails")
    assert (ended.code, sorted(ended.out)) == (plain.code, sorted(plain.out))
    assert plain.err.rpartition("-- Process 1")[2] in ended.err
    assert [(row["rank"], row["steps"]) for row in ended.summary["ranks"]] == [(0, 6), (1, 6)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_without_ranks_train_each_for_itself(place: Place, method: str) -> None:
    ended = place.write(main=SCRIPT).voirkit("main.py", method)
    assert (ended.code, sorted(ended.out.splitlines())) == (0, ["trained 5", "trained 7"]), (
        ended.err
    )
    summary = ended.summary
    assert (summary["world_size"], summary["steps"]["n"], summary["steps"]["items"]) == (1, 12, 48)
    assert sorted((row["rank"], row["steps"], row["items"]) for row in summary["processes"]) == [
        (None, 5, 20),
        (None, 7, 28),
    ]
    whole = place.python(
        "-m", "voirkit", "report", "run"
    ).out  # at the run's end there are 40 lines, on a busy machine fewer for this
    assert all(f"  {row['pid']}  " in whole for row in summary["processes"])
    assert summary["ranks"] == []


FOLDS = """
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset

def fold(number, steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * steps, 3)), batch_size=4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return steps

if __name__ == "__main__":
    for _ in range(2):  # by the same workers, which stay
        folds = Parallel(n_jobs=2)(delayed(fold)(i, 5 + i) for i in range(4))
    print(folds)
"""


def test_workers_of_joblib_train_each_for_itself_and_are_reported_once(place: Place) -> None:
    pytest.importorskip("joblib")
    ended = place.write(main=FOLDS).voirkit("main.py")
    assert (ended.code, ended.out) == (0, "[5, 6, 7, 8]\n"), ended.err
    summary = ended.summary
    assert (summary["steps"]["n"], summary["steps"]["items"], summary["warnings"]) == (52, 208, [])
    rows = [row["steps"] for row in summary["processes"]]
    assert sum(rows) in (52, 0)  # no rows where one worker was fast enough to do all of it
    assert ended.err.count("52 steps, 208 items") == 1, ended.err
    assert "they are reported" not in ended.err


LAUNCHED = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
os.write(1, f"{sys.argv} {sorted(name for name in os.environ if 'VOIRKIT' in name)}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_ranks_that_a_launcher_under_voirkit_starts_are_those_of_the_run(place: Place) -> None:
    words = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
        "5",
    )
    ended = place.write(train=LAUNCHED).voirkit(*words)
    assert (ended.code, ended.out) == (0, "['train.py', '5'] []\n" * 2), ended.err
    summary = ended.summary
    assert (summary["world_size"], summary["steps"]["n"], summary["steps"]["items"]) == (2, 5, 40)
    assert [(row["rank"], row["steps"]) for row in summary["ranks"]] == [(0, 5), (1, 5)]


LEFT = """
import multiprocessing, sys

def train():
    import torch
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=train).start()
    print("done", "torch" in sys.modules)
"""


def test_processes_that_the_script_does_not_wait_for_are_reported_when_they_have_ended(
    place: Place,
) -> None:
    ended = place.write(main=LEFT).voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done False\n"), ended.err
    summary = ended.summary
    assert summary["steps"]["n"] == 6
    assert "6 steps" in ended.err
    parts = sum(part["total_s"] for part in summary["wall"]["parts"].values())
    assert parts == pytest.approx(summary["duration_s"])
    assert all(part["total_s"] >= 0 for part in summary["wall"]["parts"].values())
