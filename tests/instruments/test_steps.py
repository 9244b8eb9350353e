"""What the steps instrument records of a training loop: which phases, with which arguments, inside of what."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from phases import Kept, Watched, watched
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from voirkit_instruments.steps_loaders import batches

STEP = ["dataloader.fetch", "compute.forward", "compute.backward", "compute.step", "compute.zero_grad"]


@pytest.fixture(params=["C", "Python"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is called before and after functions of torch, in C where it was built, and in Python."""
    if request.param == "C":
        pytest.importorskip("voirkit_instruments._steps")
    monkeypatch.setenv("VOIRKIT_NO_EXTENSION", "0" if request.param == "C" else "1")
    return str(request.param)


@pytest.fixture
def kept(engine: str) -> Iterator[Kept]:
    with watched() as watch:
        yield watch.kept


def points(n: int) -> TensorDataset:
    return TensorDataset(torch.randn(n, 4), torch.randint(0, 3, (n,)))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))


def train(model: nn.Module, loader: Any, optimizer: Any, every: int = 1) -> None:
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()


# a plain loop


def test_a_training_loop_is_its_phases_in_order(kept: Kept) -> None:
    model = net()
    train(model, DataLoader(points(6), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    assert kept.kinds() == ["dataloader.iter", *STEP * 3, "dataloader.end"]


def test_phases_end_before_the_next_begins(kept: Kept) -> None:
    model = net()
    train(model, DataLoader(points(6), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    moments = [moment for _, begin, end, _, _ in kept.spans for moment in (begin, end)]
    assert moments == sorted(moments)


def test_gradients_of_several_batches_for_one_step(kept: Kept) -> None:
    model = net()
    train(model, DataLoader(points(8), batch_size=2), torch.optim.SGD(model.parameters(), 0.1), every=2)
    assert (kept.kinds().count("dataloader.fetch"), kept.kinds().count("compute.step")) == (4, 2)


def test_evaluation_is_told_by_the_module_and_by_what_gradients_are(kept: Kept) -> None:
    model, x = net(), torch.randn(2, 4)
    model(x)
    model.eval()
    model(x)
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    told = [(seen["training"], seen["grad"]) for seen in kept.seen("compute.forward")]
    assert told == [(True, True), (False, True), (False, False), (False, False)]


def test_an_evaluation_inside_of_an_epoch_has_its_own_loader(kept: Kept) -> None:
    model, held_out = net(), DataLoader(points(2), batch_size=1)
    for x, _ in DataLoader(points(2), batch_size=1):
        model(x)
        for z, _ in held_out:
            model(z)
    told = [(seen["loader"], seen["episode"]) for seen in kept.seen("dataloader.fetch")]
    assert told == [(0, 0), (1, 1), (1, 1), (0, 0), (1, 2), (1, 2)]


def test_a_loss_called_by_itself_is_told_from_a_model(kept: Kept) -> None:
    nn.MSELoss()(net()(torch.randn(2, 4)), torch.zeros(2, 3))
    assert kept.kinds() == ["compute.forward", "compute.loss"]
    assert kept.seen("compute.loss") == [{"module": "MSELoss"}]


def test_a_module_call_left_by_an_exception_is_recorded(kept: Kept) -> None:
    model = net()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 5))
    assert kept.kinds() == ["compute.forward"] * 2


# loaders


def test_a_loader_tells_what_it_is(kept: Kept) -> None:
    list(DataLoader(points(7), batch_size=3))
    assert kept.seen("dataloader.iter") == [
        {
            "loader": 0, "episode": 0, "workers": 0, "batch_size": 3, "length": 3, "dataset": "TensorDataset", "pin_memory": False,
        }
    ]  # fmt: skip
    assert [seen["items"] for seen in kept.seen("dataloader.fetch")] == [3, 3, 1]


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 1  # wrong, and torch says so to who has asked for it

    def __iter__(self) -> Iterator[int]:
        yield from range(5)


def test_an_iterable_dataset_has_no_length_and_is_not_asked(kept: Kept) -> None:
    assert list(DataLoader(Stream(), batch_size=2))  # warnings are errors
    assert kept.seen("dataloader.iter")[0]["length"] is None


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_record_nothing_of_their_own(kept: Kept, workers: int) -> None:
    model = net()
    train(model, DataLoader(Transformed(), batch_size=2, num_workers=workers), torch.optim.SGD(model.parameters(), 0.1))
    assert kept.kinds() == ["dataloader.iter", *STEP * 3, "dataloader.end"]


class Transformed(Dataset[Any]):
    """Its transform is a module, moves tensors, loads a file and has gradients: all of it is loading."""

    def __init__(self) -> None:
        self.transform = net()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        x = torch.zeros(4).to(torch.float64).to(torch.float32)
        self.transform(x).sum().backward()
        self.transform.zero_grad()
        return x, 0


def test_inside_of_a_request_nothing_else_is_recorded(kept: Kept) -> None:
    list(DataLoader(Transformed(), batch_size=2))
    assert set(kept.kinds()) == {"dataloader.iter", "dataloader.fetch", "dataloader.end"}


def test_persistent_workers_have_an_episode_each_epoch(kept: Kept) -> None:
    loader = DataLoader(points(4), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        list(loader)
    assert [(seen["loader"], seen["episode"]) for seen in kept.seen("dataloader.fetch")] == [(0, 0)] * 2 + [(0, 1)] * 2


def test_requests_by_hand_and_by_zip(kept: Kept) -> None:
    iterator = iter(DataLoader(points(2), batch_size=1))
    next(iterator)
    assert next(iter([]), None) is next(iter(DataLoader([], batch_size=1)), None)
    for _ in zip(iterator, DataLoader(points(5), batch_size=1), strict=False):
        pass
    assert [seen["loader"] for seen in kept.seen("dataloader.fetch")] == [0, 0, 2]
    assert [seen["loader"] for seen in kept.seen("dataloader.end")] == [1, 0]


def test_a_request_that_fails_has_no_items_and_the_error(kept: Kept) -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> int:
            if i == 2:
                raise KeyError("no such picture")
            return i

    try:
        raise OSError("handled while batches are asked for")
    except OSError:
        with pytest.raises(KeyError):
            list(DataLoader(Broken(), batch_size=2))
    place = {"loader": 0, "episode": 0}
    assert kept.seen("dataloader.fetch") == [{**place, "items": 2}, {**place, "error": "KeyError", "items": -1}]


def test_an_iterator_that_can_not_be_made_is_told(kept: Kept) -> None:
    class Sampler(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise ValueError("no order")

    with pytest.raises(ValueError, match="no order"):
        list(DataLoader(points(2), sampler=Sampler([0, 1]), batch_size=None))
    assert kept.seen("dataloader.iter")[0]["error"] == "ValueError"


def test_a_loader_in_another_thread(kept: Kept) -> None:
    from voirkit_instruments import steps_plain

    thread = threading.Thread(target=lambda: list(DataLoader(points(4), batch_size=2)))
    thread.start()
    net()(torch.randn(1, 4))
    thread.join()
    assert kept.kinds().count("dataloader.fetch") == 2
    assert steps_plain.now() > kept.times("dataloader.end")[0][1]


LENGTHS: dict[str, tuple[Callable[[], Any], int | None]] = {
    "a dataset of torch": (lambda: DataLoader(points(7), batch_size=2, shuffle=True), 4),
    "a part of one": (lambda: DataLoader(Subset(points(7), [1, 2, 3]), batch_size=2, drop_last=True), 1),
    "a list": (lambda: DataLoader([1, 2, 3], batch_size=2), 2),
    "no batches": (lambda: DataLoader([1, 2, 3], batch_size=None), 3),
    "a dataset whose length looks": (lambda: DataLoader(Looks(), batch_size=2), 3),
    "a dataset whose length does something": (lambda: DataLoader(Counts()), None),
    "a sampler whose length does something": (lambda: DataLoader(points(4), sampler=Counts()), None),
}  # fmt: skip


class Looks(Dataset[int]):
    n = 5

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


class Counts(Dataset[int]):
    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize("name", LENGTHS)
def test_the_length_is_known_where_no_code_of_the_program_runs_for_it(name: str) -> None:
    make, length = LENGTHS[name]
    assert batches(make()) == length


# backward


def test_backward_in_each_of_its_forms_is_one_phase(kept: Kept) -> None:
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    torch.autograd.backward((w * w).sum())
    torch.autograd.grad((w * w).sum(), w)
    assert kept.kinds() == ["compute.backward"] * 3


def test_a_gradient_penalty_inside_of_a_module_is_backward_in_forward(kept: Kept) -> None:
    class Penalty(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone().requires_grad_()
            return torch.autograd.grad((x * x).sum(), x, create_graph=True)[0]

    Penalty()(torch.ones(2))
    assert kept.kinds() == ["compute.backward", "compute.forward"]
    (inner,), (outer,) = kept.times("compute.backward"), kept.times("compute.forward")
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_backward(kept: Kept, reentrant: bool) -> None:
    model = net()
    checkpoint(model, torch.randn(2, 4, requires_grad=True), use_reentrant=reentrant).sum().backward()
    assert kept.kinds() == ["compute.forward", "compute.backward"]


# optimizers


def test_the_step_of_the_class_above_is_no_second_one(kept: Kept) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    w = torch.ones(2, requires_grad=True)
    w.grad = torch.ones(2)
    torch.optim.SGD([w], 0.1).step()
    Own([w], 0.1).step()
    assert kept.seen("compute.step") == [{"optimizer": "SGD", "which": 0}, {"optimizer": "Own", "which": 1}]


def test_a_closure_is_forward_and_backward_inside_of_the_step(kept: Kept) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    once = ["compute.zero_grad", "compute.forward", "compute.backward"]
    assert kept.kinds()[:3] == once
    assert kept.kinds()[-1] == "compute.step"
    assert set(kept.kinds()[:-1]) == set(once)


def test_two_optimizers_are_told_apart(kept: Kept) -> None:
    first, second = (torch.optim.Adam(net().parameters()) for _ in range(2))
    for optimizer in (first, second, first):
        optimizer.step()
    assert [seen["which"] for seen in kept.seen("compute.step")] == [0, 1, 0]


def test_a_step_that_raises_is_recorded(kept: Kept) -> None:
    class Broken(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no")

    optimizer = Broken([torch.ones(1, requires_grad=True)], {})
    for _ in range(2):
        with pytest.raises(RuntimeError):
            optimizer.step()
    assert kept.kinds() == ["compute.step"] * 2


def test_an_optimizer_that_was_there_before() -> None:
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.RMSprop([w])
    with watched() as watch:
        optimizer.step()
    assert watch.kept.kinds() == ["compute.step"]


def test_a_step_that_a_scheduler_or_a_scaler_calls(kept: Kept) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.randn(2, 4)).sum().backward()
    scaler = torch.amp.GradScaler("cpu", enabled=False) if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler(enabled=False)
    scaler.step(optimizer)
    scheduler.step()
    assert kept.kinds().count("compute.step") == 1


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
    assert [(s["from"], s["to"], s["bytes"]) for s in kept.seen("device.transfer")] == [("cpu", "cpu", n) for n in (96, 48, 24)]


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
    assert [*kept.seen("checkpoint.capture"), *kept.seen("checkpoint.restart")] == [{"bytes": size}] * 2
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


# processes


def told_by_child(child: Callable[[], list[str]]) -> list[str]:
    """What a forked child finds."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, " ".join(child()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text.split()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_records_only_if_it_trains(kept: Kept) -> None:
    x = torch.randn(2, 4)

    def prepares() -> list[str]:
        net()(x)
        list(DataLoader(points(2)))
        return kept.kinds()

    def trains() -> list[str]:
        model = net()
        train(model, DataLoader(points(1)), torch.optim.SGD(model.parameters(), 0.1))
        return kept.kinds()

    assert told_by_child(prepares) == []
    assert told_by_child(trains) == ["dataloader.iter", *STEP, "dataloader.end"]


# patches


def test_torch_is_as_it_was_when_the_run_is_over() -> None:
    functions = (nn.Module.__call__, torch.autograd.backward, torch.save, DataLoader.__iter__, torch.optim.Optimizer.zero_grad.__wrapped__)
    before = [function.__code__ for function in functions]
    names = set(vars(torch.Tensor))
    with watched() as watch:
        torch.optim.Adam(net().parameters()).step()
        during = [function.__code__ for function in functions]
    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [function.__code__ for function in functions] == before
    assert set(vars(torch.Tensor)) == names
    assert set(watch.patches.values()) == {None}
    assert "torch.optim.adam.Adam.step" in watch.patches


def test_a_second_run_in_the_process_records_as_the_first() -> None:
    for _ in range(2):
        with watched() as watch:
            net()(torch.randn(1, 4))
        assert watch.kept.kinds() == ["compute.forward"]


def test_a_patch_that_does_not_fit_is_off_and_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "zero_grad", len)
    monkeypatch.delattr(torch.autograd, "grad")
    watch = Watched()
    watch.steps.begin(torch)
    net()(torch.randn(1, 4))
    watch.steps.end()
    assert watch.kept.kinds() == ["compute.forward"]
    assert [line.split(" is not watched")[0] for line in watch.overseer.warned] == [
        "steps: torch.nn.modules.module.Module.zero_grad", "steps: torch.autograd.grad",
    ]  # fmt: skip
    assert watch.patches["torch.autograd.grad"] == "is not there"


def test_a_record_that_fails_is_told_once_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    watch = Watched()
    monkeypatch.setattr(watch.kept, "arguments", broken)
    watch.steps.begin(torch)
    model, loader = net(), DataLoader(points(4), batch_size=1)
    assert len([model(x) for x, _ in loader]) == 4
    watch.steps.end()
    assert len(watch.overseer.warned) == 3
    assert all("disk full" in line for line in watch.overseer.warned)
