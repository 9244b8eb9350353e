"""The corpus under ``--checks``: every planted bug is found, where it is; nothing is found in healthy scripts; no check denies what it cannot
know; all print what they print without.

Scripts run in forks of one process that has torch already (``together.py``): the cost of a script is two seconds instead of eight. A few
are run each time, all of them in ``make test-slow``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN
from corpus import HEALTHY, PLANTED, UNCLEAR, Script

pytestmark = pytest.mark.long

pytest.importorskip("torch")

# One for each check, and the healthy ones that come nearest to a bug.
QUICK = {
    "all_frozen", "always_skipped", "classes_in_order", "detached_features", "drawn_by_count", "epoch_not_set", "evaluates_in_train_mode", "forgotten_decoder",
    "last_samples_never_seen", "loss_made_anew", "model_made_anew", "no_distributed_sampler", "not_wrapped", "trains_in_children",
    "own_generator_in_workers", "rate_stays_nought", "root_of_nought", "scheduler_first", "softmax_in_forward", "stays_in_eval",
    "stream_without_split", "zero_grad_before_step", "zero_grad_in_first_epoch_alone",
    "functional_call", "one_step", "one_step_without_gradients", "stream_of_one_reader",
    "accumulation", "decaying_gradients", "distributed", "dropout_for_uncertainty", "forecasting", "frozen_backbone_all_parameters", "gan", "held_out_by_count", "numpy_augmentation",
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What came of a script: the exit codes of its ranks, and what they said."""

    codes: list[int]
    out: list[str]
    err: list[str]
    checks: list[dict[str, Any]]


Run = Callable[..., Ran]
Watched = Callable[[Script], Ran]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a script of the corpus, under voirkit with the given options, or by python alone without any."""
    command = [sys.executable, str(Path(__file__).parent / "together.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        command, env={**CLEAN, "OMP_NUM_THREADS": "1"}, start_new_session=True, **pipes
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(script: Script, *options: str) -> Ran:
        folder = tmp_path_factory.mktemp(script.name)
        words = ["--quiet", "--run-dir", str(folder / "run"), *options] if options else []
        asked = {
            "words": [*words, str(script.path)],
            "voirkit": bool(options),
            "ranks": script.ranks,
            "cwd": str(folder),
        }
        print(
            json.dumps({**asked, "out": str(folder / "out"), "err": str(folder / "err")}),
            file=process.stdin,
            flush=True,
        )
        codes = json.loads(process.stdout.readline())
        said = [
            [(folder / f"{name}{rank}").read_text() for rank in range(script.ranks)]
            for name in ("out", "err")
        ]
        summary = folder / "run" / "summary.json"
        return Ran(
            codes,
            said[0],
            said[1],
            json.loads(summary.read_text())["checks"] if summary.exists() else [],
        )

    yield ask
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a script that hangs, and those that wait for it
        process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def watched(run: Run) -> Watched:
    """A script under ``--checks``, run once for all that is asked of it."""
    return cache(lambda script: run(script, "--checks", "--parameters"))


def _cases(scripts: list[Script], quick: bool = True) -> list[Any]:
    return [
        pytest.param(s, id=s.name, marks=() if quick and s.name in QUICK else pytest.mark.slow)
        for s in scripts
    ]


@pytest.mark.parametrize("script", _cases(PLANTED))
def test_a_planted_bug_is_found_where_it_is(watched: Watched, script: Script) -> None:
    ran = watched(script)
    assert ran.codes == [0] * script.ranks, ran.err
    said = next(check for check in ran.checks if check["name"] == script.planted)
    assert said["found"] is True, said
    assert said["next"]
    assert script.line in (None, said["where"])
    assert script.step in (None, said["step"])


@pytest.mark.parametrize("script", _cases(HEALTHY))
def test_nothing_is_found_in_a_healthy_script(watched: Watched, script: Script) -> None:
    ran = watched(script)
    assert ran.codes == [0] * script.ranks, ran.err
    assert ran.checks
    assert [check for check in ran.checks if check["found"]] == []


@pytest.mark.parametrize("script", _cases(UNCLEAR))
def test_a_check_does_not_deny_what_it_cannot_know(watched: Watched, script: Script) -> None:
    ran = watched(script)
    assert ran.codes == [0] * script.ranks, ran.err
    assert [check for check in ran.checks if check["found"]] == []
    unclear = {
        check["name"]: check["because"] for check in ran.checks if check["answer"] == "cannot tell"
    }
    assert {name for name in script.unclear if not unclear.get(name)} == set()


@pytest.mark.parametrize("script", _cases(HEALTHY))
def test_what_is_not_found_says_what_was_looked_at(watched: Watched, script: Script) -> None:
    denied = [check for check in watched(script).checks if check["answer"] == "not found"]
    silent = [check["name"] for check in denied if not any(check["looked_at"].values())]
    assert silent == []


@pytest.mark.parametrize("script", _cases(HEALTHY + UNCLEAR + PLANTED, quick=False))
def test_a_script_prints_what_it_prints_without(run: Run, watched: Watched, script: Script) -> None:
    plain, ran = run(script), watched(script)
    assert plain.codes == [0] * script.ranks, plain.err
    assert (ran.codes, ran.out) == (plain.codes, plain.out)
