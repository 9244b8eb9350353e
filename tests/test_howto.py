"""The how-to guides, the page for those who come from another tool, and examples of features: their commands do what the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CLEAN, Place
from pages import DOCS, blocks, check

ROOT = DOCS.parent
WITH_AN_EXAMPLE = ("checks.md", "distributed.md", "pipeline.md", "watch.md")
PAGES = sorted(
    [
        *(
            page
            for folder in ("howto", "coming-from", "explanation")
            for page in (DOCS / folder).glob("*.md")
        ),
        *(DOCS / name for name in WITH_AN_EXAMPLE),
    ]
)
IN_AN_ENVIRONMENT_OF_THEIR_OWN = {
    "frameworks.md",
    "notebooks.md",
    "trackers.md",
}  # tests/frameworks, and tests of these subjects


def named(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=f"{page.parent.name}/{page.stem}") for page in pages]


def followed() -> list[Any]:
    """The pages with commands to run; those whose scripts import torch take seconds."""
    found = []
    for page in PAGES:
        text = page.read_text()
        if page.name not in IN_AN_ENVIRONMENT_OF_THEIR_OWN and any(
            block.is_run for block in blocks(text)
        ):
            marks = [pytest.mark.long, pytest.mark.torch] if "import torch\n" in text else []
            found.append(pytest.param(page, id=f"{page.parent.name}/{page.stem}", marks=marks))
    return found


@pytest.mark.parametrize("page", followed())
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path)


def test_the_selectors_that_the_probe_page_lists_have_events(place: Place) -> None:
    text = (DOCS / "howto" / "probe.md").read_text()
    selectors = [
        found
        for found in re.findall(r"^\| [^|]+ \| `(//[^`]+)` \|", text, re.MULTILINE)
        if "<module>" not in found
    ]
    assert len(selectors) == 5
    script = next(block.text for block in blocks(text) if block.file == "train.py")
    lines = "".join(f"    ov.probe({selector!r}).give()\n" for selector in selectors)
    place.write(train=script, voirfile=f"def instrument_all(ov):\n{lines}")
    ended = place.voirkit("train.py")
    assert ended.code == 0, ended.err
    assert [bool(probe["events"]) for probe in ended.summary["probes"]] == [True] * len(selectors)


def test_the_plug_in_page_quotes_the_example() -> None:
    page = (DOCS / "howto" / "instrument.md").read_text()
    quoted = [block for block in blocks(page) if str(block.file).startswith("examples/plugin/")]
    assert len(quoted) == 5
    for block in quoted:
        assert block.text.partition("\n")[2] in (ROOT / str(block.file)).read_text(), block.text


# the workflow of GitHub Actions

GATED = """import torch.utils.data
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(400, 4), torch.ones(400, 1))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


def workflow() -> dict[str, Any]:
    found = [
        block
        for block in blocks((DOCS / "howto" / "ci.md").read_text())
        if block.language == "yaml"
    ]
    assert len(found) == 1
    loaded: dict[str, Any] = yaml.safe_load(found[0].text)
    return loaded


def test_the_workflow_has_what_github_asks_for() -> None:
    document = workflow()
    assert set(document) == {
        "name",
        True,
        "permissions",
        "jobs",
    }  # a YAML 1.1 reader takes "on" for true; GitHub's does not
    steps = document["jobs"]["training"]["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert [step["uses"] for step in steps if "uses" in step] == [
        "actions/checkout@v4",
        "actions/setup-python@v5",
        "actions/upload-artifact@v4",
    ]
    assert all("name" in step for step in steps if "run" in step)


@pytest.mark.long
@pytest.mark.torch
def test_the_shell_lines_of_the_workflow_post_the_report_and_the_comparison(tmp_path: Path) -> None:
    workspace, summary = tmp_path / "workspace", tmp_path / "summary.md"
    Place(tmp_path).write({"workspace/train.py": GATED, "workspace/.gitignore": "runs\n"})
    git = "git -c user.name=a -c user.email=a@example.org"
    made = f"git init -q . && git add . && {git} commit -qm base && git update-ref refs/remotes/origin/main HEAD && {git} commit -qm new --allow-empty"
    subprocess.run(["bash", "-c", made], cwd=workspace, check=True, capture_output=True)
    env = {
        **CLEAN, "PATH": f"{Path(sys.executable).parent}:{CLEAN['PATH']}", "OMP_NUM_THREADS": "1",
        "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_BASE_REF": "main", "GITHUB_WORKSPACE": str(workspace),
    }  # fmt: skip
    steps = [
        step
        for step in workflow()["jobs"]["training"]["steps"]
        if "run" in step and step["name"] != "Install"
    ]
    for step in steps:
        # Equal scripts on a machine with other work may differ by more than the gate allows: 3 says so, and is no fault of the workflow.
        command = ["bash", "-e", "-c", step["run"]]  # as GitHub's runner calls it
        ended = subprocess.run(
            command,
            cwd=workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert ended.returncode in ((0, 3) if step["name"] == "Compare" else (0,)), ended.stderr
    assert sorted(path.name for path in (workspace / "runs").iterdir()) == [
        f"{side}-{n}" for side in ("base", "new") for n in (1, 2, 3)
    ]
    written = summary.read_text()
    for text in ("# `train.py`", "| forward |", "# Comparison", "**step time**", "95%"):
        assert text in written, text


# what the pages name


@cache
def options_of(command: str) -> set[str]:
    """The options that a subcommand has, ``""``: voirkit itself."""
    words = [sys.executable, "-m", "voirkit", *filter(None, [command]), "--help"]
    shown = subprocess.run(words, env=CLEAN, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown))


SUBCOMMANDS = ("init", "probes", "watch", "report", "compare", "export", "syscalls")


@pytest.mark.parametrize("page", named(PAGES))
def test_a_page_names_options_that_there_are(page: Path) -> None:
    text = page.read_text()
    python = "\n".join(block.text for block in blocks(text) if block.language == "python")
    own = {
        *re.findall(r'"(--[\w-]+)"', python),
        *(f"--{field}" for field in re.findall(r"^    (\w+): \w+ = ", python, re.MULTILINE)),
        "-m",
    }
    commands = [
        *re.findall(r"`([^`\n]+)`", text),
        *(command for block in blocks(text) for command in block.commands),
    ]
    for command in commands:
        for found in re.finditer(r"(?:^|[\s(])voirkit ((?:[^;|&)]|\|(?! ))*)", command):
            words = found[1].split()
            subcommand = words[0] if words and words[0] in SUBCOMMANDS else ""
            for word in words[bool(subcommand) :]:
                if (
                    not subcommand
                    and not word.startswith("-")
                    and (word.endswith((".py", ".sh")) or word == "…")
                ):
                    break  # the rest is the script's
                if word.startswith("-") and len(word) > 1:
                    assert word.partition("=")[0] in options_of(subcommand) | own, (
                        f"{word} in {command!r}"
                    )
