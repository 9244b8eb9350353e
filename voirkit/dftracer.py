"""DFTracer's names, for scripts that are annotated for DFTracer.

A script imports them by ``from voirkit.dftracer import ai, dftracer, dft_fn``.

If DFTracer itself is not installed, a script that runs under voirkit gets this module when it
imports ``dftracer.logger`` or ``dftracer.python``. The module has DFTracer's two classes:
``dft_fn``, an annotation with names that the user chooses, and ``dftracer``, which begins and ends
a trace. It also has DFTracer's constants and enumerations (pydftracer 2.0.6), and its entities:
files, tensors and other things, each known by a number that is the same in all processes.

Under voirkit, or with ``$VOIRKIT_RUN_DIR``, the run is recorded already, and ``dftracer`` has
nothing to do.  Otherwise the spans go to a folder beside the path of the log file, and the log file
is made of the folder at the end.  If the program is killed before, the folder remains, and voirkit
can open it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from enum import Enum, IntEnum

from voirkit.ai import (
    AI,
    IO,
    Checkpoint,
    Communication,
    Compute,
    Data,
    DataLoader,
    Device,
    Other,
    Pipeline,
    ai,
    checkpoint,
    comm,
    compute,
    data,
    dataloader,
    device,
    other,
    pipeline,
)
from voirkit.ai import Node as DFTracerAI
from voirkit.ai.decorate import timed
from voirkit.ai.node import (
    ALWAYS,
    UNSET,
    Node,
    allow,
    last_open,
    pop_open,
    push_open,
    set_arguments,
    use_of,
)
from voirkit.ai.values import PLAIN, TagValue, key, mapping, plain, real, whole
from voirkit.errors import tell
from voirkit.runner import recording
from voirkit.trace import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

ITER_COUNT_NAME, INIT_NAME, BLOCK_NAME, ITER_NAME = "count", "init", "block", "iter"
CTX_SEPARATOR, ROOT_NAME, ROOT_CAT = ".", "ai_root", "ai_root"
START_METADATA_NAME, STOP_METADATA_NAME = "start", "end"
DFTRACER_ENABLE_ENV, DFTRACER_INIT_ENV, DFTRACER_LOG_LEVEL_ENV = (
    "DFTRACER_ENABLE",
    "DFTRACER_INIT",
    "DFTRACER_LOG_LEVEL",
)
DFTRACER_TIME_METRIC_ENV = "DFTRACER_TIME_METRIC"


class _StrEnum(str, Enum):
    """An enumeration of strings, like ``enum.StrEnum``, which Python has only since 3.11."""

    def __str__(self) -> str:
        return str(self.value)


def _str_enum(name: str, kind: type[Node]) -> Any:
    """Return an enumeration of the names in a class of the tree ``voirkit.ai``."""
    make: Any = _StrEnum  # typed as Any: a type checker cannot follow the functional form
    return make(
        name, {word.upper(): word for word in kind.__annotations__ if word != "io"}, module=__name__
    )


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
    """An enumeration with numbers: ``int()`` returns a member's number, but the member is not equal
    to it."""

    def __int__(self) -> int:
        return int(self.value)


_make_mark: Any = _Mark
# kinds of the arguments of records, and types of their values
TagType = _make_mark("TagType", {"KEY": 0, "VALUE": 1, "IGNORE": 2}, module=__name__)
TagDType = _make_mark("TagDType", {"INT": 0, "FLOAT": 1, "STRING": 2}, module=__name__)
EntityStore = IntEnum(
    "EntityStore",
    [
        ("MEMORY", 0),
        ("GPU_MEMORY", 1),
        ("LOCAL_DISK", 2),
        ("PARALLEL_FS", 3),
        ("BURST_BUFFER", 4),
        ("OBJECT_STORE", 5),
        ("DATABASE", 6),
        ("NETWORK", 7),
        ("OTHER", 8),
    ],
    module=__name__,
)
EntityRole = IntEnum(
    "EntityRole",
    [
        ("UNKNOWN", 0),
        ("INPUT", 1),
        ("OUTPUT", 2),
        ("INTERMEDIATE", 3),
        ("PARAMETER", 4),
        ("REFERENCE", 5),
    ],
    module=__name__,
)
EntityRelation = IntEnum(
    "EntityRelation",
    [
        ("USED", 0),
        ("GENERATED", 1),
        ("INVALIDATED", 2),
        ("UPDATED", 3),
        ("DERIVED_FROM", 16),
        ("REVISION_OF", 17),
        ("CONTAINS", 18),
        ("PART_OF", 19),
        ("SPECIALIZATION_OF", 20),
        ("ALTERNATE_OF", 21),
        ("DEPENDS_ON", 22),
    ],
    module=__name__,
)


def get_iter_handle_name(name: str) -> str:
    """Return the name of the records for the wait for each item of a loop."""
    return name if name.endswith(".iter") else f"{name}.iter"


def get_iter_block_name(name: str) -> str:
    """Return the name of the records for the body of a loop."""
    return name if name.endswith(".block") else f"{name}.block"


_LIMIT = 10_000  # maximum number of entities whose type and key are kept
_described: dict[int, str] = {}


def declare(kind: Any, key: Any) -> int:
    """Return the number of an entity: the 64-bit FNV-1a hash of its type and key."""
    text = f"{plain(kind)}:{plain(key)}"[:300]
    number = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "backslashreplace"):
        number = ((number ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    if len(_described) < _LIMIT:
        _described[number] = text
    return number


def described(entity: Any) -> str:
    """Return ``type:key`` of the entity with a number; the number itself if it is unknown."""
    return _described.get(entity) or f"{plain(entity)}"


__all__ = [
    "BLOCK_NAME",
    "CTX_SEPARATOR",
    "DFTRACER_ENABLE_ENV",
    "DFTRACER_INIT_ENV",
    "DFTRACER_LOG_LEVEL_ENV",
    "DFTRACER_TIME_METRIC_ENV",
    "INIT_NAME",
    "ITER_COUNT_NAME",
    "ITER_NAME",
    "ROOT_CAT",
    "ROOT_NAME",
    "START_METADATA_NAME",
    "STOP_METADATA_NAME",
    "CheckpointEvent",
    "CommunicationEvent",
    "ComputeEvent",
    "DFTracerAI",
    "DataEvent",
    "DataLoaderEvent",
    "DeviceEvent",
    "EntityRelation",
    "EntityRole",
    "EntityStore",
    "IOEvent",
    "OtherEvent",
    "PipelineEvent",
    "ProfileCategory",
    "TagDType",
    "TagType",
    "TagValue",
    "ai",
    "checkpoint",
    "comm",
    "compute",
    "data",
    "dataloader",
    "device",
    "dft_fn",
    "dftracer",
    "get_iter_block_name",
    "get_iter_handle_name",
    "get_time_scale",
    "other",
    "pipeline",
]


def get_time_scale() -> float:
    """Return how many units of ``get_time()`` make a second."""
    return 1e6


def __getattr__(name: str) -> Any:
    # The environment is read at each access, not at import.
    if name == "DFTRACER_ENABLE":
        return is_enabled()
    if name == "DFTRACER_INIT_PRELOAD":
        return os.environ.get(DFTRACER_INIT_ENV) == "PRELOAD"
    if name == "DFTRACER_LOG_LEVEL":
        return os.environ.get(DFTRACER_LOG_LEVEL_ENV, "ERROR")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# DFTracer's two classes, ``dft_fn`` and ``dftracer``


_MAGIC = ("epoch", "step", "image_idx", "image_size")


class dft_fn(Node):
    """An annotation that records spans of one category: as a decorator of functions, as a context
    manager, around the items of a loop, or from a call of ``reset`` to a call of ``flush``.

    Args:
        cat: The category.
        name: The name of the records of the context manager and of ``flush``; by default the name
            of the function that makes this object.
        epoch: An argument of all records, like the next three.
        step: An integer.
        image_idx: An integer.
        image_size: A number.
        enable: True to record; ``enable()`` and ``disable()`` change it.
    """

    def __init__(
        self,
        cat: str,
        name: str | None = None,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool = True,
    ) -> None:
        super().__init__(str(cat), str(name or sys._getframe(1).f_code.co_name))
        set_arguments(self._own, self._now(), epoch, step, image_idx, image_size, None)
        self._own_is_new = True
        self._switch = (0, bool(enable))
        self._begun = [recorder.now(), False]  # start time, and True once it has been recorded

    # spans of ``with`` blocks, and from ``reset`` to ``flush``

    def __enter__(self) -> dft_fn:
        push_open(self, [recorder.now(), False])
        return self

    def __exit__(self, *exc: object) -> None:
        opened = pop_open(self)
        if opened is not None and not opened[1]:
            self._write(opened[0])

    def flush(self) -> dft_fn:
        """Record the time since the ``with`` block was entered, ``reset()`` was last called, or
        this object was made; returns the object."""
        opened = last_open(self) or self._begun
        opened[1] = True
        self._write(opened[0])
        return self

    def reset(self) -> dft_fn:  # type: ignore[override]  # DFTracer's signature
        """Restart the time from now; returns the object, as in DFTracer. (``Node.reset`` returns
        None, as DFTracer's does too.)"""
        opened = last_open(self) or self._begun
        opened[:] = (recorder.now(), False)
        for name in ("used", "generated", "invalidated", "updated"):
            if name in self._own:
                self.forget(name)
        return self

    def _write(self, start_ns: int) -> None:
        self.record(start_ns, recorder.now())

    # spans of functions and of loops

    def log(self, func: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """Decorate a function: ``@fn.log``, ``@fn.log()`` or ``@fn.log(name=...)``.

        Parameters that are called epoch, step, image_idx or image_size, and attributes of ``self``
        of these names, become arguments.

        Args:
            func: The function.
            name: The name of its records; by default the function's qualified name.
        """

        def decorate(f: Any) -> Any:
            called = getattr(f, "fget", f)  # the getter, if f is a property
            node = Node(
                self.cat, str(name or getattr(called, "__qualname__", "") or type(f).__name__), self
            )
            return timed(f, node, _chooser(f, node))

        return decorate(func) if func is not None else decorate

    log_init = log_static = log  # for static methods, below or above ``@staticmethod``

    def iter(  # type: ignore[override]
        self, func: Iterable[T], name: str = "loop", iter_name: str = "step"
    ) -> Generator[T, None, None]:
        """Iterate over items, and record two spans for each: ``<name>.iter``, the wait for the
        item, and ``<name>.yield``, the body of the loop.

        Args:
            func: The items to iterate over.
            name: Prefix of the names of the spans.
            iter_name: Name of the argument that numbers the items, from 1.
        """
        return self._loop(func, f"{name}.iter", f"{name}.yield", str(iter_name))

    def log_metadata(self, key: str, value: Any) -> None:
        """Record a name and a value that describe the run."""
        if self.is_on():
            _mark(key, value)

    # relations to entities: the data that the recorded work reads or makes

    def relate(self, relation: Any, entity: int) -> dft_fn:
        """Name a declared entity in an argument of the records, which has the name of the relation;
        returns this object. Relations between two entities (from 16) are ignored."""
        try:
            word = EntityRelation(int(relation)).name.lower()
        except (TypeError, ValueError):
            return self
        if entity and int(relation) < 16:
            before = self._own.get(word, (0, None))[1]
            thing = described(entity)
            self.update(args={word: f"{before}, {thing}" if type(before) is str else thing})
        return self

    def relate_entity(
        self, relation: Any, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = ""
    ) -> int:
        """Declare an entity and name it in the records, see ``relate``; returns its number."""
        entity = declare(type, key)
        self.relate(relation, entity)
        return entity

    def uses(self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """Declare an entity that the recorded work reads; returns its number."""
        return self.relate_entity(EntityRelation.USED, type, key, store, uri)

    def generates(self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """Declare an entity that the recorded work makes; returns its number."""
        return self.relate_entity(EntityRelation.GENERATED, type, key, store, uri)

    def __repr__(self) -> str:
        return f"<dft_fn {self.name} of {self.cat}>"

    def __reduce__(self) -> Any:
        return _unpickled, (
            self.cat,
            self.name,
            {name: value for name, value in self._own.items() if type(value[1]) in PLAIN},
            self._on[1],
        )


def _unpickled(cat: str, name: str, entries: dict[str, tuple[float, Any]], enable: bool) -> dft_fn:
    decorator = dft_fn(cat, name, enable=enable)
    decorator._own.update(entries)
    return decorator


def _chooser(f: Any, node: Node) -> Callable[[tuple[Any, ...], dict[str, Any]], Node] | None:
    """Return a function that chooses the node that records a call, with arguments from the call's
    parameters; None if the calls cannot have such arguments."""
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    if code is None:
        return None
    positional = code.co_varnames[: code.co_argcount]
    magic = {name: i for i, name in enumerate(positional) if name in _MAGIC}
    magic.update(
        {
            name: -1
            for name in code.co_varnames[
                code.co_argcount : code.co_argcount + code.co_kwonlyargcount
            ]
            if name in _MAGIC
        }
    )
    has_self = bool(positional) and positional[0] == "self"
    if not magic and not has_self:
        return None
    values_of_last = getattr(f, "__defaults__", None) or ()
    first_default = len(positional) - len(values_of_last)
    defaults = dict(zip(positional[first_default:], values_of_last, strict=True))
    defaults.update(getattr(f, "__kwdefaults__", None) or {})

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        if not node.is_on():
            return node
        values: dict[str, Any] = _of_object(args[0]) if has_self and args else {}
        for name, i in magic.items():
            if name in kwargs:
                value = kwargs[name]
            elif 0 <= i < len(args):
                value = args[i]
            else:
                value = defaults.get(name)
            if value is not None:
                values[name] = real(value) if name == "image_size" else whole(value)
        if not values:
            return node
        return use_of(node, {name: (ALWAYS, value) for name, value in values.items()}, UNSET)

    return choose


def _of_object(thing: Any) -> dict[str, Any]:
    """Return the values of an object's attributes ``epoch``, ``step``, ``image_idx`` and
    ``image_size``; properties are evaluated, as DFTracer does."""
    values = {}
    for name in _MAGIC:
        try:
            value = getattr(thing, name, None)
        except Exception:  # a property of the program may raise anything
            continue
        if type(value) in PLAIN and value is not None:
            values[name] = real(value) if name == "image_size" else value
    return values


def is_enabled() -> bool:
    """True if ``$DFTRACER_ENABLE`` allows recording; the environment is read at each call."""
    return os.environ.get("DFTRACER_ENABLE") != "0"


class dftracer:
    """The trace of this process; there is only one instance."""

    _instance: dftracer | None = None

    def __init__(self) -> None:
        dftracer._instance = self
        self.logger = self.dbg_logging = None
        self.start_time = 0  # when ``initialize_log`` was called, in microseconds since 1970
        self._target: str | None = None
        self._folder = ""
        self._pid = 0

    @classmethod
    def get_instance(cls) -> dftracer:
        """Return the only instance, which the first call makes."""
        return dftracer._instance or dftracer()

    @staticmethod
    def initialize_log(logfile: Any = None, data_dir: Any = None, process_id: int = -1) -> dftracer:
        """Begin to record, unless the run is recorded already.

        Args:
            logfile: Path of the trace, ``<name>.pfw``; by default ``$DFTRACER_LOG_FILE``, or
                ``trace.pfw``.  An existing file is not overwritten: the next name is
                ``<name>-2.pfw``.
            data_dir: Not used: voirkit traces no files with it.
            process_id: Not used: records carry the process's own id.
        """
        instance = dftracer.get_instance()
        instance.start_time = instance.get_time()
        allow(is_enabled())
        if is_enabled() and not recording.is_prepared():
            given = logfile or os.environ.get("DFTRACER_LOG_FILE") or "trace.pfw"
            instance._start_recording(
                os.path.abspath(os.fsdecode(given)), f"initialize_log({plain(given)!r})"
            )
        return instance

    def _start_recording(self, path: str, where: str) -> None:
        try:
            self._folder, target = _reserve(path)
        except OSError as exc:
            tell(f"{where}: cannot be made ({exc.strerror}).\n  This run is not recorded.")
            return
        if recording.begin_standalone(self._folder, where):
            self._target, self._pid = target, os.getpid()
            atexit.unregister(_finalize)
            atexit.register(_finalize)

    def finalize(self) -> None:
        """End the trace, and write the log file; called at the end of the program, if not
        before."""
        target, self._target = self._target, None
        if target is None or self._pid != os.getpid():
            return
        recording.end_standalone()
        from voirkit.runner import completion

        if completion.has_records(self._folder):
            why = completion.export(self._folder, target)
            if why:
                tell(
                    f"{target} was not written ({why}).\n  Write it with: voirkit export"
                    f" {self._folder} --format pfw -o {target}"
                )
                return
        # kept if other processes have records in it: child processes may still run
        if not completion.has_segments_of_others(self._folder):
            completion.discard(self._folder)

    def get_time(self) -> int:
        """Return the wall clock, in microseconds since 1970."""
        return time.time_ns() // 1000

    def get_config(self, key: str) -> str:
        """Return a setting from the environment; empty if it is not set."""
        return os.environ.get(key, "")

    def log_event(
        self,
        name: str,
        cat: str,
        start_time: int,
        duration: int,
        int_args: Mapping[str, Any] | None = None,
        float_args: Mapping[str, Any] | None = None,
        string_args: Mapping[str, Any] | None = None,
        relations: Any = None,
    ) -> None:
        """Record an event that was timed elsewhere.

        Args:
            name: Its name.
            cat: Its category.
            start_time: When it began, in microseconds since 1970.
            duration: In microseconds.
            int_args: Its arguments: values, or DFTracer's pairs of a mark and a value.
            float_args: More arguments, in the same form.
            string_args: More arguments, in the same form.
            relations: Not recorded.
        """
        if not is_enabled() or not recorder.is_recording():
            return
        values: dict[str, Any] = {}
        for given in (int_args, float_args, string_args):
            unmarked = {}
            for argument, value in (given or {}).items():
                is_marked = type(value) is tuple and len(value) == 2
                unmarked[argument] = value[1] if is_marked else value
            values.update(mapping(unmarked))
        try:
            start_ns = int(start_time) * 1000 - time.time_ns() + recorder.now()
            end_ns = start_ns + int(duration) * 1000
        except (TypeError, ValueError, OverflowError):
            return
        recorder.span(
            recorder.name(str(cat), str(name)), start_ns, end_ns, recorder.arguments(values)
        )

    def log_metadata_event(self, key: str, value: Any) -> None:
        """Record a name and a value that describe the run."""
        if is_enabled() and recorder.is_recording():
            _mark(key, value)

    set_app_metadata_int = set_app_metadata_string = log_metadata_event

    def declare_entity(
        self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = ""
    ) -> int:
        """Return the number of an entity that records may name, see ``dft_fn.relate``."""
        return declare(type, key)

    def _needless(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing; stands in for methods of DFTracer that voirkit does not need."""

    enter_event = exit_event = mark_used = declare_entity_type = relate_entities = _needless


def _mark(name: Any, value: Any) -> None:
    recorder.mark(
        recorder.name("dftracer", key(name), "meta"),
        recorder.now(),
        recorder.arguments({"value": plain(value)}),
    )


def _finalize() -> None:
    dftracer.get_instance().finalize()


def _reserve(path: str) -> tuple[str, str]:
    """Make a folder to record into; return its path and the path of the log file that it will
    become. Neither path existed before. Raises OSError: the folder cannot be made."""
    stem = path.removesuffix(".gz").removesuffix(".pfw")
    suffix = (
        ".pfw"
        if os.environ.get("DFTRACER_TRACE_COMPRESSION") == "0" or path.endswith(".pfw")
        else ".pfw.gz"
    )
    os.makedirs(os.path.dirname(stem), exist_ok=True)
    n = 1
    while True:
        name = stem if n == 1 else f"{stem}-{n}"
        n += 1
        if os.path.exists(name + suffix):
            continue
        try:
            os.mkdir(name + ".voirkit")
        except FileExistsError:
            continue
        return name + ".voirkit", name + suffix
