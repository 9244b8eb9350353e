"""Without a voirfile the steps instrument's events are given: loss, step and batch, loader, model, optimizer, use_cuda."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from phases import Kept
from small_overseer import SmallOverseer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from voirkit_instruments.rates.record import compute_rate, loading_rate, train_rate
from voirkit_instruments.steps.record import SeenLosses, Steps
from voirkit_instruments.steps.record_values import values_of
from voirkit_instruments.values import ScalarReader

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Place

DATA = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))


def trained(
    program: Callable[[Any], None], *instruments: Any, listened: bool = True
) -> SmallOverseer:
    """A program run with torch's functions watched, and what that gives."""
    losses = SeenLosses()

    def watch(ov: Any) -> Iterator[Any]:
        values_of(ov).start(torch, losses, listened)
        steps = Steps(ov, Kept())
        steps.start(torch)
        try:
            yield ov.phases.run_script
        finally:
            steps.end()
        ov.summary["loss"] = losses.summary()

    ov = SmallOverseer(*instruments, watch)
    _ = ov.given
    ov.summary["dropped"] = {}
    ov(program)
    assert ov.errors == []
    assert ov.warned == []
    return ov


class Training:
    """A model and its optimizer."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self, x: Any, y: Any, scale: float = 1.0) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        (loss * scale).backward()
        self.optimizer.step()
        return loss.item()


def test_a_loop_over_a_loader_gives_each_loss_and_each_step_with_its_batch(engine: None) -> None:
    losses = []
    t = Training()
    loader = DataLoader(DATA, 4)

    def program(ov: Any) -> None:
        losses.extend(t.step(x, y) for x, y in loader)

    ov = trained(program)
    assert ov.values("loss") == pytest.approx(losses)
    assert ov.values("step") == [0, 1, 2]
    assert [len(batch[0]) for batch in ov.values("batch")] == [4, 4, 4]
    assert (ov.values("loader"), ov.values("model"), ov.values("optimizer")) == (
        [loader],
        [t.model],
        [t.optimizer],
    )
    assert ov.values("use_cuda") == [False]
    assert ov.given.counts == {}


def test_a_loop_without_a_loader_steps_with_its_optimizer(engine: None) -> None:
    t = Training()
    ov = trained(lambda ov: [t.step(*DATA.tensors) for _ in range(3)] and None)
    assert [event["batch_size"] for event in ov.events if "step" in event] == [None] * 3


def test_evaluation_gives_no_step() -> None:
    t = Training()

    def program(ov: Any) -> None:
        for _ in range(2):
            for x, y in DataLoader(DATA, 4):
                t.step(x, y)
                with torch.no_grad():
                    for inp, _ in DataLoader(DATA, 6):
                        t.model(inp)

    assert trained(program).values("step") == list(range(6))


def test_accumulated_batches_are_a_step_each_and_zipped_loaders_one_a_turn() -> None:
    t = Training()

    def accumulate(ov: Any) -> None:
        for x, _ in DataLoader(DATA, 2):
            t.model(x).sum().backward()

    def zipped(ov: Any) -> None:
        for (x, y), _ in zip(DataLoader(DATA, 4), DataLoader(DATA, 4), strict=True):
            t.step(x, y)

    assert trained(accumulate).values("step") == list(range(6))
    assert trained(zipped).values("step") == [0, 1, 2]


def test_steps_beside_a_loop_that_was_left_are_steps_without_a_batch() -> None:
    t = Training()

    def program(ov: Any) -> None:
        for x, y in DataLoader(DATA, 4):
            t.step(x, y)
            break
        for _ in range(2):
            t.step(*DATA.tensors)

    ov = trained(program)
    assert ["batch" in event for event in ov.events if "step" in event] == [True, False, False]


def test_what_the_program_gives_itself_is_left_to_it() -> None:
    t = Training()

    def program(ov: Any) -> None:
        for n, (x, y) in enumerate(DataLoader(DATA, 4)):
            ov.give(loss=float(n))
            t.step(x, y)
            ov.give(step=n, batch=x)

    ov = trained(program)
    assert ov.values("loss") == [0.0, 1.0, 2.0]
    assert [type(batch) for batch in ov.values("batch")] == [torch.Tensor] * 3
    assert ov.given.counts == {"loss": 3, "step": 3, "batch": 3}


def test_with_nobody_to_listen_only_the_loss_is_looked_at() -> None:
    t = Training()
    ov = trained(lambda ov: [t.step(*DATA.tensors) for _ in range(3)] and None, listened=False)
    assert ov.events == []
    assert ov.summary["loss"]["n"] == 3


def test_a_listener_that_stops_the_run_stops_it_where_it_is(engine: None) -> None:
    t = Training()
    done = []

    def stop(ov: Any) -> None:
        ov.given.where("step").subscribe(lambda event: ov.stop() if event["step"] == 1 else None)

    def program(ov: Any) -> None:
        for x, y in DataLoader(DATA, 2):
            done.append(t.step(x, y))

    trained(program, stop)
    assert len(done) == 2


def test_neither_a_batch_nor_a_graph_is_kept() -> None:
    t = Training()
    kept = []

    def program(ov: Any) -> None:
        for x, _ in DataLoader(DATA, 6):
            loss = t.model(x).sum()
            loss.backward()
            kept.append((weakref.ref(x), weakref.ref(loss)))
        del x, _, loss

    trained(program).events.clear()
    gc.collect()
    assert [[reference() for reference in pair] for pair in kept] == [[None, None]] * 2


def test_rates_are_measured_without_probes() -> None:
    t = Training()

    def program(ov: Any) -> None:
        for x, y in DataLoader(DATA, 4):
            t.step(x, y)

    ov = trained(program, train_rate, loading_rate, compute_rate)
    assert {key for key, units in ((k, e["units"]) for e in ov.events if "units" in e for k in e) if key.endswith("_rate") and units == "items/s"} == {
        "train_rate", "loading_rate", "compute_rate",
    }  # fmt: skip
    assert ov.summary["rates"].keys() == {"train_rate", "loading_rate", "compute_rate"}


def test_without_known_items_the_rate_is_in_steps_and_in_no_summary() -> None:
    t = Training()
    ov = trained(lambda ov: [t.step(*DATA.tensors) for _ in range(3)] and None, train_rate)
    assert [event["units"] for event in ov.events if "train_rate" in event] == ["steps/s"]
    assert ov.summary["rates"] == {}


def test_a_scaled_loss_is_given_as_it_was_before() -> None:
    t = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []

    def program(ov: Any) -> None:
        for x, y in DataLoader(DATA, 4):
            loss = nn.functional.mse_loss(t.model(x), y)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(t.optimizer)
            scaler.update()

    assert trained(program).values("loss") == pytest.approx(losses)


# reading a loss


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_number_is_read_without_an_operator(dtype: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuses(TorchDispatchMode):
        def __torch_dispatch__(self, *_: Any) -> Any:
            raise AssertionError("an operator was called")

    loss = torch.tensor([0.0, 2.5], dtype=dtype, requires_grad=True)[1]
    read = ScalarReader(torch).read
    with Refuses():
        assert read(loss) == 2.5


def test_a_view_of_the_opposite_is_read_with_its_sign() -> None:
    loss = torch.tensor(1 + 2j).conj().imag
    assert loss.is_neg()
    assert ScalarReader(torch).read(loss) == -2.0


def test_what_holds_no_number_is_left_alone() -> None:
    read = ScalarReader(torch).read
    freed, part = torch.ones(1), torch.ones(4)[2]
    freed.untyped_storage().resize_(0)
    part.untyped_storage().resize_(0)
    assert [
        read(value)
        for value in (freed, part, torch.ones(2), torch.ones((), device="meta"), 3, None)
    ] == [None] * 6
    seen = []
    torch.vmap(lambda x: (seen.append(read(x)), x)[1])(torch.ones(1))
    assert seen == [None]


# the command line


TOP_LEVEL = """
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.ones(8, 4)
    for step in range(12):
        loss = model(x).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done")
