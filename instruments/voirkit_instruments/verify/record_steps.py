"""What of the readings ``--verify`` asks for voirkit has without any probe: from what the steps instrument has recorded."""

from __future__ import annotations

import os
import sys

from voirkit.runner.recording import RECORDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.live.steps import LiveSteps

NAMES = ("train_rate", "loading_rate", "compute_rate", "step+batch", "loader", "compute_start/end", "model", "use_cuda", "loss", "options")


def without_probes(run_dir: str | None, losses: int) -> dict[str, Any]:
    """By reading: the median of a rate (items/s, of the last steps), how often something came, a model's class; None if it is not known.

    Args:
        run_dir: Where this process has recorded, or None.
        losses: How many losses ``backward`` was called on.
    """
    found: dict[str, Any] = dict.fromkeys(NAMES)
    if run_dir is None or RECORDER not in sys.modules:  # nothing was recorded
        return found
    from voirkit.live.picture import Picture
    from voirkit.live.steps import LiveSteps

    steps = LiveSteps(run_dir, pid=os.getpid())
    steps.update()
    while steps.is_behind:
        steps.update()
    picture = Picture()
    steps.fill(picture)
    if picture.steps is None:
        return found
    found.update((rate.name, rate.value) for rate in picture.rates)
    batches = sum(n for counts in steps.window.counts.values() for n in counts.batches.values())
    found["compute_start/end"], found["loader"] = picture.done, batches or None
    if picture.steps["items"]:
        found["step+batch"] = picture.done
    found["loss"] = losses or None
    found["model"] = _model(steps)
    found["use_cuda"] = _uses_cuda(steps)
    return found


def _model(steps: LiveSteps) -> str | None:
    """The class of the module that was called first while it trained."""
    return next((str(known["module"]) for known in steps.arguments() if known.get("training")), None)


def _uses_cuda(steps: LiveSteps) -> bool:
    """Whether something took time on a GPU, or was copied to one."""
    timed = any(name.kind == "device" for name in steps.names())
    return timed or any(str(known.get("to", "")).startswith("cuda") for known in steps.arguments())
