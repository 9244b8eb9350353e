"""Figures of findings, held against what a script has planted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Place

from voirkit_instruments.symptoms.record import SAMPLE_PERIOD

pytest.importorskip("torch")
pytestmark = pytest.mark.long


def causes(place: Place, script: str, argument: str) -> list[dict[str, Any]]:
    """What is found in a run, but for what other programs do to its times."""
    summary = place.write(main=script).voirkit("main.py", argument).summary
    return [finding for finding in summary["findings"] if finding["severity"] != "measurement"]


LEAK = """
import sys
import time
import torch

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
for step in range(300):
    loss = model(torch.randn(32, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(torch.ones(int(sys.argv[1]) // 4))
    if step == 150:
        time.sleep(1.0)  # memory grows with the steps, however long they take
"""


def test_memory_that_is_kept_in_each_step_is_told_by_the_step(place: Place) -> None:
    (finding,) = causes(place, LEAK, "1000000")
    assert finding["kind"] == "memory-grows"
    assert finding["evidence"]["each_step"] == pytest.approx(1e6, rel=0.1)
    kept = finding["evidence"]["kept"]
    assert kept["tensors"]["of"] == "float32[250000]"
    assert kept["tensors"]["more"] == pytest.approx(kept["container"]["more"], abs=1)
    assert f"in a list of {kept['container']['length']}" in finding["because"]


def test_of_memory_that_stays_nothing_is_told(place: Place) -> None:
    assert causes(place, LEAK, "4") == []


SCHEDULED = """
import sys
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
for epoch in range(4):
    for batch in range(50):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if sys.argv[1] == "batch":
            scheduler.step()
    if sys.argv[1] == "epoch":
        scheduler.step()
"""


def test_a_scheduler_that_is_stepped_once_a_batch_is_told_by_where_the_rate_has_vanished(
    place: Place,
) -> None:
    (finding,) = causes(place, SCHEDULED, "batch")
    assert finding["kind"] == "learning-rate-vanishes"
    assert finding["evidence"]["highest"] == 0.1
    assert (
        30 <= finding["evidence"]["updates"] <= 40 + SAMPLE_PERIOD
    )  # under a thousandth after 30 or 40 steps
    assert finding["evidence"]["updates_of"] == 200


def test_of_one_that_is_stepped_once_an_epoch_nothing_is_told(place: Place) -> None:
    assert causes(place, SCHEDULED, "epoch") == []


BY_TURNS = """
import torch

models = [torch.nn.Linear(4, 1) for _ in range(2)]
steady, falling = (torch.optim.SGD(model.parameters(), 0.1) for model in models)
scheduler = torch.optim.lr_scheduler.StepLR(falling, step_size=10, gamma=0.1)
for batch in range(200):
    for model, optimizer in zip(models, (steady, falling)):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    scheduler.step()
"""


def test_of_optimizers_by_turns_the_one_whose_rate_vanishes_is_told_with_its_share_of_the_training(
    place: Place,
) -> None:
    (finding,) = causes(place, BY_TURNS, "")
    assert finding["kind"] == "learning-rate-vanishes"
    assert 0.15 <= finding["evidence"]["share"] <= 0.25


# Prints what its own clock says of starting and stopping workers: all but the first start of each loader, all but its last stop.
RESTARTS = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

def init(worker):
    time.sleep(0.25)

stays = sys.argv[1] == "stay"
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
train, held_out = (
    DataLoader(data, 4, num_workers=1, worker_init_fn=init, persistent_workers=stays, multiprocessing_context="fork") for _ in range(2)
)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
spent = {"first": [], "stop": []}

def batches(loader):
    began = time.perf_counter()
    iterator = iter(loader)
    for number in range(len(loader)):
        batch = next(iterator)
        if not number:
            spent["first"].append(time.perf_counter() - began)
        yield batch
    began = time.perf_counter()
    next(iterator, None)
    spent["stop"].append(time.perf_counter() - began)

for epoch in range(3):
    model.train()
    for x, y in batches(train):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in batches(held_out):
            model(x)
print(json.dumps(spent))
"""


def restarts(place: Place, how: str) -> tuple[dict[str, Any], dict[str, list[float]]]:
    ended = place.write(main=RESTARTS).voirkit("main.py", how)
    spent = json.loads(next(line for line in ended.out.splitlines() if line.startswith("{")))
    return ended.summary, spent


def test_starts_and_stops_of_workers_are_told_as_the_scripts_own_clock_has_them(
    place: Place,
) -> None:
    summary, spent = restarts(place, "anew")
    again_s = sum(spent["first"][2:]) + sum(spent["stop"][:4])
    advice = next(one for one in summary["advice"] if "persistent_workers" in one["do"])
    assert "workers of training and evaluation" in advice["do"]
    if advice["win"] is not None:  # on a machine that other work keeps busy none is told
        assert advice["win"] * summary["wall"]["total_s"] == pytest.approx(again_s, rel=0.2)
    stopped_s = summary["wall"]["parts"]["workers"]["total_s"]
    assert (
        0.5 * sum(spent["stop"]) <= stopped_s <= sum(spent["stop"]) + sum(spent["first"]) - 6 * 0.25
    )


def test_workers_that_stay_are_not_advised_to(place: Place) -> None:
    summary, _ = restarts(place, "stay")
    assert not any("persistent_workers" in one["do"] for one in summary["advice"])


# Prints what its own callback says of pauses of 0.1 ms and more since torch was imported.
COLLECTS = """
import gc, sys, time
import torch

pauses, began = [], 0.0

def measure(phase, info):
    global began
    if phase == "start":
        began = time.perf_counter()
    elif time.perf_counter() - began >= 1e-4:
        pauses.append(time.perf_counter() - began)

gc.callbacks.append(measure)
kept = [[n] for n in range(int(sys.argv[1]))]
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.randn(40, 8), 4)
for epoch in range(4):
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        gc.collect()
    for _ in range(10):
        gc.collect()
print("paused", sum(pauses), len(pauses))
"""


def test_all_pauses_for_garbage_count_as_the_scripts_own_callback_has_them(place: Place) -> None:
    ended = place.write(main=COLLECTS).voirkit("main.py", "400000")
    paused_s = float(ended.out.split("paused ")[1].split()[0])
    (finding,) = [one for one in ended.summary["findings"] if one["kind"] == "garbage-collection"]
    assert finding["evidence"]["total_s"] == pytest.approx(paused_s, rel=0.05)
    assert finding["evidence"]["share"] == pytest.approx(
        paused_s / ended.summary["wall"]["total_s"], rel=0.05
    )
    assert (
        finding["evidence"]["in_steps"]
        < 0.8 * finding["gain"]
        <= 0.8 * finding["evidence"]["share"]
    )
    assert sum("gc.collect() in the loop" in one["do"] for one in ended.summary["advice"]) == 1
