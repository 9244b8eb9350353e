"""TensorBoard, MLflow and W&B read back what was written while a run went on, and a script's own records are as they are without voirkit."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place
from live_training import TRAINING

pytestmark = [
    pytest.mark.trackers,
    pytest.mark.filterwarnings("ignore"),
]  # of the libraries that read back

HEAD = (
    TRAINING
    + """
from voirkit import give

training = Training(length=100_000)
training.begin()

def train_until(is_seen):
    limit = time.monotonic() + 100
    while not is_seen() and time.monotonic() < limit:
        training.step()
        give(loss=0.5)
        time.sleep(0.01)
"""
)
FEW = "seen = iter(range(20))\ntrain_until(lambda: next(seen) == 19)\nprint('trained')\n"
SHARES = {
    "wait": 0.5,
    "transfer": 0.05,
    "forward": 0.1,
    "backward": 0.2,
    "optimizer": 0.1,
    "communication": 0.0,
    "other": 0.05,
}


def figures_are_right(figures: dict[str, float]) -> None:
    """Those of the planted training: 4 items in a step of 10 ms."""
    assert {phase: figures[f"voirkit/share/{phase}"] for phase in SHARES} == pytest.approx(
        SHARES, abs=0.001
    )
    assert figures["voirkit/train_rate"] == pytest.approx(400, rel=0.01)
    assert figures["voirkit/loading_rate"] == pytest.approx(800, rel=0.01)
    assert figures["voirkit/step_time_s"] == pytest.approx(0.01, rel=0.01)
    assert 5e6 < figures["voirkit/memory_bytes"] < 5e9


def run_figures_are_right(figures: dict[str, float], summary: dict[str, Any]) -> None:
    """Those of the whole run are the summary's."""
    assert figures["voirkit/run/steps"] == summary["steps"]["n"]
    assert figures["voirkit/run/train_rate"] == pytest.approx(
        summary["rates"]["train_rate"]["value"], rel=1e-6
    )
    assert figures["voirkit/run/share/wait"] == pytest.approx(
        summary["steps"]["phases"]["wait"]["share"], rel=1e-6
    )
    assert figures["voirkit/run/duration_s"] == pytest.approx(summary["duration_s"], rel=1e-6)
    assert figures["voirkit/run/loss"] == 0.5
    assert figures["voirkit/run/exit_code"] == summary["exit_code"]


# TensorBoard

UNTIL_THERE = (
    HEAD
    + "import glob\ntrain_until(lambda: any(b'voirkit/' in open(one, 'rb').read() for one in glob.glob('WHAT')))\n"
)


