"""``--verify``: what arrived, from which probe, how often; what to add for what is missing; and the exit code."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
import torch
from small_overseer import SmallOverseer

from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.suggestions import Candidates
from voirkit_instruments.verify.record import probes_of, report, verify

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from conftest import Place


# where a reading comes from


class Probe:
    def __init__(self, *selectors: str, events: int = 1) -> None:
        self.selectors, self.made_at, self.site, self.events = (
            selectors,
            "voirfile.py:3",
            "main.py:4",
            events,
        )


@pytest.mark.parametrize(
    ("reading", "selector", "captures"),
    [
        ("loss", "//train_epoch > loss", True),
        ("loss", "//train_epoch > los as loss", True),
        ("loss", "//train_epoch > loss as l", False),
        ("loss", "//loss > x", False),
        ("loss", "//f > my_loss", False),
        ("loader", "//main > train_loader as loader", True),
        ("loader", "//main() as loader", True),
        ("step+batch", "//f(inp as batch) > #endloop_inp as step", True),
        ("step+batch", "//f(inp as batch) > x", False),
        (
            "compute_start/end",
            "//f(x as batch, !#loop_x as compute_start, !!#endloop_x as compute_end)",
            True,
        ),
    ],
)
def test_a_reading_comes_from_the_probe_that_captures_its_name(
    reading: str, selector: str, captures: bool
) -> None:
    assert bool(probes_of(reading, [Probe(selector)])) is captures


# what a script offers

SCRIPT = """
    import torch

    class Helper:
        def backward_pass(self): ...

    def train_epoch(model, loader, criterion, optimizer, device):
        for i, (inp, target) in enumerate(loader):
            out = model(inp)
            los = criterion(out, target)
            los.backward()
            optimizer.step()

    def main():
        args = parse()
        device = torch.device("cpu")
        net = torch.nn.Linear(2, 2)
        train_loader = make()
        train_epoch(net, train_loader, None, None, device)
