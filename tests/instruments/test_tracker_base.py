"""What the trackers share: figures and their names, a library that is missing, and the script's own runs."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import Place

from voirkit.errors import CommandLineError
from voirkit.live import Number, Picture
from voirkit_instruments.mlflow_writer.write import ActiveRun
from voirkit_instruments.steps.record import LossesOfRun
from voirkit_instruments.tensorboard_writer import folder
from voirkit_instruments.trackers import check_installed, figures_of, texts_of
from voirkit_instruments.wandb_writer.write import ScriptsRun


def test_figures_have_names_of_their_own_and_what_is_not_known_has_none() -> None:
    phases = {"wait": {"share": 0.25}, "forward": {"share": 0.75}}
    picture = Picture(
        steps={"phases": phases, "time_s": {"median": 0.5}}, rates=[Number("train_rate", 8.0, "items/s", ())],
        devices=[Number("gpu0 load", 0.5, "share", ()), Number("memory.allocated", 7.0, "bytes", ())],
    )  # fmt: skip
    assert figures_of(picture, {"loss": 0.0}) == {
        "voirkit/train_rate": 8.0, "voirkit/share/wait": 0.25, "voirkit/share/forward": 0.75, "voirkit/step_time_s": 0.5, "voirkit/loss": 0.0,
        "voirkit/machine/gpu0_load": 0.5, "voirkit/machine/memory/allocated": 7.0,
    }  # fmt: skip
    without_loader = Picture(steps={"phases": phases, "wait_known": False})
    assert figures_of(without_loader) == {"voirkit/share/forward": 0.75}
    assert figures_of(Picture()) == {}


def test_the_verdict_comes_with_its_reason_and_what_to_do() -> None:
    verdict = {"kind": "input-bound", "because": "It waits.", "next": "Do something."}
    assert texts_of(Picture(verdict=verdict), "/runs/1") == {
        "voirkit/run_directory": "/runs/1",
        "voirkit/verdict": "input-bound",
        "voirkit/because": "It waits. Do something.",
    }


def test_a_library_is_looked_for_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder_of_runs").mkdir()
    (tmp_path / "library" / "below").mkdir(parents=True)
    (tmp_path / "library" / "below" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_installed("library.below", "--library")
    with pytest.raises(CommandLineError, match=r"pip install 'voirkit\[library\]'"):
        check_installed("library.other", "--library")
    with pytest.raises(CommandLineError, match="folder_of_runs, which is not installed"):
        check_installed("folder_of_runs", "--runs")


def test_a_folder_for_tensorboard_is_refused_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    writable = ["", str(tmp_path), str(tmp_path / "new" / "below")]
    assert [folder(text) for text in writable] == writable
    for name in ("file", "file/below", "link"):
        with pytest.raises(ValueError, match="is no folder"):
            folder(str(tmp_path / name))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match="you cannot write in"):
        folder(str(tmp_path / "new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]  # nothing is made


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_missing_library_ends_the_run_before_the_script_starts(
    library: str, place: Place
) -> None:
    if find_spec(library) is not None:
        pytest.skip(f"{library} is installed here")
    place.write(main="print('hello')")
    (place.folder / library).mkdir()  # where the library itself keeps runs
    ended = place.voirkit(f"--{library}", "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert f"voirkit: --{library}: it needs {library}, which is not installed." in ended.err


def test_the_last_loss_is_a_given_one_where_there_are_such() -> None:
    losses = LossesOfRun()
    assert losses.latest() is None
    losses.seen.add(2.0)
    assert losses.latest() == 2.0
    losses.given.add(1)
    losses.seen.add(3.0)
    assert losses.latest() == 1.0


# the script's own runs


def test_mlflows_run_is_found_in_whichever_thread_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SimpleNamespace(info=SimpleNamespace(run_id="a"))
    stacks: dict[int, list[Any]] = {}
    fluent, mlflow = ModuleType("mlflow.tracking.fluent"), ModuleType("mlflow")
    fluent._active_run_stack = SimpleNamespace(get_all_thread_values=lambda: stacks)  # type: ignore[attr-defined]
    mlflow.get_tracking_uri = lambda: "sqlite:///x"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    active = ActiveRun()
    assert active.state() == {"run": None}
    monkeypatch.setitem(sys.modules, "mlflow.tracking.fluent", fluent)
    assert active.state() == {"run": None}
    stacks[threading.get_ident() + 1] = [run]
    assert active.state() == {"run": {"id": "a", "uri": "sqlite:///x"}}
    stacks.clear()  # it has ended, and is still where the last figures go
    assert active.state() == {"run": {"id": "a", "uri": "sqlite:///x"}}


class WandbRun:
    """A run that notes what is done to it."""

    def __init__(self, id: str) -> None:
        self.id, self.logged, self.summary, self.metrics = (
            id,
            list[tuple[dict[str, Any], bool]](),
            dict[str, str](),
            list[str](),
        )

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append(f"{name} by {step_metric}")

    def log(self, row: dict[str, Any], commit: bool) -> None:
        self.logged.append((row, commit))


def test_nothing_is_committed_to_wandb_and_a_new_run_gets_all_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wandb = ModuleType("wandb")
    wandb.Error, wandb.run = Exception, None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    script = ScriptsRun()
    assert script.state() == {"has_run": False}
    wandb.run = first = WandbRun("1")  # type: ignore[attr-defined]
    assert script.state() == {"has_run": True}
    script.receive(
        {"step": 3, "figures": {"voirkit/loss": 1.0}, "texts": {"voirkit/verdict": "balanced"}}
    )
    script.receive({"step": 4, "figures": {}, "texts": {}})
    assert first.logged == [
        ({"voirkit/step": 3, "voirkit/loss": 1.0}, False),
        ({"voirkit/step": 4}, False),
    ]
    assert (first.summary, first.metrics) == (
        {"voirkit/verdict": "balanced"},
        ["voirkit/* by voirkit/step"],
    )
    wandb.run = None  # type: ignore[attr-defined]  # it has been finished
    script.receive({"step": 5, "figures": {}, "texts": {"voirkit/because": "It is."}})
    wandb.run = second = WandbRun("2")  # type: ignore[attr-defined]
    script.receive({"step": 6, "figures": {}, "texts": {}})
    assert second.summary == {"voirkit/verdict": "balanced", "voirkit/because": "It is."}
    assert script.state() == {"has_run": True}
