"""Has the run's events written by another process; nothing of TensorBoard is loaded here."""

from __future__ import annotations

import os

from voirkit_instruments.trackers import track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Write to ``DIR/<name of the run directory>``, or to ``tensorboard`` in that directory: a folder is a run in TensorBoard."""
    folder = options["tensorboard"]
    return track(ov, "tensorboard", os.path.abspath(folder) if folder else "")
