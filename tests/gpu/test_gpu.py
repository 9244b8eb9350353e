"""On a real CUDA device: what is said of it is what its own events, torch's profiler and NVML say, and the program is as without voirkit.

``make test-gpu`` runs it, in a few minutes; without a device it is skipped. All else that is said of GPUs is tested with a fake of
``torch.cuda``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest
from conftest import Ended, Place

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAIN = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
device = torch.device("cuda")
WIDTH, STEPS, BATCH = 2048, 40, 512
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(STEPS * BATCH, WIDTH), torch.randint(0, 10, (STEPS * BATCH,)))
loader = DataLoader(data, batch_size=BATCH, pin_memory=True)
"""
LOOP = """
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex(), sum(p.detach().double().sum() for p in model.parameters()).item().hex())
"""


def both(place: Place, script: str, *flags: str, code: int = 0) -> Ended:
    """The script's run under voirkit; it prints and ends as without."""
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # else results differ from run to run
    place.write(main=script)
    plain = place.python("main.py", env=env)
    assert plain.code == code, plain.err
    ended = place.voirkit(*flags, "main.py", env=env)
    assert (ended.code, ended.out) == (code, plain.out), ended.err
    assert "could not be" not in ended.err
    return ended


def found(ended: Ended, name: str) -> Any:
    """What a check says: found, not found, or None."""
    return next(check["found"] for check in ended.summary["checks"] if check["name"] == name)


# time

EVENTS = """
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):  # warm: the first steps load kernels
    model(torch.zeros(BATCH, WIDTH, device=device)).sum().backward()
torch.cuda.synchronize()
began = None
for x, y in loader:
    if began is None:
        began = True
        begin.record()
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=False)
    optimizer.step()
    optimizer.zero_grad()
end.record()
torch.cuda.synchronize()
print(begin.elapsed_time(end) / 1e3, file=sys.stderr)
"""


def test_steps_take_as_long_as_the_devices_own_events_say(place: Place) -> None:
    ended = both(place, TRAIN + EVENTS)
    measured_s = next(
        float(line)
        for line in ended.err.splitlines()
        if line.replace(".", "", 1).replace("e-", "", 1).isdigit()
    )
    steps = ended.summary["steps"]
    assert steps["n"] == 40
    assert steps["time_of"] == "device"
    assert steps["total_s"] == pytest.approx(measured_s, rel=0.15)


def test_phases_are_those_of_torchs_profiler(place: Place) -> None:
    ended = both(place, TRAIN + LOOP, "--torch-profile=10:2:20")
    profile, phases = ended.summary["torch_profile"], ended.summary["steps"]["phases"]
    recorded = len(profile["steps"])
    kernels = {
        phase: sum(row["phases"].get(phase, 0.0) for row in profile["kernels"].values())
        for phase in ("forward", "backward")
    }
    for phase, device_s in kernels.items():
        per_step = phases[phase]["total_s"] / ended.summary["steps"]["n"]
        assert per_step == pytest.approx(device_s / recorded, rel=0.35, abs=1e-4), phase
    assert kernels["backward"] > kernels["forward"]


AHEAD = """
x, y = (part.to(device) for part in next(iter(loader)))
for _ in range(5):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
torch.cuda.synchronize()
began = time.perf_counter()
for _ in range(30):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
queued = time.perf_counter() - began
torch.cuda.synchronize()
whole = time.perf_counter() - began
print("the host is ahead:", queued < 0.7 * whole)
"""


@pytest.mark.parametrize("flags", [[], ["--checks"], ["--loader"]])
def test_a_program_is_not_made_to_wait_for_its_device(place: Place, flags: list[str]) -> None:
    script = (TRAIN + AHEAD).replace(
        "WIDTH, STEPS, BATCH = 2048, 40, 512", "WIDTH, STEPS, BATCH = 4096, 2, 4096"
    )
    assert "the host is ahead: True" in both(place, script, *flags).out


