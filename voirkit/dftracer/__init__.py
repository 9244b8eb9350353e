"""DFTracer's names, for scripts that are annotated for it: ``from voirkit.dftracer import ai, dftracer, dft_fn``.

Under voirkit ``dftracer.logger`` and ``dftracer.python`` are found here where DFTracer itself is not installed.
"""

from __future__ import annotations

import os

from voirkit.ai import Node as DFTracerAI
from voirkit.ai import ai, checkpoint, comm, compute, data, dataloader, device, other, pipeline
from voirkit.dftracer import logger
from voirkit.dftracer.logger import *  # noqa: F403 -- all of them are DFTracer's
from voirkit.dftracer.logger import dft_fn, dftracer, is_enabled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DFTRACER_ENABLE_ENV, DFTRACER_INIT_ENV, DFTRACER_LOG_LEVEL_ENV = "DFTRACER_ENABLE", "DFTRACER_INIT", "DFTRACER_LOG_LEVEL"
DFTRACER_TIME_METRIC_ENV = "DFTRACER_TIME_METRIC"


def get_time_scale() -> float:
    """Units of ``get_time()`` in a second."""
    return 1e6


def __getattr__(name: str) -> Any:
    # These are asked for when they are needed, not at the import.
    if name == "DFTRACER_ENABLE":
        return is_enabled()
    if name == "DFTRACER_INIT_PRELOAD":
        return os.environ.get(DFTRACER_INIT_ENV) == "PRELOAD"
    if name == "DFTRACER_LOG_LEVEL":
        return os.environ.get(DFTRACER_LOG_LEVEL_ENV, "ERROR")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DFTRACER_ENABLE_ENV", "DFTRACER_INIT_ENV", "DFTRACER_LOG_LEVEL_ENV", "DFTRACER_TIME_METRIC_ENV", "DFTracerAI", "ai", "checkpoint",
    "comm", "compute", "data", "dataloader", "device", "dft_fn", "dftracer", "get_time_scale", "other", "pipeline", *logger.__all__,
]  # fmt: skip
