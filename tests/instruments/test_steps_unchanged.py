"""A program that uses torch cannot tell that the steps instrument is on: same results, warnings, tracebacks, objects, and the same compiled graphs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from columns import read

from tests.instruments.unchanged import (
    ALONE,
    COMPILED,
    NET,
    ONLY_IN_C,
    TOGETHER,
    environment,
    parts,
    run,
    write,
)

pytestmark = pytest.mark.long

pytest.importorskip("torch")

# Records as a run does, for as long as the program runs.
VOIRFILE = """
    from voirkit.trace import recorder

    def instrument_record(ov):
        yield ov.phases.parse_args
        if not recorder.is_recording():
            recorder.begin("recorded")
        yield ov.phases.finalize
        recorder.end()
"""


def under_voirkit(folder: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run ``main.py`` while it is recorded."""
    (folder / "voirfile.py").write_text(dedent(VOIRFILE))
    ended = run(
        folder,
        sys.executable,
        "-m",
        "voirkit",
        "--quiet",
        "--run-dir",
        "run",
        "--force",
        "main.py",
        env=env,
    )
    assert list((folder / "recorded" / "trace").glob("*.names")), ended[2]
    return ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("programs"), TOGETHER)


@pytest.fixture(scope="module")
def under_python(folder: Path) -> dict[str, str]:
    return parts(run(folder, sys.executable, "main.py", env=environment("Python")), TOGETHER)


@pytest.fixture(scope="module", params=["C", "Python"])
def seen(request: pytest.FixtureRequest, folder: Path) -> tuple[str, dict[str, str]]:
    return request.param, parts(under_voirkit(folder, environment(request.param)), TOGETHER)


@pytest.mark.parametrize("name", TOGETHER)
def test_does_the_same(
    under_python: dict[str, str], seen: tuple[str, dict[str, str]], name: str
) -> None:
    engine, said = seen
    if (
        engine == "Python"
        and name in ONLY_IN_C
        and (name != "an error of a copy" or sys.version_info < (3, 11))
    ):
        pytest.skip("without the extension a line of voirkit is named")
    assert said[name] == under_python[name]


def test_all_of_torch_that_is_watched_was_watched(
    seen: tuple[str, dict[str, str]], folder: Path
) -> None:
    patches = json.loads((folder / "run" / "summary.json").read_text())["patches"]
    assert [patch for patch in patches if patch["why_not"]] == []
    recorded = read(str(folder / "recorded"))
    names = {
        f"{recorded.names[code].category}.{recorded.names[code].name}"
        for code in recorded["name"].tolist()
    }
    assert names >= {
        "dataloader.iter", "dataloader.fetch", "dataloader.end", "device.transfer", "compute.forward", "compute.loss", "compute.backward",
        "compute.step", "compute.zero_grad", "checkpoint.restart",
    }  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_does_the_same_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "main.py").write_text(dedent(NET) + dedent(ALONE[name]))
    theirs = run(tmp_path, sys.executable, "main.py", env=environment("Python"))
    assert under_voirkit(tmp_path, environment("Python")) == theirs


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["C", "Python"])
def test_torch_compile_makes_the_same_graphs_with_the_same_breaks(
    tmp_path: Path, engine: str
) -> None:
    env = {**environment(engine), "PYTHONWARNINGS": "ignore"}
    (tmp_path / "main.py").write_text(dedent(NET) + dedent(COMPILED))
    theirs = run(tmp_path, sys.executable, "main.py", env=env)
    ours = under_voirkit(tmp_path, env)
    assert (theirs[0], ours[0]) == (0, 0), ours[2]
    python, voirkit = (json.loads(told[1]) for told in (theirs, ours))
    for name, (found, counted) in python.items():
        assert (name, *voirkit[name]) == (name, found, counted)
    unable: list[Any] = [name for name, (found, _) in python.items() if isinstance(found, str)]
    assert len(unable) < 4, unable