@pytest.mark.parametrize(("pinned", "non_blocking"), [(True, True), (True, False), (False, False)])
def test_copies_to_the_device_are_transfer(place: Place, pinned: bool, non_blocking: bool) -> None:
    script = (
        (TRAIN + LOOP)
        .replace("pin_memory=True", f"pin_memory={pinned}")
        .replace("non_blocking=True", f"non_blocking={non_blocking}")
    )
    ended = both(place, script, "--loader")
    assert ended.summary["steps"]["n"] == 40
    assert ended.summary["steps"]["items"] == 40 * 512
    assert ended.summary["steps"]["phases"]["transfer"]["total_s"] > 0


def test_a_step_that_waits_for_its_batch_is_input_bound(place: Place) -> None:
    slow = "class Slow(TensorDataset):\n    def __getitem__(self, at):\n        time.sleep(0.002)\n        return super().__getitem__(at)\n"
    script = (
        TRAIN.replace("WIDTH, STEPS, BATCH = 2048, 40, 512", "WIDTH, STEPS, BATCH = 256, 20, 32")
        + slow
        + "data.__class__ = Slow\n"
        + LOOP
    )
    ended = both(place, script)
    assert ended.summary["verdict"]["kind"] == "input-bound"
    assert ended.summary["steps"]["device"]["idle"]["share"] > 0.5


# NVML, memory


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py")
def test_the_monitor_tells_the_devices_memory_and_load(place: Place) -> None:
    script = (
        TRAIN.replace("STEPS, BATCH = 2048, 40", "STEPS, BATCH = 2048, 400").replace("512", "64")
        + LOOP
    )
    figures = both(place, script, "--monitor=50ms").summary["monitor"]
    text = json.dumps(figures)
    for name in ("gpu0_memory", "gpu0_load", "gpu0_power", "gpu0_temperature"):
        assert name in text


def test_memory_by_phase_and_the_history_of_allocations(place: Place) -> None:
    memory = both(place, TRAIN + LOOP, "--memory-snapshot").summary["memory"]
    snapshot = place.folder / "run" / memory["snapshot"]
    assert snapshot.stat().st_size > 1000
    assert b"main.py" in snapshot.read_bytes()
    assert memory["phases"]["forward"]["device"]["peak"] > 2048 * 2048 * 4 * 2
    assert "out_of_memory" not in memory


def test_memory_that_runs_out_in_the_first_step_has_its_history_and_says_what_held_it(
    place: Place,
) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    script = (
        TRAIN
        + f"kept = torch.zeros(1 << 28, device=device)\nmodel(torch.zeros(({total} // 2048), WIDTH, device=device))\n"
    )
    place.write(main=script)
    ended = place.voirkit("--memory-snapshot", "main.py")
    assert ended.code == 1
    out = ended.summary["memory"]["out_of_memory"]
    assert out["where"].startswith("main.py:")
    assert {one["where"] for one in out["held_by"]} & {
        f"main.py:{script.splitlines().index(line) + 1}" for line in script.splitlines()
    }
    assert max(one["bytes"] for one in out["held_by"]) >= 4 << 28
    assert (place.folder / "run" / ended.summary["memory"]["snapshot"]).exists()


# code that is compiled, captured, scaled


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="inductor needs triton")
@pytest.mark.parametrize("flags", [[], ["--checks", "--parameters", "--calls", "torch"]])
def test_compiled_code_is_as_it_is(place: Place, flags: list[str]) -> None:
    ended = both(place, TRAIN + "model = torch.compile(model)\n" + LOOP, *flags)
    assert ended.summary["steps"]["n"] == 40


CAPTURED = """
x, y = (part.to(device) for part in next(iter(loader)))
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(20):
    graph.replay()
print(loss.item().hex())
"""


def test_nothing_of_voirkits_becomes_a_part_of_a_captured_graph(place: Place) -> None:
    both(place, TRAIN + CAPTURED, "--checks", "--parameters", "--memory-snapshot")


SCALED = """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item().hex(), scaler.get_scale())
"""


def test_autocast_with_a_gradient_scaler(place: Place) -> None:
    ended = both(place, TRAIN + SCALED, "--checks", "--parameters")
    assert ended.summary["steps"]["n"] == 40
    assert [check["name"] for check in ended.summary["checks"] if check["found"]] == []


# checks and parameters


def test_checks_look_at_tensors_on_the_device(place: Place) -> None:
    ended = both(place, TRAIN + LOOP, "--checks")
    assert [check["name"] for check in ended.summary["checks"] if check["found"]] == []
    assert found(ended, "missing-zero-grad") is False


