"""Collectives of a training with several ranks (always on): what the ranks exchange, and which rank
holds the others up."""

from __future__ import annotations

import os

from voirkit.instrument import Instrument, Option, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

INSTRUMENT = Instrument(
    "ranks",
    options=(
        Option(
            "--ranks",
            "timing: have torch keep collectives, and take how long NCCL's run on the device",
            type=one_of("timing"),
            metavar="timing",
        ),
    ),
    record="voirkit_instruments.ranks:record",
    always=True,
    parts={"collectives": dict},
    schema=__name__,
    summarise="voirkit_instruments.ranks.analyse:summarise",
    summarised_from=("collective",),
    live_part="voirkit_instruments.ranks.analyse:summarise_live",
    sections="voirkit_instruments.ranks.show:sections",
    evidence={
        "late rank": "voirkit_instruments.ranks.analyse:late_rank",
        "exposed communication": "voirkit_instruments.ranks.analyse:exposed_communication",
    },
)

# Environment variables that torch reads when a process group is made, each under two names. Up to
# torch 2.7 the size has only the second name.
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_TIMES = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING")
_ENTRIES = "2000"  # number of collectives that torch keeps, its default since 2.11


def record(ov: Any, options: Mapping[str, Any]) -> None:
    """With ``--ranks=timing``, have torch record NCCL's collectives and their times. Variables that
    the user has set are left alone."""
    if options["ranks"] is None:
        return
    size_name = _SIZE[1] if _is_old() else _SIZE[0]
    added = {}
    if not any(name in os.environ for name in _SIZE):
        added[size_name] = _ENTRIES
    if not any(name in os.environ for name in _TIMES):
        added[_TIMES[0]] = "1"
    os.environ.update(added)
    settings = " ".join(f"{name}={value}" for name, value in added.items())
    environment = settings or "its environment as it is: all is set"
    ov.say(f"--ranks=timing: the program runs with {environment}.")


def _is_old() -> bool:
    """True if torch is older than 2.8; newer versions warn about the old name."""
    from importlib import metadata

    try:
        parts = metadata.version("torch").split(".")[:2]
        return tuple(int(part) for part in parts) < (2, 8)
    except (metadata.PackageNotFoundError, ValueError):
        return False
