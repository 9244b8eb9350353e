"""``--what-if checkpoint-async``: ``torch.save`` returns when tensors are copied and all else is
pickled; a thread writes the file.

torch.save runs as it is, up to the object that it writes its records to (torch 2.1 to 2.15: the
class ``torch.serialization._open_zipfile_writer_file``). A ``RecordBuffer`` in its place keeps the
records, tensors as copies, and a thread passes them on in the same order: the file is the same,
byte for byte. What torch.save raises about a path it raises where it is called.

The program waits wherever it could see that a file is not written yet. Python reports most of that
by audit events (files opened, renamed, listed, processes started or signalled, connections made);
functions that have none (``os.stat``, ``os._exit`` ...) are wrapped. A file is known by its inode,
whatever its name. What writing fails with is raised in the thread that called torch.save, where it
next waits for that file or saves another. Not seen: libraries that open files in C, processes that
run already, a process that is killed.

Open files, buffers and the old format are written as ever. So is everything in child processes and
in runs of several ranks, where another process may read the file as soon as torch.save is over.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit_instruments.what_if.record_changes import ceiling_of_saving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.intercept import Patches

    Inode = tuple[int, int]  # device and number

_OPENER = "_open_zipfile_writer_file"
# what torch passes to its writer, as far as it has them
_OPTIONS = ("get_crc32_options", "_get_storage_alignment")

# Audit events of python 3.10 to 3.13. Those after which another process may look, or the file has
# another folder: all is waited for. Of other events of ``os``, and of ``open``, for the files that
# they name, or whose folder they list.
_WAITS_FOR_ALL = {
    "os.rename",
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
_LISTS = ("os.listdir", "os.scandir")


class CheckpointAsync:
    """The change, for one process."""

    exact = True

    def __init__(self, argument: str | None) -> None:
        self._saves = BackgroundSaves()
        self._spare: dict[int, list[Any]] = {}
        self._patches: Patches | None = None
        self._pid = os.getpid()
        self._synchronous: dict[str, int] = {}  # why a save was not left to the thread -> how many
        self._n, self._bytes, self._copying_ns = 0, 0, 0
        self._off = "torch was not imported."

    ceiling = staticmethod(ceiling_of_saving)  # the copies stay

    def install(self, patches: Patches) -> None:
        self._patches = patches
        when_imported("torch", self._patch)  # and all of it: its writer cannot be tried before

    def _patch(self, torch: ModuleType) -> None:
        module = torch.serialization
        patches = self._patches
        if patches is None:  # the work is over
            return
        options = [
            function for name in _OPTIONS if (function := getattr(module, name, None)) is not None
        ]
        try:
            torch._C.PyTorchFileWriter(
                io.BytesIO(), *[option() for option in options]
            ).write_end_of_file()
            opener: Any = getattr(module, _OPENER)
            init, leave = opener.__init__, vars(opener)["__exit__"]
        except Exception as exc:  # of private parts of torch
            self._off = (
                f"this torch writes files in a way that is not known ({type(exc).__name__}: {exc})."
            )
            return

        def init_buffered(self_: Any, name: Any, *more: Any, **kwargs: Any) -> None:
            self._saves.wait_before_saving(name)
            buffer = self._open(name, options) if not more and not kwargs else None
            if buffer is None:
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
        self._off = ""

    def _open(self, name: Any, options: Sequence[Callable[[], Any]]) -> RecordBuffer | None:
        """Open the file as torch would, but truncate it in the thread: to free 100 MB takes 60 ms.
        Returns what keeps the records; None if torch is to open it by itself, and to report what is
        wrong with it."""
        import torch

        why = self._why_synchronous(name)
        if not why:
            try:
                # Links that lead to the folder may lead elsewhere by then; the file's own name is
                # in it, as torch writes it there.
                folder, base = os.path.split(name)
                path = os.path.join(os.path.realpath(folder, strict=True), base)
                path.encode()
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (OSError, ValueError):
                why = "to what cannot be opened"
        if why:
            self._synchronous[why] = self._synchronous.get(why, 0) + 1
            return None
        values = [option() for option in options]
        save = Save(path, _inode(os.fstat(file)), _inode(self._saves.stat(os.path.dirname(path))))

        def make_writer() -> Any:
            try:
                os.ftruncate(file, 0)
            finally:
                os.close(file)
            return torch._C.PyTorchFileWriter(path, *values)

        return RecordBuffer(save, make_writer, room(), self._spare)

    def _why_synchronous(self, path: str) -> str:
        """Why a save is to be made here and now; empty if it need not."""
        if os.getpid() != self._pid:
            return "in a child process"
        if self._patches is None:
            return "after the end"
        if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
            return "in one of several ranks"
        if not path.isascii():
            return "to a path that is not ASCII"  # torch lets python open it
        with suppress(OSError, ValueError):
            if not os.path.basename(path) or not stat.S_ISREG(self._saves.stat(path).st_mode):
                return "to what is no regular file"
        return ""

    def _close(self, opener: Any, leave: Any, error: tuple[Any, ...]) -> Any:
        buffer: RecordBuffer = opener.file_like

        def write() -> Any:
            """Write what is kept, and end the file, as torch's own ``with`` would have."""
            opener.file_like = writer = buffer.writer()
            try:
                buffer.flush(writer)
            except BaseException as exc:  # raised again
                leave(opener, type(exc), exc, exc.__traceback__)
                raise
            return leave(opener, *error)

        why = buffer.why_direct or ("that failed" if error[0] is not None else "")
        if why:
            self._synchronous[why] = self._synchronous.get(why, 0) + 1
            return write()
        self._spare.clear()
        self._n += 1
        self._bytes += buffer.bytes
        self._copying_ns += buffer.copying_ns
        buffer.save.write = write
        self._saves.start(buffer.save)
        return None

    def end(self) -> None:
        """Wait for what is being written. Raises Exception: what writing failed with, if the
        program has not met it."""
        self._patches = None
        if os.getpid() == self._pid:
            self._saves.wait()
            self._spare.clear()
        self._saves.on = False
        self._saves.raise_error()

    def facts(self) -> dict[str, Any]:
        """``touched``: saves that a thread wrote; ``bytes`` of them; ``synchronous``: why others
        were written in place, how many; seconds of the program: ``copying_s``, ``waiting_s``, and
        ``waits``: for what it waited, how many times.
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
            facts["because"] = (
                "torch.save wrote as ever "
                + ", ".join(f"{n} x {why}" for why, n in self._synchronous.items())
                + "."
            )
        elif not self._n:
            facts["because"] = self._off or "torch.save wrote no file by its path."
        return facts


class RecordBuffer:
    """The records of one file, in the place of torch's writer (``PyTorchFileWriter``) while
    torch.save pickles.

    What cannot be kept, for want of memory or because it is unknown, is written at once, after all
    that was kept before.

    Args:
        make_writer: Makes the writer that the records are for.
        room: Bytes that new copies may take.
        spare: By size, memory of copies that are written, for those of the next save: fresh memory
            takes three times as long to copy to.

    Attributes:
        bytes: Of the copies.
        copying_ns: What they took.
    """

    def __init__(
        self, save: Save, make_writer: Callable[[], Any], room: float, spare: dict[int, list[Any]]
    ) -> None:
        self.save = save
        self._make_writer, self._writer = make_writer, None
        self._room, self._spare = room, spare
        # method, arguments, what must live as long
        self._records: list[tuple[str, tuple[Any, ...], Any]] = []
        self.bytes, self.copying_ns = 0, 0
        self.why_direct = ""  # why records now go straight to the writer; empty while they are kept

    def writer(self) -> Any:
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def write_record(self, name: Any, data: Any, size: int) -> Any:
        """As the writer's: text, bytes, a storage, or (torch 2.1) an address."""
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
        """Anything else that torch may want of its writer: it has it, from then on."""
        self._write_directly("with records of an unknown kind")
        return getattr(self.writer(), name)

    def _copy(self, name: Any, data: Any, size: int) -> bool:
        """Keep a copy of some memory; False if that cannot be, and then nothing is kept any
        more."""
        import torch

        begin_ns = time.perf_counter_ns()
        is_address = isinstance(data, int)
        if not is_address and not (
            isinstance(data, torch.UntypedStorage) and data.device.type == "cpu"
        ):
            self._write_directly("with records of an unknown kind")
            return False
        if self._spare.get(size):
            copy = self._spare[size].pop()
        else:
            self._room -= size
            try:
                if self._room < 0:
                    raise MemoryError
                # and no tensor: no mode of torch that is on may have a say in this
                copy = torch.UntypedStorage(size)
            except (MemoryError, RuntimeError):
                self._write_directly("for want of memory")
                return False
        if size:
            ctypes.memmove(copy.data_ptr(), data if is_address else data.data_ptr(), size)
        self._records.append(
            ("write_record", (name, copy.data_ptr() if is_address else copy, size), copy)
        )
        self.bytes += size
        self.copying_ns += time.perf_counter_ns() - begin_ns
        return True

    def _write_directly(self, why: str) -> None:
        if not self.why_direct:
            self.why_direct = why
            self.flush(self.writer())
            self._spare.clear()

    def flush(self, writer: Any) -> None:
        """Write what is kept, and give its memory back piece by piece. Raises RuntimeError: as the
        writer raises it (disk full); what is left is never written then."""
        records, self._records = self._records[::-1], []
        while records:
            method, args, copy = records.pop()
            getattr(writer, method)(*args)
            if copy is not None:
                self._spare.setdefault(copy.nbytes(), []).append(copy)