"""


def candidates(source: str) -> Candidates:
    return Candidates(catalogue(dedent(source), "main.py"))


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        ("loss", 'ov.probe("//train_epoch > los as loss").give()'),
        ("step+batch", 'ov.probe("//train_epoch(inp as batch) > #endloop_inp as step").give()'),
        (
            "compute_start/end",
            'ov.probe("//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)").give()',
        ),
        ("model", 'ov.probe("//main > net as model").give()'),
        ("loader", 'ov.probe("//main > train_loader as loader").give()'),
    ],
)
def test_a_training_loop_offers_its_readings(reading: str, line: str) -> None:
    assert candidates(SCRIPT).line(reading) == line


def test_a_device_is_turned_into_use_cuda() -> None:
    line = candidates(SCRIPT).line("use_cuda") or ""
    assert line.startswith('ov.probe("//main > device")["device"].map(')
    assert '"use_cuda": "cuda" in str(device)' in line


def test_use_cuda_is_preferred_to_a_device() -> None:
    source = "def main():\n    use_cuda = False\n    device = 'cpu'\n"
    assert candidates(source).line("use_cuda") == 'ov.probe("//main > use_cuda").give()'


def test_the_loop_around_a_step_function_is_found() -> None:
    found = candidates("""
        class Trainer:
            def step(self, batch):
                loss = self.model(batch)
                self.scaler.scale(loss).backward()

            def fit(self, loader):
                for epoch in range(3):
                    for batch in loader:
                        self.step(batch)
    """)
    assert found.line("loss") == 'ov.probe("//Trainer/step > loss").give()'
    assert (
        found.line("step+batch")
        == 'ov.probe("//Trainer/fit(batch) > #endloop_batch as step").give()'
    )


def test_a_training_loop_at_the_top_level_offers_its_readings() -> None:
    found = candidates("x = 1\nfor x in [1]: x.backward()\n")
    assert found.line("loss") == 'ov.probe("//<module> > x as loss").give()'
    assert (
        found.line("step+batch") == 'ov.probe("//<module>(x as batch) > #endloop_x as step").give()'
    )
    assert [found.line(reading) for reading in ("use_cuda", "model")] == [None] * 2


@pytest.mark.parametrize(
    "source", ["", "x = 1\nfor x in [1]: print(x)\n", "def f():\n    return 1\n"]
)
def test_a_script_that_trains_nothing_offers_nothing(source: str) -> None:
    found = candidates(source)
    assert [found.line(reading) for reading in ("loss", "step+batch", "use_cuda", "model")] == [
        None
    ] * 4


# the report


def train(ov: SmallOverseer) -> None:
    ov.give(use_cuda=False)
    for n in range(8):
        ov.give(loss=torch.tensor(8.0 - n))
        ov.give(step=n, batch=[1, 2])


def test_what_arrived_is_summarised() -> None:
    ov = SmallOverseer(verify)
    ov.probes.append(Probe("//train_epoch > loss", events=8))
    ov(train)
    result = ov.summary["verify"]
    assert ov.errors == []
    assert result["passed"] is True
    assert result["missing"] == ["options", "model", "loader", "compute_start/end"]
    assert result["readings"]["loss"] == {
        "events": 8,
        "probes": [{"selector": "//train_epoch > loss", "where": "voirfile.py:3", "events": 8}],
        "recorded": False,
    }
    assert result["loss"] == {"n": 8, "first": 7.5, "last": 1.5, "decreases": True}
    assert result["rates"]["train_rate"] > 0
    assert result["rates"]["loading_rate"] is None
    assert ov.failed == []


def give_as_recorder(ov: SmallOverseer, **values: object) -> None:
    ov.offer({**values, "$recorder": True}, yielding=True)


def test_what_the_recorder_gave_before_the_program_did_is_not_counted_with_it() -> None:
    def program(ov: SmallOverseer) -> None:
        give_as_recorder(ov, loss=torch.tensor(100.0))
        give_as_recorder(ov, step=0, batch=[1, 2])
        train(ov)

    ov = SmallOverseer(verify)
    ov(program)
    result = ov.summary["verify"]
    assert {name: reading["events"] for name, reading in result["readings"].items() if reading["events"]} == {
        "loss": 8, "step+batch": 8, "use_cuda": 1,
    }  # fmt: skip
    assert result["loss"] == {"n": 8, "first": 7.5, "last": 1.5, "decreases": True}
    assert not any(reading["recorded"] for reading in result["readings"].values())


def test_what_only_the_recorder_gave_is_said_to_come_from_it() -> None:
    ov = SmallOverseer(verify)
    ov(lambda ov: [give_as_recorder(ov, loss=torch.tensor(2.0 - n)) for n in range(2)])
    assert ov.summary["verify"]["readings"]["loss"] == {"events": 2, "probes": [], "recorded": True}
    assert ov.summary["verify"]["loss"]["n"] == 2


@pytest.mark.parametrize("lacking", ["loss", "step", "batch", "use_cuda"])
def test_each_essential_reading_is_needed(lacking: str) -> None:
    ov = SmallOverseer(verify)

    def program(ov: SmallOverseer) -> None:
        for _ in range(2):
            for event in ({"loss": 1.0}, {"step": 1, "batch": [1]}, {"use_cuda": False}):
                ov.give(**{key: value for key, value in event.items() if key != lacking})

    ov(program)
    assert len(ov.failed) == 1
    assert lacking in ov.failed[0]
    assert ov.summary["verify"]["passed"] is False


def test_it_reports_after_an_early_stop() -> None:
    def program(ov: SmallOverseer) -> None:
        train(ov)
        ov.stop()

    ov = SmallOverseer(verify)
    ov(program)
    assert ov.summary["verify"]["passed"] is True
    assert len(ov.said) == 1


def test_a_loss_that_does_not_fall_or_is_not_finite_is_told() -> None:
    for losses, words in (
        ([1.0, 2.0], "no  1 -> 2"),
        ([1.0, float("nan")], "no  it is not finite"),
    ):
        ov = SmallOverseer(verify)
        ov(lambda ov, losses=losses: [ov.give(loss=loss) for loss in losses])
        assert words in ov.said[0]


def test_on_a_terminal_the_table_has_the_same_rows() -> None:
    ov = SmallOverseer(verify)
    ov(train)
    drawn = report(ov.summary["verify"], "", terminal=True)
    assert "\x1b[" in drawn
    assert all(
        name in drawn
        for name in ("step+batch", "use_cuda", "loss decreases", "train_rate", "missing")
    )


# the command line

MAIN = """
    import argparse
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train_epoch(model, loader, optimizer):
        for inp, target in loader:
            loss = torch.nn.functional.mse_loss(model(inp), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=2)
        args = parser.parse_args()
        use_cuda = torch.cuda.is_available()
        torch.manual_seed(0)
        x = torch.randn(40, 4)
        train_loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(args.epochs):
            train_epoch(model, train_loader, optimizer)
        print("done")

    if __name__ == "__main__":
        main()
