"""``--what-if checkpoint-async``: ``torch.save`` returns when tensors are copied and all else is
pickled; a thread writes the file.

torch.save runs unchanged, except for the object to which it writes its records (torch 2.1 to 2.15:
the class ``torch.serialization._open_zipfile_writer_file``). A ``RecordBuffer`` takes its place. It
keeps the records, with copies of the tensors, and a thread writes them in the same order: the file
is the same, byte for byte. Errors about a path are still raised in the call of torch.save.

A file is written later only if the main thread of a single process saves it to a regular file by
its path. All other files are written by torch.save as usual, and the facts say why.

The program might read a file before it is written. So it waits for all files before it opens,
renames, links or removes one of them, or asks for its size. It also waits before it lists a folder,
starts or signals a process, connects, or ends. Python reports most of these operations by audit
events; ``os.stat`` and ``os._exit``, which have none, are wrapped. An error in writing is raised in
the main thread at its next wait or save. Not detected: libraries that open files in C, processes
that already run, and a process that is killed.
"""

from __future__ import annotations

import ctypes
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit_instruments.what_if.record_changes import ceiling_of_saving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.intercept import Patches

_OPENER = "_open_zipfile_writer_file"
# functions that return the options that torch passes to its writer, if this torch version has them
_OPTIONS = ("get_crc32_options", "_get_storage_alignment")

# Audit events (Python 3.10 to 3.13) before which the program waits for all files: another process
# may read them, or a folder is listed or renamed. At ``open`` and other ``os`` events the program
# waits only if they name a pending file.
_WAITS_FOR_ALL = {
    "os.rename",
    "os.listdir",
    "os.scandir",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.kill",
    "os.killpg",
    "signal.pthread_kill",
    "subprocess.Popen",
    "pty.spawn",
    "socket.connect",
    "socket.sendto",
}