"""


def test_the_loss_of_a_loop_at_the_top_level_is_in_the_summary_and_can_be_required(
    place: Place,
) -> None:
    place.write(main=TOP_LEVEL)
    ended = place.voirkit("--require", "loss<1e9", "--log", "loss", "--log", "los", "main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert ended.summary["loss"]["n"] == 12
    assert ended.summary["given"] == {}
    assert "log: nothing was given as 'los'." in ended.err
    assert "'loss'" not in ended.err


def test_an_option_that_finds_nothing_to_act_on_says_so(place: Place) -> None:
    place.write(main="print('done')")
    ended = place.voirkit(
        "--stop", "3", "--loading-rate", "--train-rate", "--display", "--options", "main.py"
    )
    assert (ended.code, ended.out) == (0, "done\n")
    nothing = "No step was given, and no training step of torch was seen."
    assert set(ended.summary["warnings"]) == {
        f"--stop 3 stopped nothing: no rate was given. {nothing}",
        f"--loading-rate: nothing could be measured. {nothing}",
        f"--train-rate: nothing could be measured. {nothing}",
        "--display: the run gave no values to show.",
        "--options: the script has parsed no arguments with argparse.",
    }


def test_without_steps_values_are_given_to_who_listens_and_to_nobody_else(place: Place) -> None:
    place.write(main=TOP_LEVEL)
    listened = place.voirkit("--no-steps", "--log", "loss", "main.py")
    assert (listened.summary["loss"]["n"], listened.summary["warnings"]) == (12, [])
    assert place.voirkit("--force", "--no-steps", "main.py").summary["loss"] is None
