"""Delays planted in one of two ranks of a real training: who is found to hold the others up, by how much, and in what."""

from __future__ import annotations

import json

import pytest
from conftest import Place

from voirkit.live import Picture
from voirkit.live.steps import LiveSteps

pytestmark = pytest.mark.long

pytest.importorskip("torch")

MS = 60
STEPS = 30
SCRIPT = f"""
import sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.distributed.fsdp import fully_shard

where, sharded = sys.argv[1], sys.argv[2] == "fsdp"
torch.set_num_threads(1)
if sys.argv[2] == "calls":
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        vars(torch._C._distributed_c10d).pop(name, None)
dist.init_process_group("gloo")

def delayed(here):
    if here == where and dist.get_rank() == 1:
        time.sleep({MS / 1000})

class Data(Dataset):
    def __len__(self):
        return {STEPS * 4}
    def __getitem__(self, i):
        if i % 4 == 0:
            delayed("wait")
        return torch.randn(64), 0

class Slow(nn.Module):
    def forward(self, x):
        delayed("forward")
        return x

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        delayed("backward")
        return grad

class SlowBackward(nn.Module):
    def forward(self, x):
        return Backward.apply(x)

model = nn.Sequential(nn.Linear(64, 64), Slow(), nn.Linear(64, 64), SlowBackward(), nn.Linear(64, 4))
if sharded:
    fully_shard(model)
else:
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for x, y in DataLoader(Data(), batch_size=4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if sys.argv[2] == "calls":
        delayed("other")
        dist.all_reduce(loss.detach())
    optimizer.step()
dist.destroy_process_group()
"""


def train(place: Place, where: str, kind: str = "ddp") -> None:
    launch = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "voirkit",
        "--run-dir",
        "run",
    )
    ran = place.write(main=SCRIPT).python(*launch, "main.py", where, kind)
    assert ran.code == 0, ran.err


def summarised(place: Place) -> dict:
    return json.loads(place.python("-m", "voirkit", "report", "--json", "run").out)


def seen_live(place: Place) -> dict:
    """What `voirkit watch` says of the records of a run that goes on."""
    steps, picture = LiveSteps(str(place.folder / "run")), Picture()
    steps.update()
    steps.fill(picture)
    assert picture.verdict is not None
    return dict(picture.verdict)


@pytest.mark.parametrize(
    ("where", "kind"),
    [("wait", "ddp"), ("backward", "ddp"), ("forward", "fsdp"), ("other", "calls")],
)
def test_a_planted_delay_is_found_with_its_rank_its_phase_and_its_size(
    place: Place, where: str, kind: str
) -> None:
    train(place, where, kind)
    live, summary = seen_live(place), summarised(place)
    late = summary["collectives"]["late"]
    assert (late["rank"], late["phase"]) == (1, where), summary["collectives"]
    assert late["time_s"] == pytest.approx(
        MS / 1000, rel=0.5
    )  # sleeps last longer where others take the processors
    for verdict in (summary["verdict"], live):
        assert verdict["kind"] == "straggler"
        assert verdict["because"].startswith("Rank 1 ")
        assert verdict["evidence"]["phase"] == where


def test_nobody_is_blamed_where_no_delay_is_planted(place: Place) -> None:
    train(place, "nowhere")
    late = summarised(place)["collectives"]["late"]
    assert (
        late is None or late["phase"] == "processor"
    )  # a busy machine may keep one of them from running
