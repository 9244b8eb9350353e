"""``--what-if checkpoint-async``: ``torch.save`` comes back when tensors are copied and all else is pickled; a thread writes the file.

Nothing is pickled in another way: torch.save runs as it is, up to the object that it writes its records to (torch 2.1 to 2.15: the class
``torch.serialization._open_zipfile_writer_file``). That one keeps the records, tensors as copies, and the thread hands them on in the same
order: the file is the same, byte for byte. What torch.save raises about a path it raises where it is called.

What is not a path (open files, buffers) or is written in the old format is written as ever. So is everything in child processes and in runs
of several ranks, where another process may read the file as soon as torch.save is over.
"""

from __future__ import annotations

import io
import os
import stat

from voirkit.imports import when_imported
from voirkit_instruments.what_if.record_async_copies import Held, Spare, room
from voirkit_instruments.what_if.record_async_looks import Looks
from voirkit_instruments.what_if.record_async_saves import Save, Saves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit.intercept import Patches
    from voirkit_instruments.what_if.record_changes import Ceiling

_OPENER = "_open_zipfile_writer_file"
_OPTIONS = ("get_crc32_options", "_get_storage_alignment")  # what torch gives to its writer, as far as it has them


class CheckpointAsync:
    """The change, for one process.

    Args:
        argument: There is none.
    """

    exact = True

    def __init__(self, argument: str | None) -> None:
        if argument is not None:
            raise ValueError("checkpoint-async takes no argument.")
        self._saves = Saves()
        self._looks = Looks(self._saves)
        self._spare = Spare()
        self._patches: Patches | None = None
        self._pid = os.getpid()
        self._here: dict[str, int] = {}  # why a save was not handed to the thread: how many
        self._copied, self._bytes, self._copying_ns = 0, 0, 0
        self._off = "torch was not imported."

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """All that is spent in torch.save; the copies stay."""
        from voirkit_instruments.what_if.record_changes import ceiling_of_saving

        return ceiling_of_saving(summary)

    def install(self, patches: Patches) -> None:
        """Make the change as soon as torch is there."""
        self._patches, self._pid = patches, os.getpid()
        when_imported("torch", self._put)  # and all of it: its writer can not be tried before

    def _put(self, torch: ModuleType) -> None:
        module = torch.serialization
        patches = self._patches
        if patches is None:  # the work is over
            return
        options = [function for name in _OPTIONS if (function := getattr(module, name, None)) is not None]
        try:
            torch._C.PyTorchFileWriter(io.BytesIO(), *[option() for option in options]).write_end_of_file()
            opener: Any = getattr(module, _OPENER)
            begin, leave = opener.__init__, vars(opener)["__exit__"]
        except Exception as exc:
            self._off = f"this torch writes files in a way that is not known ({type(exc).__name__}: {exc})."
            return

        def opened(self_: Any, name: Any, *more: Any, **kwargs: Any) -> None:
            self._looks.at_save(name)
            held = self._opened(name, options) if not more and not kwargs else None
            if held is None:
                begin(self_, name, *more, **kwargs)
            else:
                self_.file_like, self_.file_stream, self_.name = held, None, name

        def left(self_: Any, *error: Any) -> Any:
            if isinstance(self_.file_like, Held):
                return self._left(self_, leave, error)
            return leave(self_, *error)

        for name, function in (("__init__", opened), ("__exit__", left)):
            patches.put(opener, name, function)
        self._looks.put(patches)
        self._off = ""

    # one call of torch.save

    def _opened(self, name: Any, options: Sequence[Callable[[], Any]]) -> Held | None:
        """Open the file as torch would, but for what is in it: to let go of 100 MB takes 60 ms, which are the thread's.

        Returns:
            What keeps the records; None if torch is to open it by itself, and to say what is wrong with it.
        """
        import torch

        why = self._why_not(name)
        if not why:
            try:
                # Links that lead to the folder may lead elsewhere by then; the file's own name is in it, as torch writes it there.
                folder, own = os.path.split(name)
                path = os.path.join(os.path.realpath(folder, strict=True), own)
                path.encode()
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (OSError, ValueError):
                why = "to what can not be opened"
        if why:
            self._here[why] = self._here.get(why, 0) + 1
            return None
        given = [option() for option in options]
        found = path, os.fstat(file), self._looks.stat(os.path.dirname(path))

        def begin() -> Any:
            try:
                os.ftruncate(file, 0)
            finally:
                os.close(file)
            return torch._C.PyTorchFileWriter(path, *given)

        return Held(begin, room(), self._spare, found)

    def _why_not(self, path: str) -> str:
        """Why a save is to be made here and now; empty if it need not."""
        if os.getpid() != self._pid:
            return "in a child process"
        if self._patches is None:
            return "after the end"
        if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
            return "in one of several ranks"
        if not path.isascii():
            return "to a path that is not ASCII"  # torch lets python open it
        if not os.path.basename(path):
            return "to what is no regular file"
        try:
            return "" if stat.S_ISREG(self._looks.stat(path).st_mode) else "to what is no regular file"
        except (OSError, ValueError):
            return ""

    def _left(self, opener: Any, leave: Any, error: tuple[Any, ...]) -> Any:
        held = opener.file_like
        why = held.why_through or ("that failed" if error[0] is not None else "")
        if why:
            self._here[why] = self._here.get(why, 0) + 1
            return _end(held, opener, leave, error)
        self._spare.clear()
        self._copied += 1
        self._bytes += held.bytes
        self._copying_ns += held.copying_ns
        path, found, folder = held.found
        self._saves.hand_over(Save(path, found, folder, lambda: _end(held, opener, leave, (None, None, None))))
        return None

    # the end

    def end(self) -> None:
        """Wait for what is being written.

        Raises:
            Exception: What writing failed with, if the program has not met it.
        """
        self._patches = None
        if os.getpid() == self._pid:
            self._saves.settle()
            self._spare.clear()
        self._looks.end()
        self._saves.raise_any()

    def facts(self) -> dict[str, Any]:
        """``touched``: saves that a thread wrote; ``bytes`` of them; ``synchronous``: why others were written in place, how many;
        seconds of the program: ``copying_s``, ``waiting_s``, and ``waits``: for what it waited, how many times.
        """
        facts: dict[str, Any] = {
            "touched": self._copied, "bytes": self._bytes, "synchronous": dict(self._here), "copying_s": self._copying_ns / 1e9,
            "waiting_s": self._saves.waited_ns / 1e9, "waits": dict(self._saves.waits),
        }  # fmt: skip
        if self._here:
            facts["because"] = "torch.save wrote as ever " + ", ".join(f"{n} x {why}" for why, n in self._here.items()) + "."
        elif not self._copied:
            facts["because"] = self._off or "torch.save wrote no file by its path."
        return facts


def _end(held: Held, opener: Any, leave: Any, error: tuple[Any, ...]) -> Any:
    """Write what is held, and end the file, as torch's own ``with`` would have."""
    opener.file_like = writer = held.writer()
    try:
        held.go_through(writer)
    except BaseException as exc:
        leave(opener, type(exc), exc, exc.__traceback__)
        raise
    return leave(opener, *error)
