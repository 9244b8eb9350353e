"""A training loop with a planted cause, whose shares the script measures itself: the truth for benchmarks/peers/accuracy.py.

    python planted.py CASE TRUTH [traceml]

Writes to the file TRUTH what part of its steps each phase took, by its own clock. ``traceml`` adds the lines that TraceML asks for.
"""

import contextlib
import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CASE, TRUTH = sys.argv[1:3]
STEPS, BATCH = 120, 16
if "traceml" in sys.argv:
    import traceml_ai

    traceml_ai.init(mode="auto")
    trace_step = traceml_ai.trace_step
else:
    trace_step = contextlib.nullcontext


class SlowCrop:
    """The planted transform."""

    def __call__(self, sample):
        if CASE in ("transform", "workers"):
            end = time.perf_counter() + 0.0012  # which holds a processor
            while time.perf_counter() < end:
                pass
        return sample


class Samples(Dataset):
    def __init__(self):
        self.crop = SlowCrop()

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        return self.crop(torch.full((64,), index / self.__len__()))


class SlowBlock(nn.Module):
    """The planted module."""

    def forward(self, x):
        if CASE == "forward":
            end = time.perf_counter() + 0.015
            while time.perf_counter() < end:
                pass
        return x


def log_metrics(loss):
    """The planted logging."""
    if CASE == "logging":
        time.sleep(0.015)


def save_checkpoint(model, step):
    """The planted checkpoint."""
    if CASE == "checkpoint" and step % 4 == 0:
        time.sleep(0.05)
        torch.save(model.state_dict(), "checkpoint.pt")


def train(model, optimizer, loader):
    """The loop; returns the seconds of each phase."""
    spent = dict.fromkeys(("wait", "forward", "backward", "optimizer", "other"), 0.0)
    clock = time.perf_counter
    t0 = clock()
    for step, inputs in enumerate(loader):
        t1 = clock()
        with trace_step(model):
            loss = model(inputs).square().mean()
            t2 = clock()
            optimizer.zero_grad()
            loss.backward()
            t3 = clock()
            optimizer.step()
            t4 = clock()
            log_metrics(loss)
            save_checkpoint(model, step)
        t5 = clock()
        for phase, seconds in zip(
            spent, (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4), strict=True
        ):
            spent[phase] += seconds
        t0 = t5
    return spent


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(64, 512),
        nn.ReLU(),
        SlowBlock(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    spent = train(
        model,
        optimizer,
        DataLoader(Samples(), batch_size=BATCH, num_workers=2 if CASE == "workers" else 0),
    )
    total = sum(spent.values())
    with open(TRUTH, "w") as file:
        json.dump(
            {
                "steps": STEPS,
                "total_s": total,
                **{phase: seconds / total for phase, seconds in spent.items()},
            },
            file,
        )


if __name__ == "__main__":
    main()
