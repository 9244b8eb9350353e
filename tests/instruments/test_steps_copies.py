"""What the steps instrument records of copies, checkpoints and collectives."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from conftest import Place
from phases import Kept, net
from torch import nn

pytestmark = pytest.mark.usefixtures("engine")


# copies


def test_a_copy_is_told_with_its_bytes_and_what_is_none_is_not(kept: Kept) -> None:
    x = torch.zeros(3, 4)
    x.to("cpu")
    x.cpu()
    x.to(torch.float32)
    assert kept.kinds() == []
    x.to(torch.float64)
    x.to("cpu", copy=True)
    nn.Parameter(x).to(torch.float16)
    assert [(s["from"], s["to"], s["bytes"]) for s in kept.seen("device.transfer")] == [
        ("cpu", "cpu", n) for n in (96, 48, 24)
    ]


def test_inside_of_a_module_only_another_device_is_a_copy(kept: Kept) -> None:
    class Converts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float64)

    Converts()(torch.zeros(2))
    assert kept.kinds() == ["compute.forward"]


def test_a_tensor_without_data_is_no_copy(kept: Kept) -> None:
    torch.zeros(3).to("meta")
    net().to("meta")
    net().to(torch.float64)
    assert kept.kinds() == []


# checkpoints and collectives


def test_checkpoints_are_told_with_their_bytes(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(net().state_dict(), file)
    torch.load(file)
    size = file.stat().st_size
    assert [*kept.seen("checkpoint.capture"), *kept.seen("checkpoint.restart")] == [
        {"bytes": size}
    ] * 2
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt")
    assert kept.seen("checkpoint.restart")[-1] == {"bytes": -1}


def test_collectives_are_told_with_their_bytes(kept: Kept, tmp_path: Path) -> None:
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        dist.all_reduce(torch.zeros(8))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    assert kept.seen("comm.all_reduce") == [{"bytes": 32}]
    assert kept.kinds() == ["comm.all_reduce", "comm.barrier"]


def test_buffers_that_ddp_takes_from_the_first_rank_are_communication(
    kept: Kept, tmp_path: Path
) -> None:
    # The other ranks wait there for the first one: as forward it would make them look slow.
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))(torch.ones(2, 4))
    finally:
        dist.destroy_process_group()
    assert kept.seen("comm.broadcast_buffers") == [
        {"bytes": 40}
    ]  # mean, variance, number of batches
    assert kept.kinds()[-2:] == ["comm.broadcast_buffers", "compute.forward"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
@pytest.mark.parametrize(
    "tensor",
    ["torch.randn(1500, 1500)", "torch.nn.Parameter(torch.randn(1500, 1500))"],
    ids=["tensor", "parameter"],
)
def test_what_a_signal_handler_raises_while_a_copy_is_made_reaches_the_program(
    place: Place, engine: str, tensor: str
) -> None:
    place.write(
        main=f"""
        import signal, torch
        torch.set_num_threads(1)
        x = {tensor}
        fired = reached = 0

        def handler(*_):
            global fired
            fired += 1
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, handler)
        with torch.no_grad():
            for _ in range(20):
                before = fired
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.001)
                    x.to(torch.float64)
                    while fired == before:
                        pass
                except KeyboardInterrupt:
                    reached += 1
        print(fired, reached)
        """
    )
    ended = place.voirkit(
        "--quiet", "main.py", env={"VOIRKIT_NO_EXTENSION": "0" if engine == "C" else "1"}
    )
    assert (ended.out, ended.err) == ("20 20\n", "")