def room() -> float:
    """Bytes of memory that copies of one file may take: half of what the machine, and the control
    group (version 2), have left."""
    import psutil

    available = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError, StopIteration):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            folder = "/sys/fs/cgroup" + next(
                line[3:].strip() for line in file if line.startswith("0::")
            ).rstrip("/")

        def read(name: str) -> str:
            with open(f"{folder}/{name}", encoding="utf-8") as file:
                return file.read()

        cached = sum(
            float(line.split()[1])
            for line in read("memory.stat").splitlines()
            if line.startswith(("inactive_file ", "active_file "))
        )
        # "max" is no number: there is no limit
        available = min(
            available, float(read("memory.max")) - float(read("memory.current")) + cached
        )
    return available / 2


class Save(threading.Thread):
    """One file, and the thread that writes it: it lives only while there is something to write, so
    that a fork finds none.

    Args:
        path: As the program named it.
        file: What it is under all its names.
        folder: The same of its folder.
    """

    def __init__(self, path: str, file: Inode, folder: Inode) -> None:
        super().__init__(name="voirkit-checkpoint")
        self.path, self.file, self.folder = path, file, folder
        self.write: Callable[[], Any] | None = None  # writes it
        self.previous: Save | None = None  # the save that is written before it
        self.error: BaseException | None = None  # what writing it failed with
        self.caller = threading.get_ident()  # the thread that called torch.save

    def run(self) -> None:
        try:
            if self.previous is not None:
                self.previous.join()
            if self.write is not None:
                self.write()
        except BaseException as exc:
            if hasattr(exc, "add_note"):  # python 3.11
                exc.add_note(
                    f"voirkit: raised late by --what-if checkpoint-async, while {self.path} was"
                    " written after torch.save."
                )
            self.error = exc
        self.previous = self.write = None  # what they hold is freed