class CheckpointAsync:
    """The change ``checkpoint-async`` in one process; see ``Change``."""

    exact = True

    def __init__(self, argument: str | None) -> None:
        self._saves = BackgroundSaves()
        self._patches: Patches | None = None
        self._pid = os.getpid()
        # reason why torch.save wrote a file at once -> number of such saves
        self._synchronous: dict[str, int] = {}
        self._n, self._bytes, self._copying_ns = 0, 0, 0
        self._why_nothing = "torch was not imported."

    ceiling = staticmethod(ceiling_of_saving)  # an upper bound: the time of copying remains

    def install(self, patches: Patches) -> None:
        self._patches = patches
        when_imported("torch", self._patch)  # torch's writer can only be tried after the import

    def _patch(self, torch: ModuleType) -> None:
        module = torch.serialization
        patches = self._patches
        if patches is None:  # the script has ended
            return
        getters = [getattr(module, name, None) for name in _OPTIONS]
        options = [getter for getter in getters if getter is not None]
        try:
            writer = torch._C.PyTorchFileWriter(io.BytesIO(), *[option() for option in options])
            writer.write_end_of_file()
            opener: Any = getattr(module, _OPENER)
            init, leave = opener.__init__, vars(opener)["__exit__"]
        except Exception as exc:  # private parts of torch, which may differ in other versions
            error = f"{type(exc).__name__}: {exc}"
            self._why_nothing = f"this torch writes files in a way that is not known ({error})."
            return

        def init_buffered(self_: Any, name: Any, *more: Any, **kwargs: Any) -> None:
            if self._saves.is_pending(name):
                self._saves.wait("torch.save")
            self._saves.raise_error()
            buffer = self._open(name, options) if not more and not kwargs else None
            if buffer is None:
                self._saves.wait("torch.save")
                init(self_, name, *more, **kwargs)
            else:
                self_.file_like, self_.file_stream, self_.name = buffer, None, name

        def leave_buffered(self_: Any, *error: Any) -> Any:
            if isinstance(self_.file_like, RecordBuffer):
                return self._close(self_, leave, error)
            return leave(self_, *error)

        patches.put(opener, "__init__", init_buffered)
        patches.put(opener, "__exit__", leave_buffered)
        self._saves.watch(patches)
        self._why_nothing = ""

    def _open(self, name: Any, options: Sequence[Callable[[], Any]]) -> RecordBuffer | None:
        """Open the file as torch would, but leave truncation to the thread: freeing 100 MB takes
        60 ms. Returns the buffer for the records, or None if torch must open the file itself and
        report any error."""
        import torch

        why = self._why_synchronous(name)
        if not why:
            try:
                # The folder is resolved now, because symbolic links in its path may have changed
                # when the thread writes. The base name is kept, because torch writes it into the
                # file.
                folder, base = os.path.split(name)
                path = os.path.join(os.path.realpath(folder, strict=True), base)
                path.encode()
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (OSError, ValueError):
                why = "to what cannot be opened"
        if why:
            self._count_synchronous(why)
            return None
        values = [option() for option in options]

        def make_writer() -> Any:
            # waits for earlier saves; does nothing in a writer thread
            self._saves.wait("torch.save")
            try:
                os.ftruncate(file, 0)
            finally:
                os.close(file)
            return torch._C.PyTorchFileWriter(path, *values)

        return RecordBuffer(Save(path, os.fstat(file)), make_writer, room())

    def _why_synchronous(self, path: str) -> str:
        """Return why a save has to be made at once, in this thread; empty if a thread can make it
        later."""
        if os.getpid() != self._pid:
            return "in a child process"
        if threading.current_thread() is not threading.main_thread():
            return "in another thread"
        if self._patches is None:
            return "after the end"
        if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
            return "in one of several ranks"
        if not path.isascii():
            return "to a path that is not ASCII"  # torch opens such a file through Python
        with suppress(OSError, ValueError):
            if not os.path.basename(path) or not stat.S_ISREG(self._saves.stat(path).st_mode):
                return "to what is no regular file"
        return ""

    def _count_synchronous(self, why: str) -> None:
        self._synchronous[why] = self._synchronous.get(why, 0) + 1

    def _close(self, opener: Any, leave: Any, error: tuple[Any, ...]) -> Any:
        buffer: RecordBuffer = opener.file_like

        def write() -> Any:
            """Write the kept records and close the file, as torch's own ``with`` would."""
            opener.file_like = writer = buffer.writer()
            try:
                buffer.flush(writer)
            except BaseException as exc:  # it is raised again
                leave(opener, type(exc), exc, exc.__traceback__)
                raise
            return leave(opener, *error)

        why = buffer.why_direct or ("that failed" if error[0] is not None else "")
        if why:
            self._count_synchronous(why)
            return write()
        self._n += 1
        self._bytes += buffer.bytes
        self._copying_ns += buffer.copying_ns
        self._saves.start(buffer.save, write)
        return None

    def end(self) -> None:
        """Wait until all files are written. Raises an error in writing that was not raised in the
        program yet."""
        self._patches = None
        try:
            self._saves.wait("the end")
        finally:
            self._saves.is_watching = False

    def facts(self) -> dict[str, Any]:
        """Return the facts of ``Change.facts``.

        ``touched``: number of saves that a thread wrote; ``bytes``: size of their copies;
        ``synchronous``: number of other saves by reason; ``copying_s``, ``waiting_s``: seconds that
        the program spent copying and waiting; ``waits``: number of waits by the operation that
        waited.
        """
        facts: dict[str, Any] = {
            "touched": self._n,
            "bytes": self._bytes,
            "synchronous": dict(self._synchronous),
            "copying_s": self._copying_ns / 1e9,
            "waiting_s": self._saves.waited_ns / 1e9,
            "waits": dict(self._saves.waits),
        }
        if self._synchronous:
            reasons = ", ".join(f"{n} x {why}" for why, n in self._synchronous.items())
            facts["because"] = f"torch.save wrote as ever {reasons}."
        elif not self._n:
            facts["because"] = self._why_nothing or "torch.save wrote no file by its path."
        return facts


