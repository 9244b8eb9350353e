"""When the program can see whether a file has been written: it is made to wait then.

Python tells of most of it by audit events: files opened, renamed, linked, removed, folders listed, processes started or signalled,
connections made. What has no event (``os.stat``, ``os._exit`` and their like) is wrapped. A file is known by its inode, whatever it is
called. While nothing is being written each event costs one look at an empty list.

Not seen: libraries that open files by themselves in C, processes that are there already, a process that is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from voirkit.imports import when_imported
from voirkit_instruments.what_if.record_async_saves import Save, Saves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from voirkit.intercept import Patches

# Events: which of their arguments are files or folders. Checked with python 3.10 to 3.13.
_FILES = {
    "open": (0,), "os.remove": (0,), "os.link": (0, 1), "os.truncate": (0,), "os.utime": (0,), "os.chmod": (0,),
    "os.chown": (0,), "os.getxattr": (0,), "os.setxattr": (0,), "os.listxattr": (0,),
}  # fmt: skip
_FOLDERS = {"os.listdir", "os.scandir"}
_OTHERS = {
    "os.rename", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.killpg",
    "signal.pthread_kill", "subprocess.Popen", "pty.spawn", "socket.connect", "socket.sendto",
}  # fmt: skip
_LOOKS = ("stat", "lstat")
_ENDS = ("_exit", "abort", "sync", "statvfs")


class Looks:
    """What makes the program wait.

    Args:
        saves: For what.

    Attributes:
        stat: ``os.stat`` itself.
    """

    def __init__(self, saves: Saves) -> None:
        self._saves = saves
        self.stat = os.stat
        self._on = False

    def put(self, patches: Patches) -> None:
        """Begin."""
        if self._on:
            return
        self._on = True
        sys.addaudithook(self._event)  # python has no way to take one back: it does nothing after the end
        accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)  # python 3.10 keeps functions of os there
        for name in _LOOKS:
            wrapped = Wrapped(getattr(os, name), self._looked)
            patches.put(os, name, wrapped)
            if accessor is not None and name in vars(accessor):
                patches.put(accessor, name, wrapped)
        for name in _ENDS:
            patches.put(os, name, Wrapped(getattr(os, name), self._all))
        patches.put(signal, "raise_signal", Wrapped(signal.raise_signal, self._all))

        def started(module: ModuleType) -> None:
            if self._on:
                patches.put(module, "spawnv_passfds", Wrapped(module.spawnv_passfds, self._all))

        when_imported("multiprocessing.util", started)

    def end(self) -> None:
        """Make nobody wait any more."""
        self._on = False

    def at_save(self, path: object) -> None:
        """torch.save begins: what came before to the same file is written first, and what failed is told."""
        if self._saves.pending:
            self._file(path, "torch.save")
            self._saves.raise_any(threading.get_ident())

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._saves.pending or not self._on:
            return
        if event in _FILES:
            for i in _FILES[event]:
                self._file(args[i], event, elsewhere=True)
        elif event in _FOLDERS:
            self._folder(args[0], event)
        elif event in _OTHERS:
            self._all(event)

    def _looked(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function of os is called that says what a file is like."""
        if not self._saves.pending or not self._on or self._is_ours():
            return
        self._file(args[0] if args else kwargs.get("path"), f"os.{name}", kwargs.get("dir_fd"))

    def _is_ours(self) -> bool:
        """Whether voirkit itself asks: it tells the size of checkpoints (steps), and must wait for none."""
        frame = sys._getframe(3)
        return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("voirkit", "voirkit_instruments")

    def _file(self, path: object, why: str, at: int | None = None, elsewhere: bool = False) -> None:
        """Wait for a file if it is one of those.

        Args:
            path: Its path, or a descriptor.
            why: Who looks.
            at: The descriptor of the folder that a relative path begins at; None for the current one.
            elsewhere: It may begin at another one, which is not known.
        """
        if not self._saves.are_awaited():
            return
        those = self._those(path, at, lambda save: save.file)
        if elsewhere and isinstance(path, (str, bytes, os.PathLike)) and not os.path.isabs(path):
            name = os.path.basename(os.fsdecode(path))
            those += [save for save in self._saves.pending if os.path.basename(save.path) == name and save not in those]
        for save in those:
            self._wait(why, save)

    def _folder(self, path: object, why: str) -> None:
        if not self._saves.are_awaited():
            return
        for save in self._those("." if path is None or path in ("", b"") else path, None, lambda save: save.folder):
            self._wait(why, save)

    def _those(self, path: object, at: int | None, key: Callable[[Save], tuple[int, int]]) -> list[Save]:
        """Of what is pending, what a path leads to."""
        try:
            found = self.stat(path, dir_fd=at)  # type: ignore[arg-type]
        except (OSError, TypeError, ValueError):
            return []
        return [save for save in self._saves.pending if key(save) == (found.st_dev, found.st_ino)]

    def _all(self, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Somebody else may look, or the process ends."""
        if self._on and self._saves.are_awaited():
            self._wait(name if "." in name else f"os.{name}" if hasattr(os, name) else name)

    def _wait(self, why: str, save: Save | None = None) -> None:
        self._saves.settle(save, why)
        self._saves.raise_any(threading.get_ident(), save)


class Wrapped:
    """A function of C before which something is done; equal to it, as ``os.supports_dir_fd`` and its like ask, and bound to no instance."""

    def __init__(self, function: Any, before: Callable[[str, tuple[Any, ...], dict[str, Any]], None]) -> None:
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