class BackgroundSaves:
    """The files that threads are writing, in the order of the calls, and what makes the program
    wait for them."""

    def __init__(self) -> None:
        # those not known to be written, or failed without the program having been told. Empty:
        # nobody has to wait.
        self.pending: list[Save] = []
        self.on = False  # whether the program is made to wait
        self.waited_ns = 0  # how long it waited
        self.waits: dict[str, int] = {}  # for what, how many times
        self.stat = os.stat  # ``os.stat`` itself
        self._lock = threading.RLock()  # a signal's handler may save
        self._pid = os.getpid()

    def start(self, save: Save) -> None:
        """Have a file written; in place where no thread can be started."""
        with self._lock:
            save.previous = self.pending[-1] if self.pending else None
            try:
                save.start()
                self.pending.append(save)
                return
            except RuntimeError:  # the interpreter is ending, or there is no thread left
                pass
        save.run()
        if save.error is not None:
            raise save.error

    def wait(self, save: Save | None = None, why: str = "the end") -> None:
        """Wait until one is written, or all."""
        begin_ns = time.perf_counter_ns()
        saves = list(self.pending) if save is None else [save]
        unwritten = [pending_save for pending_save in saves if pending_save.is_alive()]
        for pending_save in unwritten:
            pending_save.join()
        if unwritten:
            self.waited_ns += time.perf_counter_ns() - begin_ns
            self.waits[why] = self.waits.get(why, 0) + 1

    def raise_error(self, caller: int | None = None, save: Save | None = None) -> None:
        """Raise what the first that failed failed with, once; only of what a thread (``caller``)
        has saved, or of one save."""
        for pending_save in list(self.pending):
            if (
                pending_save.error is not None
                and (caller is None or pending_save.caller == caller)
                and (save is None or pending_save is save)
            ):
                error, pending_save.error = pending_save.error, None
                raise error

    def wait_before_saving(self, path: object) -> None:
        """torch.save begins: what came before to the same file is written first, and what failed is
        raised."""
        if self.pending:
            self._wait_for_file(path, "torch.save")
            self.raise_error(threading.get_ident())

    def watch(self, patches: Patches) -> None:
        """Make the program wait wherever it could see a file that is not written."""
        if self.on:
            return
        self.on = True
        # python has no way to take one back: it does nothing after the end
        sys.addaudithook(self._on_event)
        # python 3.10 keeps functions of os there
        accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
        for name in ("stat", "lstat"):
            wrapped = WrappedFunction(getattr(os, name), self._on_stat)
            patches.put(os, name, wrapped)
            if accessor is not None and name in vars(accessor):
                patches.put(accessor, name, wrapped)
        for name in ("_exit", "abort", "sync", "statvfs"):
            patches.put(os, name, WrappedFunction(getattr(os, name), self._on_call))
        patches.put(signal, "raise_signal", WrappedFunction(signal.raise_signal, self._on_call))

        def patch_spawn(module: ModuleType) -> None:
            if self.on:
                patches.put(
                    module, "spawnv_passfds", WrappedFunction(module.spawnv_passfds, self._on_call)
                )

        when_imported("multiprocessing.util", patch_spawn)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.pending or not self.on:
            return
        if event in _WAITS_FOR_ALL:
            self._wait_for_all(event)
        elif event in _LISTS:
            folder = self._inode("." if args[0] is None or args[0] in ("", b"") else args[0])
            self._wait_for([save for save in self._awaited() if save.folder == folder], event)
        elif event == "open" or event.startswith("os."):
            for path in args[:2]:
                self._wait_for_file(path, event, any_folder=True)

    def _on_stat(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.pending and self.on:
            caller = str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0]
            # the steps instrument notes the sizes of checkpoints
            if caller not in ("voirkit", "voirkit_instruments"):
                self._wait_for_file(
                    args[0] if args else kwargs.get("path"),
                    f"os.{name}",
                    any_folder="dir_fd" in kwargs,
                )

    def _on_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Somebody else may look, or the process ends."""
        if self.on:
            self._wait_for_all(f"os.{name}" if hasattr(os, name) else name)

    def _awaited(self) -> list[Save]:
        """What this thread would have to wait for: nothing in a thread that writes, nor in a child
        process."""
        if not self.pending or os.getpid() != self._pid:
            return []
        for save in list(self.pending):
            if not save.is_alive() and save.error is None:
                with suppress(ValueError):  # another thread was first
                    self.pending.remove(save)
        pending = list(self.pending)
        return (
            []
            if any(save.ident == threading.get_ident() for save in pending if save.is_alive())
            else pending
        )

    def _wait_for_file(self, path: object, why: str, any_folder: bool = False) -> None:
        """Wait for a file if it is one of those; a relative path may begin at a folder that is not
        known (``any_folder``)."""
        pending = self._awaited()
        if not pending:
            return
        inode = self._inode(path)
        name = None
        if any_folder and isinstance(path, (str, bytes, os.PathLike)) and not os.path.isabs(path):
            name = os.path.basename(os.fsdecode(path))
        self._wait_for(
            [save for save in pending if save.file == inode or os.path.basename(save.path) == name],
            why,
        )

    def _inode(self, path: object) -> Inode | None:
        try:
            return _inode(self.stat(path))  # type: ignore[arg-type]
        except (OSError, TypeError, ValueError):
            return None

    def _wait_for_all(self, why: str) -> None:
        if self._awaited():
            self._wait_for([None], why)

    def _wait_for(self, saves: Sequence[Save | None], why: str) -> None:
        for save in saves:
            self.wait(save, why)
            self.raise_error(threading.get_ident(), save)


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


class WrappedFunction:
    """A function of C before which something is done; equal to it, as ``os.supports_dir_fd`` and
    its like ask, and bound to no instance."""

    def __init__(
        self, function: Any, before: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
    ) -> None:
        self.__wrapped__, self._before = function, before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._before(self.__wrapped__.__name__, args, kwargs)
        return self.__wrapped__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)
