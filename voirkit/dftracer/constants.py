"""The names that DFTracer's modules have besides ``ai``, ``dft_fn`` and ``dftracer``: constants and enumerations (pydftracer 2.0.6).

And entities, which records may name, a file or a tensor: a number for each, the same in all processes.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from voirkit.ai import AI, IO, Checkpoint, Communication, Compute, Data, DataLoader, Device, Node, Other, Pipeline
from voirkit.ai.values import TagValue, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ITER_COUNT_NAME, INIT_NAME, BLOCK_NAME, ITER_NAME = "count", "init", "block", "iter"
CTX_SEPARATOR, ROOT_NAME, ROOT_CAT = ".", "ai_root", "ai_root"
START_METADATA_NAME, STOP_METADATA_NAME = "start", "end"


class _StrEnum(str, Enum):
    """A string; ``enum.StrEnum`` is there from python 3.11 on."""

    def __str__(self) -> str:
        return str(self.value)


def _str_enum(name: str, kind: type[Node]) -> Any:
    """The words of a part of the tree."""
    make: Any = _StrEnum  # the functional form, for whose names a type checker has no use
    return make(name, {word.upper(): word for word in kind.__annotations__ if word != "io"}, module=__name__)


ProfileCategory = _str_enum("ProfileCategory", AI)
ComputeEvent = _str_enum("ComputeEvent", Compute)
DataEvent = _str_enum("DataEvent", Data)
DataLoaderEvent = _str_enum("DataLoaderEvent", DataLoader)
CommunicationEvent = _str_enum("CommunicationEvent", Communication)
DeviceEvent = _str_enum("DeviceEvent", Device)
PipelineEvent = _str_enum("PipelineEvent", Pipeline)
CheckpointEvent = _str_enum("CheckpointEvent", Checkpoint)
OtherEvent = _str_enum("OtherEvent", Other)
IOEvent = _str_enum("IOEvent", IO)


class _Mark(Enum):
    """A number that is not equal to one; ``int()`` gives it."""

    def __int__(self) -> int:
        return int(self.value)


_make_mark: Any = _Mark
TagType = _make_mark("TagType", {"KEY": 0, "VALUE": 1, "IGNORE": 2}, module=__name__)  # what an argument is for
TagDType = _make_mark("TagDType", {"INT": 0, "FLOAT": 1, "STRING": 2}, module=__name__)
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


_LIMIT = 10_000  # things that are remembered by their names
_described: dict[int, str] = {}


def declare(kind: Any, key: Any) -> int:
    """The number of a thing: 64 bits, FNV-1a over its type and key."""
    text = f"{plain(kind)}:{plain(key)}"[:300]
    number = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "backslashreplace"):
        number = ((number ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    if len(_described) < _LIMIT:
        _described[number] = text
    return number


def described(entity: Any) -> str:
    """``type:key`` of a thing, or its number."""
    return _described.get(entity) or f"{plain(entity)}"


__all__ = [
    "BLOCK_NAME", "CTX_SEPARATOR", "INIT_NAME", "ITER_COUNT_NAME", "ITER_NAME", "ROOT_CAT", "ROOT_NAME", "START_METADATA_NAME",
    "STOP_METADATA_NAME", "CheckpointEvent", "CommunicationEvent", "ComputeEvent", "DataEvent", "DataLoaderEvent", "DeviceEvent",
    "EntityRelation", "EntityRole", "EntityStore", "IOEvent", "OtherEvent", "PipelineEvent", "ProfileCategory", "TagDType", "TagType",
    "TagValue", "get_iter_block_name", "get_iter_handle_name",
]  # fmt: skip
