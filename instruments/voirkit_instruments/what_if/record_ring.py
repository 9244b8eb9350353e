"""A ring of io_uring by ctypes, for reading many files at once into the kernel's page cache. Linux 5.6 and later.

What is read is thrown away: all requests share one piece of memory. A ring belongs to the thread and the process that made it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SETUP, _ENTER = 425, 426  # the same on all processors but alpha
_GETEVENTS = 1
_READ = 22
_SQES = 0x10000000  # where a ring's requests are mapped
_REQUEST = struct.Struct("<BBHiQQIIQ24x")
_ANSWER = struct.Struct("<QiI")
_PIECE = 256 << 10  # bytes of a request


class Ring:
    """One ring.

    Args:
        entries: Requests that are made at once; a power of two.

    Raises:
        OSError: The kernel refuses: ENOSYS (too old, or off), EPERM (forbidden), ENOMEM (a limit).
    """

    def __init__(self, entries: int = 64) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        parameters = ctypes.create_string_buffer(120)
        self._file = self._asked(_SETUP, entries, parameters)
        os.set_inheritable(self._file, False)
        n, answers = struct.unpack_from("<II", parameters, 0)
        self._entries: int = n
        self._head, self._tail, self._mask, _, _, _, array = struct.unpack_from("<7I", parameters, 40)
        self._answer_head, self._answer_tail, self._answer_mask, _, _, self._answers = struct.unpack_from("<6I", parameters, 80)
        ring = max(array + 4 * n, self._answers + _ANSWER.size * answers)
        try:
            self._ring = mmap.mmap(self._file, ring)  # one for both queues: IORING_FEAT_SINGLE_MMAP, Linux 5.4
            self._requests = mmap.mmap(self._file, _REQUEST.size * n, offset=_SQES)
        except OSError:
            os.close(self._file)
            raise
        struct.pack_into(f"<{n}I", self._ring, array, *range(n))
        self._memory = mmap.mmap(-1, _PIECE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _asked(self, number: int, *args: object) -> int:
        while True:
            answer: int = self._call(number, *args)
            if answer >= 0:
                return answer
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _number(self, offset: int) -> int:
        found: int = struct.unpack_from("<I", self._ring, offset)[0]
        return found

    def read(self, files: Sequence[tuple[int, int]]) -> int:
        """Read files from their beginnings, and wait for that.

        Args:
            files: A descriptor and a number of bytes each.

        Returns:
            Bytes that were read. A file that can not be read is passed over.
        """
        pieces = [(file, begin, min(_PIECE, size - begin)) for file, size in files for begin in range(0, size, _PIECE)]
        done = 0
        for i in range(0, len(pieces), self._entries):
            done += self._read(pieces[i : i + self._entries])
        return done

    def _read(self, pieces: Sequence[tuple[int, int, int]]) -> int:
        tail, mask = self._number(self._tail), self._number(self._mask)
        for file, begin, size in pieces:
            at = (tail & mask) * _REQUEST.size
            _REQUEST.pack_into(self._requests, at, _READ, 0, 0, file, begin, self._address, size, 0, 0)
            tail = (tail + 1) & 0xFFFFFFFF
        struct.pack_into("<I", self._ring, self._tail, tail)
        left, done = len(pieces), 0
        unsent = len(pieces)
        while left:
            unsent -= self._asked(_ENTER, self._file, unsent, left, _GETEVENTS, None, 0)
            head, end, mask = self._number(self._answer_head), self._number(self._answer_tail), self._number(self._answer_mask)
            while head != end:
                _, result, _ = _ANSWER.unpack_from(self._ring, self._answers + (head & mask) * _ANSWER.size)
                done += max(result, 0)
                left -= 1
                head = (head + 1) & 0xFFFFFFFF
            struct.pack_into("<I", self._ring, self._answer_head, head)
        return done

    def close(self) -> None:
        """Give the ring back."""
        self._ring.close()
        self._requests.close()
        os.close(self._file)
