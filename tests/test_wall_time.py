"""The wall time of whole runs: each planted pause is in its part, and the parts sum to the run's duration. Bounds are from below alone."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from conftest import Place

pytestmark = pytest.mark.long

TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # to which the kernel tells when a process was started
SLOW = "import time\ntime.sleep(0.4)\n"


def parts(place: Place) -> dict[str, float]:
    summary: dict[str, Any] = json.loads(
        place.python("-m", "voirkit", "report", "--json", "run").out
    )
    found = {name: part["total_s"] for name, part in summary["wall"]["parts"].items()}
    assert sum(found.values()) == pytest.approx(summary["duration_s"])
    return found


@pytest.mark.parametrize(
    "end",
    ["", "raise ValueError\n", "import sys\nsys.exit(3)\n"],
    ids=["to its end", "by an exception", "by sys.exit"],
)
def test_a_script_without_training(place: Place, end: str) -> None:
    place.write(
        slow=SLOW,
        main=f"import time\nimport slow\ntime.sleep(0.3)\ndef f():\n    import slow\nf()\n{end}",
    )
    begun = time.perf_counter()
    place.voirkit("main.py")
    lasted = time.perf_counter() - begun
    found = parts(place)
    assert set(found) == {"startup", "import", "script", "exit"}
    assert found["import"] >= 0.4
    assert found["script"] >= 0.3
    assert sum(found.values()) <= lasted + TICK_S


TRAINS = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import slow
import time
import torch

class Saved:
    def __reduce__(self):
        time.sleep(0.2)
        return (dict, ())

def main():
    import slower
    time.sleep(0.3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    for epoch in range(2):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            time.sleep(0.05)
        with torch.no_grad():
            for x in loader:
                model(x)
                time.sleep(0.04)
        torch.save(Saved(), "checkpoint.pt")
        time.sleep(0.15)
END
main()
"""


@pytest.mark.parametrize(
    "end", ["", "    os.kill(os.getpid(), 9)"], ids=["to its end", "by kill -9"]
)
def test_a_script_that_trains(place: Place, end: str) -> None:
    place.write(slow=SLOW, slower=SLOW, main=TRAINS.replace("END", end))
    place.voirkit("main.py")
    found = parts(place)
    least = {"startup": 0.3, "import": 0.8, "training": 0.4, "evaluation": 0.32, "checkpoint": 0.4}
    assert {name: seconds for name, seconds in least.items() if found[name] < seconds} == {}
    assert found["between"] >= (
        0.15 if end else 0.3
    )  # of a run that was killed, what came after the last record is not known
    assert ("exit" in found) == (not end)


RESUMES = """
import os, time, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
begin = torch.load("saved.pt")["step"] if os.path.exists("saved.pt") else 0
for step in range(begin + 1, 31):
    time.sleep(0.02)
    net(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save({"step": step}, "saved.pt")
    if step == 17 and not begin:
        os.kill(os.getpid(), 9)
"""


def test_a_job_that_torchrun_starts_again_is_one_run_with_its_goodput(place: Place) -> None:
    place.write(main=RESUMES)
    launcher = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "1",
    )
    begun = time.perf_counter()
    ended = place.python(*launcher, "-m", "voirkit", "main.py")
    lasted = time.perf_counter() - begun
    assert ended.code == 0, ended.err
    (run,) = (
        found for found in (place.folder / "voirkit-runs").iterdir() if not found.is_symlink()
    )
    summary = json.loads(place.python("-m", "voirkit", "report", "--json", str(run)).out)
    goodput = summary["goodput"]
    assert [(row["steps"], row["steps_lost"]) for row in goodput["by_attempt"]] == [
        (17, 7),
        (20, 0),
    ]
    found = {name: part["total_s"] for name, part in goodput["parts"].items()}
    assert sum(found.values()) == pytest.approx(goodput["total_s"])
    assert found["training"] >= 28 * 0.02  # of 30 steps, each of which sleeps so long
    assert found["lost"] >= 7 * 0.02
    assert 0 < found["restart"] < goodput["total_s"] < lasted + TICK_S
    assert summary["wall"]["total_s"] == pytest.approx(goodput["total_s"])
    assert (summary["steps"]["n"], summary["processes"]) == (37, []), (
        "attempts are no processes beside each other"
    )
    assert "2 attempts in" in place.python("-m", "voirkit", "report", str(run)).out