PLANTED = {
    "missing-zero-grad": (LOOP, "    optimizer.zero_grad()\n", ""),
    "not-finite": (LOOP, "model(x), y)", "model(x), y) * float('nan')"),
    "dead-units": ("with torch.no_grad(): model[0].bias.fill_(-1e4)\n" + LOOP, "", ""),
    "graph-kept": (
        "total = 0\n" + LOOP,
        "    optimizer.step()\n",
        "    optimizer.step()\n    total += loss\n",
    ),
    "loss-broadcast": (LOOP, "cross_entropy(model(x), y)", "mse_loss(model(x)[:, :1], y.float())"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_bug_is_found_on_the_device(place: Place, name: str) -> None:
    loop, old, new = PLANTED[name]
    assert (
        found(both(place, TRAIN + (loop.replace(old, new) if old else loop), "--checks"), name)
        is True
    )


def test_norms_of_parameters_are_those_that_the_program_computes(place: Place) -> None:
    script = (
        TRAIN + LOOP + "print(*(p.detach().double().norm().item() for p in model.parameters()))\n"
    )
    ended = both(place, script, "--parameters=5")
    expected = [float(word) for word in ended.out.splitlines()[-1].split()]
    layers = ended.summary["parameters"]["layers"]
    assert [layer["norm"]["last"] for layer in layers] == pytest.approx(expected, rel=1e-4)
    assert {layer["device"].partition(":")[0] for layer in layers} == {"cuda"}


FREED = """
kept = nn.Linear(WIDTH, WIDTH).to(device)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = nn.functional.cross_entropy(model(kept(x)), y)
    copy = kept.weight.detach().clone()
    kept.weight.untyped_storage().resize_(0)
    def unshard(grad, copy=copy):
        kept.weight.untyped_storage().resize_(copy.numel() * 4)
        kept.weight.data.copy_(copy)
    loss.register_hook(unshard)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex())
"""


def test_memory_that_is_freed_between_its_uses_is_not_read(place: Place) -> None:
    both(place, TRAIN + FREED, "--checks", "--parameters", "--calls", "torch")


# several processes

RANKS = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")  # NCCL refuses two ranks on one device
torch.manual_seed(0)
device = torch.device("cuda", 0)
model = nn.parallel.DistributedDataParallel(nn.Linear(256, 8).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 256), torch.randint(0, 8, (256,)))
loader = torch.utils.data.DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data))
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{loss.item():.6f}")
dist.destroy_process_group()
"""


def test_two_processes_on_one_device_are_two_ranks(place: Place) -> None:
    place.write(main=RANKS)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    plain = place.run(*launch, "main.py")
    ended = place.run(*launch, "-m", "voirkit", "--checks", "--run-dir", "run", "main.py")
    assert (plain.code, ended.code) == (0, 0), ended.err
    assert ended.out == plain.out
    summary = json.loads((place.folder / "run" / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert len(summary["ranks"]) == 2
    assert summary["steps"]["items"] == 256
    assert [check["name"] for check in summary["checks"] if check["found"]] == []


NCCL = """
import time, torch, torch.distributed as dist
from torch._C import _distributed_c10d
from voirkit_instruments.steps.record_collectives import FlightRecorder, flight_recorders

dist.init_process_group("nccl", init_method="file://" + __file__ + ".store", rank=0, world_size=1)
tensor = torch.ones(1 << 24, device="cuda")
for _ in range(20):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
time.sleep(2)  # torch looks every 100 ms what has ended
entries = []
for dump in flight_recorders(_distributed_c10d):
    try:
        entries += FlightRecorder(dump).read(over=True)[0]
    except TypeError:  # of another torch
        pass
print(len(entries), {entry["profiling_name"].rpartition(":")[2] for entry in entries}, all("duration_ms" in entry for entry in entries))
dist.destroy_process_group()
"""


def test_collectives_of_nccl_are_in_a_recorder_that_is_read_with_how_long_they_ran(
    place: Place,
) -> None:
    ended = place.write(main=NCCL).voirkit("--ranks=timing", "main.py")
    assert (ended.code, ended.out) == (0, "20 {'all_reduce'} True\n"), ended.err