class RecordBuffer:
    """Buffer of the records of one file. It takes the place of torch's writer
    (``PyTorchFileWriter``) while torch.save pickles.

    A record that cannot be kept, because memory is short or its kind is unknown, is written at
    once, after all records that were kept before.

    Args:
        save: The file, and the thread that writes it.
        make_writer: Creates torch's writer for the file.
        room: Bytes that copies may take.

    Attributes:
        bytes: Size of the copies.
        copying_ns: Time that copying took.
    """

    def __init__(self, save: Save, make_writer: Callable[[], Any], room: float) -> None:
        self.save = save
        self._make_writer, self._writer = make_writer, None
        self._room = room
        # (method of the writer, arguments, object that must live until the record is written)
        self._records: list[tuple[str, tuple[Any, ...], Any]] = []
        self.bytes, self.copying_ns = 0, 0
        self.why_direct = ""  # why records now go directly to the writer; empty while they are kept

    def writer(self) -> Any:
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def write_record(self, name: Any, data: Any, size: int) -> Any:
        """Keep a record, or pass it to the writer if records are written directly. ``data`` is the
        writer's argument: text, bytes, a storage, or (torch 2.1) an address."""
        if not self.why_direct:
            if isinstance(data, (str, bytes)):
                self._records.append(("write_record", (name, data, size), None))
                return None
            if self._copy(name, data, size):
                return None
        return self.writer().write_record(name, data, size)

    def write_record_metadata(self, *args: Any) -> Any:
        if self.why_direct:
            return self.writer().write_record_metadata(*args)
        self._records.append(("write_record_metadata", args, None))
        return None

    def __getattr__(self, name: str) -> Any:
        """Write directly from now on, and return the writer's attribute: torch uses an unknown part
        of its writer."""
        self._write_directly("with records of an unknown kind")
        return getattr(self.writer(), name)

    def _copy(self, name: Any, data: Any, size: int) -> bool:
        """Keep a copy of a record's memory. Returns False if that is impossible; all records are
        then written directly."""
        import torch

        begin_ns = time.perf_counter_ns()
        is_address = isinstance(data, int)
        if not is_address and not (
            isinstance(data, torch.UntypedStorage) and data.device.type == "cpu"
        ):
            self._write_directly("with records of an unknown kind")
            return False
        try:
            if self.bytes + size > self._room:
                raise MemoryError
            # a storage instead of a tensor, so that no active mode of torch intercepts the call
            copy = torch.UntypedStorage(size)
        except (MemoryError, RuntimeError):
            self._write_directly("for want of memory")
            return False
        if size:
            ctypes.memmove(copy.data_ptr(), data if is_address else data.data_ptr(), size)
        memory = copy.data_ptr() if is_address else copy
        self._records.append(("write_record", (name, memory, size), copy))
        self.bytes += size
        self.copying_ns += time.perf_counter_ns() - begin_ns
        return True

    def _write_directly(self, why: str) -> None:
        if not self.why_direct:
            self.why_direct = why
            self.flush(self.writer())

    def flush(self, writer: Any) -> None:
        """Write the kept records, and free the memory of each once it is written. Raises the
        writer's RuntimeError (disk full); the remaining records are then never written."""
        records, self._records = self._records[::-1], []
        while records:
            method, args, _ = records.pop()
            getattr(writer, method)(*args)


def room() -> float:
    """Return the bytes that copies of one file may take: half of the available memory of the
    machine or of the control group (version 2), whichever is less."""
    import psutil

    available = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").rpartition("0::/")[2].strip()
        folder = Path("/sys/fs/cgroup") / group
        rows = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
        sizes = {name: float(size) for name, size in map(str.split, rows)}
        cached = sizes["inactive_file"] + sizes["active_file"]
        limit = float((folder / "memory.max").read_text())  # ValueError for "max", no limit
        current = float((folder / "memory.current").read_text())
        available = min(available, limit - current + cached)
    return available / 2


class Save(threading.Thread):
    """One file, and the thread that writes it. The thread lives only while it writes, so that no
    thread exists when the program forks."""

    def __init__(self, path: str, status: os.stat_result) -> None:
        super().__init__(name="voirkit-checkpoint")
        self.path = path
        self.inode = status.st_dev, status.st_ino
        self.write: Callable[[], Any] | None = None
        self.previous: Save | None = None  # the save that must be written before this one
        self.error: BaseException | None = None  # the error with which writing failed

    def run(self) -> None:
        try:
            if self.previous is not None:
                self.previous.join()
            if self.write is not None:
                self.write()
        except BaseException as exc:
            if hasattr(exc, "add_note"):  # since Python 3.11
                exc.add_note(
                    f"voirkit: raised late by --what-if checkpoint-async, while {self.path} was"
                    " written after torch.save."
                )
            self.error = exc
        self.previous = self.write = None  # frees the copies that they hold