def events(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The scalars, by tag their (step, value), and the last of each text."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    scalars = {
        tag: [(one.step, one.value) for one in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
    return scalars, {
        tag: found.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in found.Tags()["tensors"]
    }


def test_tensorboard_shows_figures_by_steps_and_what_the_run_came_to(place: Place) -> None:
    place.write(
        main=UNTIL_THERE.replace("WHAT", "run/tensorboard/*tfevents*").replace(
            "voirkit/", "voirkit/loss"
        )
        + "raise SystemExit(4)\n"
    )
    ended = place.voirkit("--tensorboard", "main.py")
    assert ended.code == 4, ended.err
    scalars, texts = events(place.folder / "run/tensorboard")
    step = scalars["voirkit/train_rate"][0][0]
    assert 0 < step < ended.summary["steps"]["n"]
    assert scalars["voirkit/share/wait"][0][0] == step
    figures_are_right({tag: values[0][1] for tag, values in scalars.items()})
    run_figures_are_right({tag: values[-1][1] for tag, values in scalars.items()}, ended.summary)
    assert scalars["voirkit/loss"][-1][1] == 0.5
    assert texts["voirkit/verdict"] == ended.summary["verdict"]["kind"]
    assert texts["voirkit/because"].startswith(ended.summary["verdict"]["because"])
    assert texts["voirkit/run_directory"] == str(place.folder / "run")
    assert texts["voirkit/state"] == "ended, exit code 4"
    assert texts["voirkit/report"].startswith("# `main.py`")


def test_a_folder_that_is_named_gets_one_for_each_run(place: Place) -> None:
    place.write(main=UNTIL_THERE.replace("WHAT", "boards/run/*tfevents*"))
    assert place.voirkit("--tensorboard=boards", "main.py").code == 0
    assert "voirkit/run/train_rate" in events(place.folder / "boards" / "run")[0]
    assert not (place.folder / "run" / "tensorboard").exists()


def test_a_run_that_is_killed_has_its_figures(place: Place) -> None:
    place.write(
        main=UNTIL_THERE.replace("WHAT", "run/tensorboard/*tfevents*").replace(
            "voirkit/", "voirkit/loss"
        )
        + "print('seen', flush=True)\ninput()\n"
    )
    command = [sys.executable, "-m", "voirkit", "--tensorboard", "--run-dir", "run", "main.py"]
    with subprocess.Popen(
        command, cwd=place.folder, env=CLEAN, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"seen\n"
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 100
    while (
        "voirkit/state" not in (texts := events(place.folder / "run/tensorboard")[1])
        and time.monotonic() < until
    ):
        time.sleep(0.1)
    assert texts["voirkit/state"] == "was killed: it did not end by itself"


# MLflow

MLFLOW = """
import mlflow
client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    for step in (10, 20, 30):
        mlflow.log_metric("accuracy", step / 100, step=step)
    train_until(lambda: "voirkit/loss" in client.get_run(run.info.run_id).data.metrics)
    mlflow.log_metric("accuracy", 1.0)
"""


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database, which takes seconds to make."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def mlflow_runs(folder: Path) -> list[Any]:
    from mlflow import MlflowClient

    return list(MlflowClient(f"sqlite:///{folder}/mlflow.db").search_runs(["0"]))


def histories(
    folder: Path, run: Any, names: Callable[[str], bool]
) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    return {
        name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
        if names(name)
    }


def test_mlflow_has_the_figures_in_the_scripts_own_run(place: Place, empty_database: Path) -> None:
    shutil.copy(empty_database, place.folder)
    place.write(main=HEAD + MLFLOW)
    ended = place.voirkit("--mlflow", "main.py")
    assert ended.code == 0, ended.err
    (run,) = mlflow_runs(place.folder)
    assert histories(place.folder, run, lambda name: not name.startswith("voirkit/")) == {
        "accuracy": [(10, 0.1), (20, 0.2), (30, 0.3), (0, 1.0)]
    }
    own = histories(place.folder, run, lambda name: name.startswith("voirkit/"))
    step = own["voirkit/train_rate"][0][0]
    assert 0 < step < ended.summary["steps"]["n"]
    figures_are_right({name: values[0][1] for name, values in own.items()})
    run_figures_are_right({name: values[-1][1] for name, values in own.items()}, ended.summary)
    assert run.info.status == "FINISHED"
    assert run.data.tags["voirkit.verdict"] == ended.summary["verdict"]["kind"]
    assert run.data.tags["voirkit.because"].startswith(ended.summary["verdict"]["because"])
    assert run.data.tags["voirkit.run_directory"] == str(place.folder / "run")
    assert "mlflow.note.content" not in run.data.tags


def test_a_script_that_knows_nothing_of_mlflow_gets_a_run_of_voirkits(
    place: Place, empty_database: Path
) -> None:
    shutil.copy(empty_database, place.folder)
    place.write(main=HEAD + FEW)
    ended = place.voirkit("--mlflow", "main.py")
    assert ended.code == 0, ended.err
    assert "mlflow" not in ended.err
    (run,) = mlflow_runs(place.folder)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    run_figures_are_right(run.data.metrics, ended.summary)
    assert run.data.tags["mlflow.note.content"].startswith("# `main.py`")


def test_a_server_that_does_not_answer_costs_the_program_nothing(place: Place) -> None:
    place.write(main=HEAD + FEW)
    env = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    ended = place.voirkit("--mlflow", "main.py", env=env)
    assert (ended.code, ended.out) == (0, "trained\n")
    assert "voirkit: mlflow: not all was written (" in ended.err


# W&B

WANDB = """
import wandb
run = wandb.init(project="theirs", mode="offline", settings=wandb.Settings(silent=True))
for step in range(0, 30, 10):
    wandb.log({"accuracy": step / 100}, **({"step": step} if EXPLICIT else {}))
train_until(lambda: not voirkit or "voirkit/verdict" in run.summary.keys())
for step in range(30, 60, 10):
    wandb.log({"accuracy": step / 100}, **({"step": step} if EXPLICIT else {}))
print(run.step)
if FINISHES:
    run.finish()
"""


def records(path: Path) -> Iterator[Any]:
    """The records of a W&B file: LevelDB's log format behind 7 bytes; since 0.20 the package has no reader of its own in Python."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def wandb_file(folder: Path) -> Path:
    (found,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    history = [
        one.history.item
        for one in records(wandb_file(folder))
        if one.WhichOneof("record_type") == "history"
    ]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for items in history
    ]


def of_summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in records(wandb_file(folder)):
        if one.WhichOneof("record_type") == "summary":
            found |= {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in one.summary.update
            }
    return found


def their_rows(folder: Path) -> list[tuple[int, float]]:
    return [(row["_step"], row["accuracy"]) for row in rows(folder) if "accuracy" in row]


@pytest.mark.parametrize(
    ("explicit", "finishes"),
    [(True, False), (False, True)],
    ids=["steps are given, left to python's end", "steps are counted, finished"],
)
def test_wandb_has_the_figures_in_the_scripts_own_run(
    explicit: bool, finishes: bool, place: Place
) -> None:
    script = HEAD + WANDB.replace("EXPLICIT", str(explicit)).replace("FINISHES", str(finishes))
    place.write(
        {
            "plain/main.py": script.replace("not voirkit or", "True or"),
            "main.py": script.replace("not voirkit or", ""),
        }
    )
    plain = place.python("main.py", cwd="plain")
    ended = place.voirkit("--wandb", "main.py")
    assert (ended.code, ended.out) == (0, plain.out), ended.err
    assert their_rows(place.folder) == their_rows(place.folder / "plain")
    own = [row for row in rows(place.folder) if "voirkit/train_rate" in row]
    figures_are_right(own[0])
    last = of_summary(place.folder)
    assert last["voirkit/run_directory"] == str(place.folder / "run")
    if not finishes:  # else it takes nothing more when the summary is there
        run_figures_are_right(last, ended.summary)
        assert last["voirkit/verdict"] == ended.summary["verdict"]["kind"]
        assert last["voirkit/state"] == "ended, exit code 0"
    metrics = [
        one.metric
        for one in records(wandb_file(place.folder))
        if one.WhichOneof("record_type") == "metric"
    ]
    assert [(one.glob_name, one.step_metric) for one in metrics] == [("voirkit/*", "voirkit/step")]


def test_a_script_that_knows_nothing_of_wandb_gets_a_run_of_voirkits(place: Place) -> None:
    place.write(main=UNTIL_THERE.replace("WHAT", "wandb/offline-run-*/*.wandb"))
    ended = place.voirkit("--wandb", "main.py", env={"WANDB_MODE": "offline"})
    assert ended.code == 0, ended.err
    assert "wandb" not in ended.err
    figures_are_right(rows(place.folder)[0])
    run_figures_are_right(of_summary(place.folder), ended.summary)


def test_who_is_not_logged_in_is_warned_and_the_program_goes_on(place: Place) -> None:
    place.write(main=HEAD + FEW)
    ended = place.voirkit(
        "--wandb", "main.py", env={"HOME": str(place.folder), "WANDB_API_KEY": ""}
    )
    assert (ended.code, ended.out) == (0, "trained\n")
    assert "voirkit: wandb: not all was written (" in ended.err
