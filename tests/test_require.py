"""``--require``: a run that does not fulfil a condition ends with 3 and says the figure."""

import json
import sys

import pytest
from conftest import Place

pytestmark = pytest.mark.long

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.zeros(40, 4), torch.zeros(40, 1)), batch_size=4):
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
"""


@pytest.mark.torch
def test_a_condition_that_holds_changes_nothing(place: Place) -> None:
    place.write(main=SCRIPT)
    assert place.voirkit("--require", "steps==10", "--require", "train_rate>0", "main.py").code == 0


@pytest.mark.torch
def test_a_condition_that_does_not_hold_is_exit_code_3_with_the_figure(place: Place) -> None:
    place.write(main=SCRIPT)
    ended = place.voirkit("--require", "steps>=11", "main.py")
    assert ended.code == 3
    assert "check failed: steps>=11: it is 10" in ended.err
    assert json.loads((place.folder / "run" / "summary.json").read_text())["exit_code"] == 3


def test_a_figure_that_the_run_does_not_have_is_a_failure(place: Place) -> None:
    place.write(main="print('hello')")
    ended = place.voirkit("--require", "train_rate>=1", "main.py")
    assert (ended.code, ended.out) == (3, "hello\n")
    assert "this run has no rates.train_rate.value" in ended.err


def test_what_is_no_condition_is_refused_before_the_script_starts(place: Place) -> None:
    place.write(main="print('hello')")
    ended = place.voirkit("--require", "trian_rate>=1", "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "Did you mean 'train_rate'" in ended.err


def test_a_figure_that_a_voirfile_puts_into_the_summary_is_one(place: Place) -> None:
    place.write(
        main="print('hello')",
        voirfile="def instrument_figure(ov):\n    yield ov.phases.run_script\n    ov.summary['lowest'] = 0.25\n",
    )
    ended = place.voirkit("--require", "lowest<1", "main.py")
    assert ended.code == 0
    assert (
        "voirkit: note: --require 'lowest<1' holds only if a voirfile adds 'lowest' to the summary."
        in ended.err
    )
    ended = place.voirkit("--force", "--require", "lowset<1", "main.py")
    assert ended.code == 3
    assert (
        "check failed: lowset<1: this run has no lowset. Did you mean 'lowest' or 'loss'?"
        in ended.err
    )


def test_a_quiet_run_says_why_its_exit_code_is_3(place: Place) -> None:
    place.write(main="print('ran')\n")
    ended = place.voirkit("--quiet", "--require", "duration<0.1ms", "main.py")
    assert (ended.code, ended.out) == (3, "ran\n")
    assert ended.err.startswith("voirkit: check failed: duration<0.1ms: it is ")
    assert ended.err.count("\n") == 1


def test_the_script_s_own_failure_wins(place: Place) -> None:
    place.write(main="import sys; sys.exit(4)")
    assert place.voirkit("--require", "train_rate>=1", "main.py").code == 4


def test_units_and_any_figure_and_only_the_first_rank_checks(place: Place) -> None:
    place.write(main="print('hello')")
    conditions = (
        "--require",
        "memory.peak<1TB",
        "--require",
        "duration<1h",
        "--require",
        "duration>=10min",
        "--require",
        "memory.paek>1",
    )
    first = place.voirkit(*conditions, "main.py", env={"RANK": "0", "WORLD_SIZE": "2"})
    assert first.code == 3
    assert "check failed: duration>=10min: it is " in first.err
    assert (
        "check failed: memory.paek>1: this run has no memory.paek. Did you mean 'peak'" in first.err
    )
    assert first.err.count("check failed") == 2
    second = place.run(
        sys.executable,
        "-m",
        "voirkit",
        "--run-dir",
        "other",
        *conditions,
        "main.py",
        env={"RANK": "1", "WORLD_SIZE": "2"},
    )
    assert (second.code, second.err) == (0, "")


RANKS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.zeros(40, 4), torch.zeros(40, 1)), batch_size=4):
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("bound", "holds"), [(10, True), (11, False)])
def test_under_torchrun_the_conditions_are_of_all_ranks_and_told_once(
    place: Place, bound: int, holds: bool
) -> None:
    place.write(main=RANKS)
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
    ended = place.python(
        *launch,
        "--require",
        f"ranks.1.steps>={bound}",
        "--require",
        "steps.items==80",
        "main.py",
        timeout=280,
    )
    assert place.folder.joinpath("run", "summary.json").exists()
    if holds:
        assert (ended.code, "check failed" in ended.err) == (0, False)
    else:
        assert ended.code != 0
        assert ended.err.count("check failed: ranks.1.steps>=11: it is 10") == 1
        assert (
            "exitcode  : 3" in ended.err
        )  # torchrun's own word for it, and its own exit code is 1
