"""``dftracer``: what a script for DFTracer begins and ends its trace with.

Under voirkit, or with ``$VOIRKIT_RUN_DIR``, the run is recorded already, and nothing here has anything to do.  Without them the spans go to
a folder beside the log file, which becomes the log file at the end; what is killed before leaves the folder, which voirkit opens.
"""

from __future__ import annotations

import atexit
import os
import time

from voirkit.ai.node import allow
from voirkit.ai.values import key, mapping, plain
from voirkit.dftracer.constants import EntityStore, declare
from voirkit.errors import tell
from voirkit.runner import recording
from voirkit.trace import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def is_enabled() -> bool:
    """Whether ``$DFTRACER_ENABLE`` allows anything to be recorded; asked when it is needed."""
    return os.environ.get("DFTRACER_ENABLE") != "0"


class dftracer:
    """The trace of this process; there is one.

    Attributes:
        start_time: When ``initialize_log`` was called, in microseconds since 1970.
    """

    _instance: dftracer | None = None

    def __init__(self) -> None:
        dftracer._instance = self
        self.logger = self.dbg_logging = None
        self.start_time = 0
        self._target: str | None = None
        self._folder = ""
        self._pid = 0

    @classmethod
    def get_instance(cls) -> dftracer:
        """The one that there is."""
        return dftracer._instance or dftracer()

    @staticmethod
    def initialize_log(logfile: Any = None, data_dir: Any = None, process_id: int = -1) -> dftracer:
        """Begin to record, unless the run is recorded already.

        Args:
            logfile: Where the trace goes, ``<name>.pfw``; without one ``$DFTRACER_LOG_FILE``, or ``trace.pfw``.  A file of that name is not
                overwritten: the next is ``<name>-2.pfw``.
            data_dir: Not used: voirkit traces no files with it.
            process_id: Not used: records carry the process's own.
        """
        instance = dftracer.get_instance()
        instance.start_time = instance.get_time()
        allow(is_enabled())
        if is_enabled() and not recording.is_prepared():
            given = logfile or os.environ.get("DFTRACER_LOG_FILE") or "trace.pfw"
            instance._start_recording(os.path.abspath(os.fsdecode(given)), f"initialize_log({plain(given)!r})")
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
        """End the trace, and write the log file; it happens at the end of the program at the latest."""
        target, self._target = self._target, None
        if target is None or self._pid != os.getpid():
            return
        recording.end_standalone()
        from voirkit.runner import completion

        if completion.has_segments(self._folder):
            why = completion.export(self._folder, target)
            if why:
                tell(f"{target} was not written ({why}).\n  Write it with: voirkit export {self._folder} --format pfw -o {target}")
                return
        if not completion.has_segments(self._folder, other_than=self._pid):  # of child processes that go on
            completion.discard(self._folder)

    def get_time(self) -> int:
        """The wall clock, in microseconds since 1970."""
        return time.time_ns() // 1000

    def get_config(self, key: str) -> str:
        """What the environment says of a setting."""
        return os.environ.get(key, "")

    def enter_event(self) -> None:
        """Nothing: an event needs no announcement."""

    def exit_event(self) -> None:
        """Nothing."""

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
            float_args: As these.
            string_args: As these.
            relations: Not recorded.
        """
        if not is_enabled() or not recorder.is_recording():
            return
        found: dict[str, Any] = {}
        for given in (int_args, float_args, string_args):
            found.update(mapping({k: v[1] if type(v) is tuple and len(v) == 2 else v for k, v in (given or {}).items()}))
        try:
            start_ns = int(start_time) * 1000 - time.time_ns() + recorder.now()
            end_ns = start_ns + int(duration) * 1000
        except (TypeError, ValueError, OverflowError):
            return
        recorder.span(recorder.name(str(cat), str(name)), start_ns, end_ns, recorder.arguments(found))

    def log_metadata_event(self, key: str, value: Any) -> None:
        """Record a name and a value of the run."""
        _mark(key, value)

    def set_app_metadata_int(self, key: str, value: int) -> None:
        """As ``log_metadata_event``."""
        _mark(key, value)

    def set_app_metadata_string(self, key: str, value: str) -> None:
        """As ``log_metadata_event``."""
        _mark(key, value)

    def mark_used(self, name: str) -> None:
        """Nothing."""

    def declare_entity(self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """The number of a thing that records may name: see ``dft_fn.relate``."""
        return declare(type, key)

    def declare_entity_type(self, type: str, role: Any = None, description: str = "") -> None:
        """Nothing."""

    def relate_entities(self, relation: Any, subject: int, object: int) -> None:
        """Nothing."""


def _mark(name: Any, value: Any) -> None:
    if is_enabled() and recorder.is_recording():
        recorder.mark(recorder.name("dftracer", key(name), "meta"), recorder.now(), recorder.arguments({"value": plain(value)}))


def _finalize() -> None:
    dftracer.get_instance().finalize()


def _reserve(path: str) -> tuple[str, str]:
    """A folder to record into, which is made, and the log file that it will become; neither of them was there.

    Raises:
        OSError: The folder cannot be made.
    """
    stem = path.removesuffix(".gz").removesuffix(".pfw")
    suffix = ".pfw" if os.environ.get("DFTRACER_TRACE_COMPRESSION") == "0" or path.endswith(".pfw") else ".pfw.gz"
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


__all__ = ["dftracer", "is_enabled"]
