"""An annotated program, shorter than a training but with all that one has: epochs, steps, two loader processes, a thread, a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Place

PROGRAM = """
import multiprocessing, sys, threading, time
from voirkit.ai import ai

EPOCHS, STEPS, ITEMS = 2, 10, 4

def spin(us):
    end = time.perf_counter() + us * 1e-6
    while time.perf_counter() < end:
        pass

@ai.data.item
def item(i):
    spin(20)
    return i

def worker(n):
    for i in range(ITEMS * STEPS):
        item(i)

@ai.compute.forward
def forward(batch):
    spin(200)

@ai.compute.backward
def backward():
    with ai.comm.all_reduce:
        spin(100)

class Model:
    @ai.checkpoint.init
    def __init__(self):
        spin(50)

    @ai.checkpoint.capture
    def save(self):
        with ai.checkpoint.io.write:
            spin(300)

@ai.pipeline.train
def train():
    model = Model()
    for epoch in ai.pipeline.epoch.iter(range(EPOCHS)):
        for step, batch in ai.dataloader.fetch.iter(enumerate([[1]] * STEPS)):
            ai.update(epoch=epoch, step=step)
            with ai.device.transfer:
                spin(30)
            with ai.compute:
                forward(batch)
                backward()
                with ai.compute.step:
                    spin(50)
        model.save()

@ai.pipeline.evaluate
def evaluate():
    spin(100)

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=worker, args=(n,)) for n in range(2)]
    for process in workers:
        process.start()
    other = threading.Thread(target=worker, args=(2,), name="prefetch")
    other.start()
    train()
    other.join()
    for process in workers:
        process.join()
    evaluate()
"""

COROUTINES = """
import asyncio
from voirkit.ai import ai

async def load(i):
    with ai.data.item:
        await asyncio.sleep(0.01 * i)
        with ai.data.preprocess:
            await asyncio.sleep(0.05)

async def main():
    with ai.pipeline.train:
        await asyncio.gather(load(1), load(2), load(3))

asyncio.run(main())
"""
COROUTINES_COUNTS = {("pipeline", "train"): 1, ("data", "item"): 3, ("data", "preprocess"): 3}

STEPS_TAKEN = 2 * 10
COUNTS = {
    ("pipeline", "train"): 1, ("pipeline", "evaluate"): 1, ("pipeline", "epoch.iter"): 2, ("pipeline", "epoch.block"): 2,
    ("dataloader", "fetch.iter"): STEPS_TAKEN, ("dataloader", "fetch.block"): STEPS_TAKEN, ("data", "item"): 3 * 40,
    ("device", "transfer"): STEPS_TAKEN, ("compute", "compute"): STEPS_TAKEN, ("compute", "forward"): STEPS_TAKEN,
    ("compute", "backward"): STEPS_TAKEN, ("compute", "step"): STEPS_TAKEN, ("comm", "all_reduce"): STEPS_TAKEN,
    ("checkpoint", "checkpoint.init"): 1, ("checkpoint", "capture"): 2, ("checkpoint", "checkpoint.io.write"): 2,
}  # fmt: skip
PROCESSES, THREADS = 3, 4


def record(folder: Path, program: str = PROGRAM) -> Place:
    """Run the program under voirkit in a folder; its run directory is ``run``."""
    place = Place(folder).write(main=program)
    ended = place.voirkit("--quiet", "--compact", "main.py")
    assert (ended.code, ended.err) == (0, "")
    return place


def readers() -> Path:
    """Where the environments of the readers are, which ``make test-readers`` makes."""
    folder = os.environ.get("VOIRKIT_READERS")
    if folder is None:
        pytest.skip("run by `make test-readers`")
    return Path(folder).absolute()