"""
PROBES = {
    "loss": 'ov.probe("//train_epoch > loss").give()',
    "step": 'ov.probe("//train_epoch(inp as batch) > #endloop_inp as step").give()',
    "use_cuda": 'ov.probe("//main > use_cuda").give()',
    "model": 'ov.probe("//main > model").give()',
    "loader": 'ov.probe("//main > train_loader as loader").give()',
    "compute": 'ov.probe("//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)").give()',
}


def voirfile(*lacking: str) -> str:
    lines = ["def instrument_probes(ov):", "    yield ov.phases.init"]
    return "\n".join(
        [*lines, *(f"    {line}" for name, line in PROBES.items() if name not in lacking)]
    )


def test_a_run_with_all_readings_passes(place: Place) -> None:
    place.write({"voirfile.py": voirfile()}, main=MAIN)
    ended = place.voirkit("--verify", "--options", "main.py", "--epochs", "3")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "All readings are there." in ended.err
    result = ended.summary["verify"]
    assert {name: reading["events"] for name, reading in result["readings"].items()} == {
        "loss": 15,
        "step+batch": 15,
        "use_cuda": 1,
        "options": 1,
        "model": 1,
        "loader": 1,
        "compute_start/end": 15,
    }
    assert result["loss"]["decreases"] is True
    known = result["without_probes"]
    assert {name: known.pop(name) for name in result["rates"]} == result["rates"]
    assert result["rates"]["train_rate"] < result["rates"]["compute_rate"]
    assert "Known without a probe: train_rate, loading_rate, compute_rate," in ended.err
    assert known == {
        "step+batch": 15, "loader": 15, "compute_start/end": 15, "model": "Linear", "use_cuda": False, "loss": 15, "options": None,
    }  # fmt: skip
    assert (
        "step+batch 15x, loader 15x, compute_start/end 15x, model Linear, use_cuda False, loss 15x."
        in ended.err
    )
    assert "Only a probe tells: options." in ended.err
    assert ended.summary["options"] == {"epochs": 3}
    assert set(ended.summary["rates"]) == {"train_rate", "loading_rate", "compute_rate"}
    assert ended.summary["warnings"] == []


def test_a_missing_reading_fails_the_run_and_the_line_to_add_mends_it(place: Place) -> None:
    unseen = "if loss is None:\n                loss.backward()\n            torch.autograd.grad(loss, list(model.parameters()))"
    main = MAIN.replace("loss.backward()", unseen)  # the recorder sees no loss either
    place.write({"voirfile.py": voirfile("loss")}, main=main)
    ended = place.voirkit("--verify", "main.py")
    assert (ended.code, ended.out) == (3, "done\n")
    assert PROBES["loss"] in ended.err
    place.write({"voirfile.py": f"{voirfile('loss')}\n    {PROBES['loss']}"})
    assert place.voirkit("--verify", "--force", "main.py").code == 0


def test_without_a_voirfile_the_recorder_gives_what_is_needed(place: Place) -> None:
    place.write(main=MAIN)
    ended = place.voirkit("--verify", "--options", "main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    result = ended.summary["verify"]
    assert result["missing"] == []
    assert {name: reading["events"] for name, reading in result["readings"].items()} == {
        "loss": 10, "step+batch": 10, "use_cuda": 1, "options": 1, "model": 1, "loader": 1, "compute_start/end": 10,
    }  # fmt: skip
    assert all(result["rates"].values())
    assert ended.summary["given"] == {}


def test_a_script_that_fails_keeps_its_exit_code_and_is_still_reported(place: Place) -> None:
    place.write(main="def main():\n    raise SystemExit(7)\nmain()\n")
    ended = place.voirkit("--verify", "main.py")
    assert ended.code == 7
    assert "missing" in ended.err
    assert "Without a probe nothing is known" in ended.err
    assert set(ended.summary["verify"]["without_probes"].values()) == {None}
