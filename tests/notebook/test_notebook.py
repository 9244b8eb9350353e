"""``%%voirkit`` in a real kernel: a cell that trains, one that fails, and the page of its report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = [
    pytest.mark.long,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
]  # of jupyter's libraries

DEFINITIONS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))

def train(epochs, workers=2):
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=8, num_workers=workers):
            loss = torch.nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()
"""
PATCHED = "[f.__code__ for f in (torch.Tensor.backward, torch.nn.Module.__call__, torch.optim.SGD.step, DataLoader.__iter__, DataLoader.__init__)]"
RECORDED = """
def recorded():
    with voirkit.open_run(voirkit.notebook.last.path) as run:
        return sum(map(len, run.rows()))
"""
CHECKED = "import json, voirkit.notebook\nprint(json.dumps(voirkit.notebook.last.summary))"


@pytest.fixture(autouse=True)
def _a_kernel_as_a_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this variable a kernel does not show what other processes print."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


def executed(folder: Path, *cells: str) -> list[Any]:
    """The outputs of each cell."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in ("%load_ext voirkit", *cells)]
    nbclient.NotebookClient(
        notebook, timeout=250, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell.outputs for cell in notebook.cells[1:]]


def texts(outputs: Any) -> str:
    return "".join(one.text for one in outputs if one.output_type == "stream")


def shown(outputs: Any) -> dict[str, str]:
    """The report below a cell."""
    (found,) = (
        one.data for one in outputs if one.output_type == "display_data" and "text/html" in one.data
    )
    return dict(found)


def failures(outputs: Any) -> list[Any]:
    return [one for one in outputs if one.output_type == "error"]


def test_cells_run_in_the_kernel_one_after_the_other(tmp_path: Path) -> None:
    _, first, summary, second, again, then = executed(
        tmp_path,
        DEFINITIONS + f"before = {PATCHED}",
        "%%voirkit --loader\nmade = [train(2)]\nprint('trained')\nlen(made)",
        CHECKED,
        "%%voirkit\nmade.append(train(1))",
        CHECKED,
        f"{RECORDED}\nearlier = recorded()\nmade.append(train(1))\nprint(before == {PATCHED}, len(made), earlier == recorded() > 0)",
    )
    assert [failures(one) for one in (first, second, then)] == [[], [], []]
    assert texts(first) == "trained\n"
    assert [one.data["text/plain"] for one in first if one.output_type == "execute_result"] == ["1"]
    of_first, of_second = json.loads(texts(summary)), json.loads(texts(again))
    assert (of_first["steps"]["n"], of_first["steps"]["items"], of_first["loader"]["workers"]) == (
        16,
        128,
        2,
    )
    assert (of_second["steps"]["n"], of_second["loss"]["n"]) == (8, 8)
    assert (of_first["ended"], of_first["warnings"], of_second["warnings"]) == ("normal", [], [])
    assert (
        texts(then) == "True 3 True\n"
    )  # torch is as it was, and what was run afterwards is not in the record
    report = shown(first)
    assert "Input pipeline" in report["text/plain"]
    assert "\x1b" not in report["text/plain"]
    assert report["text/markdown"].startswith("# `cell-3`")
    assert "Input pipeline</h2>" in report["text/html"]


def test_lines_of_cells_have_the_cell_s_number(tmp_path: Path) -> None:
    planted = DEFINITIONS.replace("optimizer.zero_grad()", "pass")
    _, ran, checked = executed(
        tmp_path, planted, "%%voirkit --checks\ntrain(2, workers=0)", CHECKED
    )
    assert failures(ran) == []
    summary = texts(checked)
    assert '"where": "cell-2:14"' in summary  # the optimizer's step
    assert "ipykernel_" not in summary
    for form in ("text/plain", "text/html"):
        assert re.findall(r"\d{6,}\.py", shown(ran)[form]) == []


def test_a_subcommand_is_named_as_one(tmp_path: Path) -> None:
    (refused,) = executed(tmp_path, "%voirkit report")
    assert "report is a subcommand" in texts(refused)
    assert "!voirkit report" in texts(refused)


def test_an_exception_is_shown_from_the_cell_on_and_the_report_all_the_same(tmp_path: Path) -> None:
    _, failed, after = executed(
        tmp_path, DEFINITIONS, "%%voirkit\ntrain(1, workers=0)\n1 / 0", CHECKED
    )
    (error,) = failures(failed)
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert "2 1 / 0" in trace
    assert "voirkit" not in trace
    assert "steps" in shown(failed)["text/plain"]
    summary = json.loads(texts(after))
    assert (summary["ended"], summary["exit_code"], summary["steps"]["n"]) == ("exception", 1, 8)


def test_a_script_and_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import sys\nprint(sys.argv[1:])\n")
    script, option, missing, nested, asked, checked, quiet, kept, quiet_script = executed(
        tmp_path,
        "%voirkit --run-dir 'a run' main.py 'two words'",
        "%%voirkit --no-such-option\nprint('never')",
        "%voirkit nothing.py",
        "%%voirkit\nget_ipython().run_cell_magic('voirkit', '', '1')",
        "%%voirkit --help\n1 / 0",
        "%%voirkit --require 'duration<0.1ms' --html --run-dir checked\n1",
        "%%voirkit --quiet\n2",
        "import voirkit.notebook\nvoirkit.notebook.last.exit_code",
        "%voirkit --run-dir again --quiet main.py --quiet",
    )
    assert "['two words']\n" in texts(script)
    assert (tmp_path / "a run" / "summary.json").exists()
    assert "main.py" in shown(script)["text/plain"]
    assert "wall time" not in texts(script)  # the report is shown once
    assert "unknown option '--no-such-option'" in texts(option)
    assert "never" not in texts(option)
    assert "there is no script 'nothing.py'" in texts(missing)
    assert "a cell is being run under voirkit already" in texts(nested)
    assert "--loader" in texts(asked)
    assert failures(asked) == []
    assert "check failed: duration" in texts(checked)
    assert (tmp_path / "checked" / "report.html").exists()
    assert [one.output_type for one in quiet] == ["execute_result"]
    assert kept[0].data["text/plain"] == "0"
    assert [one.output_type for one in quiet_script] == ["stream"]
