"""Scripts of frameworks that bring their own loaders, optimizers and launchers: each counts for itself what voirkit has to report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Ended, Place
from frameworks_env import ENV

pytestmark = pytest.mark.frameworks
SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCHED = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")

# The words before the script, plainly and under voirkit. Where a launcher is the program, voirkit runs the launcher.
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "accelerate_launched": (LAUNCHED, ("-m", "voirkit", *LAUNCHED)),
    "datasets_trainer": ((), ("-m", "voirkit")),
    "fastai_learner": ((), ("-m", "voirkit")),
    "fsdp2_sharded": (TORCHRUN, (*TORCHRUN, "-m", "voirkit")),
    "geometric_graphs": ((), ("-m", "voirkit")),
    "keras_on_torch": ((), ("-m", "voirkit")),
    "lightning_ddp": ((), ("-m", "voirkit")),
    "spawned_ddp": ((), ("-m", "voirkit")),
    "torchdata_nodes": ((), ("-m", "voirkit")),
    "ultralytics_yolo": ((), ("-m", "voirkit")),
    "webdataset_batched": ((), ("-m", "voirkit")),
}


def lines(text: str) -> list[str]:
    """What was printed, but for figures and names of files that differ from run to run; the ranks' lines in any order.

    What a terminal overwrites (progress, as often as there is time for) is left out, and how fast a framework found the disk to be.
    """
    kept = (
        line for line in text.splitlines() if "\x1b[K" not in line and "image access" not in line
    )
    return sorted(re.sub(r"\d+\.\d+|\btmp\w+", "#", line) for line in kept)


def with_options(words: tuple[str, ...], *options: str) -> tuple[str, ...]:
    at = words.index("voirkit") + 1
    return (*words[:at], "--quiet", *options, *words[at:])


def trained(place: Place, *words: str) -> Ended:
    """What a script ends with. A rank that torch itself ends by SIGABRT, plainly too, is tried again: threads of gloo that outlive the interpreter
    do that once in some hundred runs (pytorch#179291)."""
    ended = place.python(*words, env=ENV, timeout=280)
    return (
        place.python(*words, env=ENV, timeout=280)
        if "terminate called without an active exception" in ended.err
        else ended
    )


@pytest.mark.parametrize("name", CASES)
def test_what_a_framework_trains_is_counted_as_it_counts_itself(place: Place, name: str) -> None:
    plain_words, our_words = CASES[name]
    script = str(SCRIPTS / f"{name}.py")
    plain = trained(place, *plain_words, script)
    assert plain.code == 0, plain.err
    truth: dict[str, Any] = json.loads(re.findall(r"^TRUTH (.*)$", plain.out, re.M)[0])
    ours = trained(
        place, *with_options(our_words, "--loader", "--run-dir", "run", "--force"), script
    )
    assert (ours.code, lines(ours.out)) == (0, lines(plain.out)), ours.err
    summary = json.loads((place.folder / "run" / "summary.json").read_text())
    assert summary["steps"]["n"] == truth["steps"]
    assert summary["steps"]["items"] in (truth.get("items"), None)
    if "items" in truth:
        assert summary["steps"]["items"] == truth["items"]
    if "evaluation" in truth:
        assert summary["evaluation"]["n"] == truth["evaluation"]
    if "loader_items" in truth:
        assert summary["loader"]["items"] == truth["loader_items"]
    if truth.get("ranks", 1) > 1:
        assert (summary["world_size"], len(summary["ranks"])) == (truth["ranks"], truth["ranks"])
    if truth.get("optimizer"):
        assert summary["steps"]["phases"]["optimizer"]["total_s"] > 0
    assert summary["verdict"]["kind"] != truth.get("not")
    assert summary["warnings"] == []