class BackgroundSaves:
    """The files that threads are writing, in the order of the calls, and the hooks that make the
    program wait for them."""

    def __init__(self) -> None:
        # saves that may not be written yet, and failed saves whose error has not been raised in the
        # program; if empty, the program never waits
        self.pending: list[Save] = []
        self.is_watching = False  # True while the hooks make the program wait
        self.waited_ns = 0  # time that the program waited
        self.waits: dict[str, int] = {}  # operation that waited -> number of waits
        self.stat = os.stat  # the original ``os.stat``
        self._pid = os.getpid()

    def start(self, save: Save, write: Callable[[], Any]) -> None:
        """Start the thread that writes a file. If no thread can be started, write it here."""
        save.write = write
        self.pending = [other for other in self.pending if other.is_alive() or other.error]
        save.previous = self.pending[-1] if self.pending else None
        try:
            save.start()
            self.pending.append(save)
            return
        except RuntimeError:  # the interpreter is ending, or the limit of threads is reached
            pass
        save.run()
        if save.error is not None:
            raise save.error

    def wait(self, why: str) -> None:
        """Wait until all files are written. Does nothing in a writer thread or a child process."""
        saves = list(self.pending)
        writers = [save.ident for save in saves]
        if os.getpid() != self._pid or threading.get_ident() in writers:
            return
        begin_ns = time.perf_counter_ns()
        has_to_wait = any(save.is_alive() for save in saves)
        for save in saves:
            save.join()
            if save.error is None:
                with suppress(ValueError):  # another thread has already removed this save
                    self.pending.remove(save)
        if has_to_wait:
            self.waited_ns += time.perf_counter_ns() - begin_ns
            self.waits[why] = self.waits.get(why, 0) + 1
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of the first failed save, once; only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for save in self.pending:
                if save.error is not None:
                    self.pending.remove(save)
                    raise save.error

    def watch(self, patches: Patches) -> None:
        """Install the hooks: the program waits wherever it could see that a file is not written
        yet."""
        # A FunctionWrapper is equal to the wrapped function, so ``os.stat in os.supports_dir_fd``
        # stays true.
        from wrapt import FunctionWrapper

        if self.is_watching:
            return
        self.is_watching = True
        # Python cannot remove an audit hook: this one does nothing once ``is_watching`` is False
        sys.addaudithook(self._on_event)
        # Python 3.10's pathlib calls functions of ``os`` through this class
        accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
        for name in ("stat", "lstat"):
            wrapped = FunctionWrapper(getattr(os, name), self._on_stat)
            patches.put(os, name, wrapped)
            if accessor is not None and name in vars(accessor):
                patches.put(accessor, name, staticmethod(wrapped))
        patches.put(os, "_exit", FunctionWrapper(os._exit, self._on_exit))

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.pending or not self.is_watching:
            return
        if event in _WAITS_FOR_ALL or self._names_pending(event, args):
            self.wait(event)

    def _names_pending(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "open" and isinstance(args[0], int):
            # Wait: multiprocessing opens the descriptor of a pipe to a process that it spawns, and
            # the spawn itself raises no audit event.
            return True
        is_of_files = event == "open" or event.startswith("os.")
        return is_of_files and any(self.is_pending(path, True) for path in args[:2])

    def _on_stat(
        self, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.pending and self.is_watching:
            caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            path = args[0] if args else kwargs.get("path")
            # voirkit's own calls do not wait: the steps instrument records the sizes of checkpoints
            is_ours = caller in ("voirkit", "voirkit_instruments")
            if not is_ours and self.is_pending(path, "dir_fd" in kwargs):
                self.wait(f"os.{function.__name__}")
        return function(*args, **kwargs)

    def _on_exit(
        self, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.is_watching:
            self.wait("os._exit")
        return function(*args, **kwargs)

    def is_pending(self, path: Any, is_any_folder: bool = False) -> bool:
        """True if a path, also through links, leads to a file that may not be written yet. With
        ``is_any_folder`` a relative path may start at any folder, and an equal file name is
        enough."""
        if not self.pending:
            return False
        try:
            name = os.path.basename(os.fsdecode(path))
            names = [os.path.basename(save.path) for save in self.pending]
            if is_any_folder and name in names and not os.path.isabs(path):
                return True
            status = self.stat(path)
        except (OSError, TypeError, ValueError):
            return False
        inode = status.st_dev, status.st_ino
        return any(save.inode == inode for save in self.pending)
