"""``--tensorboard``: rates, shares of phases, loss, memory and the verdict, written for TensorBoard
during the run."""

from __future__ import annotations

import os

from voirkit.instrument import Instrument, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def folder(text: str) -> str:
    """Return the path of a folder that exists and is writable, or can be created. Raises ValueError
    for any other path."""
    there = os.path.abspath(text)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise ValueError(f"{there} is no folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"you cannot write in {there}.")
    return text


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Write to ``DIR/<name of the run directory>``, or without DIR to ``tensorboard`` in the run
    directory. TensorBoard shows each folder as a run."""
    from voirkit_instruments.trackers import track

    folder = options["tensorboard"]
    return track(ov, "tensorboard", os.path.abspath(folder) if folder else "")


INSTRUMENT = Instrument(
    "tensorboard",
    group="see a run",
    options=(
        Option(
            "--tensorboard",
            "write rates, phases, loss and the verdict for TensorBoard, into a folder of DIR"
            " (default: the run directory)",
            type=folder,
            metavar="DIR",
            const="",
        ),
    ),
    record="voirkit_instruments.tensorboard_writer:record",
    folders=("tensorboard",),
)
