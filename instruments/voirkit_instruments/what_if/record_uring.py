"""``--what-if io-uring-read``: the files of a batch are read into memory by one batch of io_uring requests, before the program reads them.

Which files those are is learned in the first epoch, as for read-ahead; the program opens and reads them as ever, out of the page cache.
Offered to be measured: ``read-ahead`` does the same without a ring.
"""

from __future__ import annotations

import os
import threading

from voirkit_instruments.what_if.record_read_ahead import MOST, ReadAhead, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from voirkit.intercept import Patches
    from voirkit_instruments.what_if.record_changes import Ceiling
    from voirkit_instruments.what_if.record_ring import Ring


_AT_ONCE = 64  # files that are open: the limit of descriptors is the program's


class IoUringRead(ReadAhead):
    """The change, in the main process and in the workers that are forked from it."""

    name = "io-uring-read"
    far = False  # what it asks for it waits for

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._ring: tuple[int, Ring] | None = None  # of which process
        self._free = threading.Lock()
        self._refused = ""

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """What the program waits for batches; nothing where the kernel refuses."""
        from voirkit_instruments.what_if.record_changes import Ceiling

        self._refused = refused()
        return Ceiling(0.0, self._refused) if self._refused else super().ceiling(summary)

    def install(self, patches: Patches) -> None:
        """Make the change as soon as the loader is there, if there is io_uring."""
        self._refused = refused()
        if not self._refused:
            super().install(patches)

    def bring(self, paths: Iterable[str]) -> int:
        """Read files into memory, and nowhere else; how many. As read-ahead does it while the ring is another thread's, or if it fails."""
        those = list(paths)
        if not self._free.acquire(blocking=False):
            return super().bring(those)
        try:
            return sum(self._read(those[at : at + _AT_ONCE]) for at in range(0, len(those), _AT_ONCE))
        except OSError:
            return super().bring(those)
        finally:
            self._free.release()

    def _read(self, paths: Sequence[str]) -> int:
        from voirkit_instruments.what_if.record_ring import Ring

        if self._ring is None or self._ring[0] != os.getpid():
            self._close()
            self._ring = (os.getpid(), Ring())
        files = [file for path in paths if (file := opened(path)) is not None]
        try:
            self._ring[1].read([(file, min(os.fstat(file).st_size, MOST)) for file in files])
        finally:
            for file in files:
                os.close(file)
        return len(files)

    def _close(self) -> None:
        if self._ring is not None:
            self._ring[1].close()
            self._ring = None

    def end(self) -> None:
        """Forget all."""
        super().end()
        with self._free:
            self._close()

    def facts(self) -> dict[str, Any]:
        """As of read-ahead; ``touched``: files that were read through the ring."""
        return {"touched": 0, "because": self._refused} if self._refused else super().facts()


def refused() -> str:
    """Why there is no io_uring here; empty if there is."""
    from voirkit_instruments.what_if.record_ring import Ring

    try:
        Ring().close()
    except (OSError, AttributeError, ValueError) as exc:
        setting = "/proc/sys/kernel/io_uring_disabled"
        try:
            with open(setting, encoding="ascii") as file:
                value = file.read().strip()
        except OSError:
            value = "0"
        said = (
            f" {setting} is {value}."
            if value != "0"
            else " Containers often forbid it (seccomp)."
            if isinstance(exc, PermissionError)
            else ""
        )
        return f"the kernel refuses io_uring ({exc}).{said}"
    return ""
