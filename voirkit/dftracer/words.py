"""The names that DFTracer's modules have besides ``ai``, ``dft_fn`` and ``dftracer``: constants and enumerations (pydftracer 2.0.6)."""

from __future__ import annotations

from enum import Enum, IntEnum

from voirkit.ai.values import TagValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ITER_COUNT_NAME, INIT_NAME, BLOCK_NAME, ITER_NAME = "count", "init", "block", "iter"
CTX_SEPARATOR, ROOT_NAME, ROOT_CAT = ".", "ai_root", "ai_root"
START_METADATA_NAME, STOP_METADATA_NAME = "start", "end"


class _Word(str, Enum):
    """A string; ``enum.StrEnum`` is there from python 3.11 on."""

    def __str__(self) -> str:
        return str(self.value)


def _words(name: str, words: str) -> Any:
    make: Any = _Word  # the functional form, for whose names a type checker has no use
    return make(name, {word.upper(): word for word in words.split()}, module=__name__)


ProfileCategory = _words("ProfileCategory", "compute data dataloader comm device checkpoint pipeline other")
ComputeEvent = _words("ComputeEvent", "forward backward step")
DataEvent = _words("DataEvent", "preprocess item")
DataLoaderEvent = _words("DataLoaderEvent", "fetch")
CommunicationEvent = _words(
    "CommunicationEvent", "send receive barrier bcast reduce all_reduce gather all_gather scatter reduce_scatter all_to_all"
)
DeviceEvent = _words("DeviceEvent", "transfer")
PipelineEvent = _words("PipelineEvent", "epoch train evaluate test")
CheckpointEvent = _words("CheckpointEvent", "capture restart")
OtherEvent = _words("OtherEvent", "log")
IOEvent = _words("IOEvent", "open read write close")


class TagType(Enum):
    """What an argument is for."""

    KEY = 0
    VALUE = 1
    IGNORE = 2

    def __int__(self) -> int:
        return int(self.value)


class TagDType(Enum):
    """The type of an argument."""

    INT = 0
    FLOAT = 1
    STRING = 2

    def __int__(self) -> int:
        return int(self.value)


EntityStore = IntEnum(
    "EntityStore",
    [("MEMORY", 0), ("GPU_MEMORY", 1), ("LOCAL_DISK", 2), ("PARALLEL_FS", 3), ("BURST_BUFFER", 4), ("OBJECT_STORE", 5), ("DATABASE", 6),
     ("NETWORK", 7), ("OTHER", 8)],
    module=__name__,
)  # fmt: skip
EntityRole = IntEnum(
    "EntityRole", [("UNKNOWN", 0), ("INPUT", 1), ("OUTPUT", 2), ("INTERMEDIATE", 3), ("PARAMETER", 4), ("REFERENCE", 5)], module=__name__
)
EntityRelation = IntEnum(
    "EntityRelation",
    [("USED", 0), ("GENERATED", 1), ("INVALIDATED", 2), ("UPDATED", 3), ("DERIVED_FROM", 16), ("REVISION_OF", 17), ("CONTAINS", 18),
     ("PART_OF", 19), ("SPECIALIZATION_OF", 20), ("ALTERNATE_OF", 21), ("DEPENDS_ON", 22)],
    module=__name__,
)  # fmt: skip


def get_iter_handle_name(name: str) -> str:
    """The name of the records of waiting."""
    return name if name.endswith(".iter") else f"{name}.iter"


def get_iter_block_name(name: str) -> str:
    """The name of the records of a loop's body."""
    return name if name.endswith(".block") else f"{name}.block"


__all__ = [
    "BLOCK_NAME", "CTX_SEPARATOR", "INIT_NAME", "ITER_COUNT_NAME", "ITER_NAME", "ROOT_CAT", "ROOT_NAME", "START_METADATA_NAME",
    "STOP_METADATA_NAME", "CheckpointEvent", "CommunicationEvent", "ComputeEvent", "DataEvent", "DataLoaderEvent", "DeviceEvent",
    "EntityRelation", "EntityRole", "EntityStore", "IOEvent", "OtherEvent", "PipelineEvent", "ProfileCategory", "TagDType", "TagType",
    "TagValue", "get_iter_block_name", "get_iter_handle_name",
]  # fmt: skip
