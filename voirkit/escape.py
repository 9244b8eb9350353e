"""Data hidden in terminal output, in escape sequences that terminals ignore.

Each text that is written becomes one sequence, and a decoder extracts the text again.  The format
is voir's: ``ESC [ <digits> z``, where the digits are the text's UTF-8 bytes in base 16, written
with the sixteen characters ``0`` to ``?`` that a control sequence may hold.  The decoder must never
lose, alter or reorder a byte outside of such sequences: colours, cursor moves and broken UTF-8 come
out as they went in.
"""

from __future__ import annotations

import re
from binascii import hexlify, unhexlify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class TextStream(Protocol):
        """Stream that a :class:`SmuggleWriter` writes to, such as ``sys.stdout``."""

        def write(self, text: str, /) -> object: ...
        def flush(self) -> object: ...


DEFAULT_LIMIT_BYTES = 16 << 20
"""Maximum size of an unfinished sequence: a longer one becomes plain output. A write of 8 MiB of
text fits."""

_TO_WIRE = bytes.maketrans(b"0123456789abcdef", b"0123456789:;<=>?")
_FROM_WIRE = bytes.maketrans(b"0123456789:;<=>?", b"0123456789abcdef")

_ESCAPE = b"\x1b"
_SEQUENCE = re.compile(rb"\x1b\[([0-?]*)z")
_OPEN_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*)?\Z")
_DIGITS = re.compile(rb"[0-?]*")


def encode_as_escape_sequence(text: str) -> str:
    """Return the escape sequence that carries a text, ASCII only and invisible on a terminal.

    Lone surrogates survive (``surrogatepass``): a log must not fail over the text it carries.
    """
    digits = hexlify(text.encode("utf-8", "surrogatepass")).translate(_TO_WIRE)
    return f"\x1b[{digits.decode('ascii')}z"


def decode_escape_sequence(sequence: str) -> str:
    """Return the text of a sequence that :func:`encode_as_escape_sequence` made.

    Raises:
        ValueError: The string is not exactly one such sequence, or its bytes are not UTF-8.
    """
    match = _SEQUENCE.fullmatch(sequence.encode("utf-8", "surrogatepass"))
    if match is None or len(match[1]) % 2:
        raise ValueError(f"not an escape sequence that carries text: {sequence[:60]!r}")
    return unhexlify(match[1].translate(_FROM_WIRE)).decode("utf-8", "surrogatepass")


class SmuggleWriter:
    """A text stream that hides the text written to it in another stream.

    Each write becomes one escape sequence.  There is no ``close``: the other stream, usually
    standard output, has other users.

    Args:
        stream: The stream to hide the data in, e.g. ``sys.stdout``.
    """

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text in hidden form; returns its length, as text streams do."""
        self.stream.write(encode_as_escape_sequence(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream in which the text is hidden."""
        self.stream.flush()


class Decoder:
    """Splits a byte stream that comes in chunks, cut anywhere, into plain output and hidden data.

    An escape sequence that may continue in the next chunk is held back; everything else is returned
    at once.  Compiled regular expressions do the work, a chunk at a time.

    Args:
        limit: Maximum bytes of an unfinished sequence to hold back; a longer one becomes plain
            output.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Split the next chunk of the stream into plain output and hidden data.

        Returns:
            The plain output and the hidden data, each in the order in which it was written.
        """
        pieces = self.pieces(chunk)
        return b"".join([p for hidden, p in pieces if not hidden]), b"".join(
            [p for hidden, p in pieces if hidden]
        )

    def pieces(self, chunk: bytes) -> list[tuple[bool, bytes]]:
        """Split the next chunk like :meth:`feed`, and keep the order between plain output and
        hidden data.

        Returns:
            ``(hidden, bytes)`` in the order of the stream; a hidden piece is one write.
        """
        if self._held:
            if self._held != [_ESCAPE]:
                # Only the new bytes are examined, so that a sequence of many chunks costs no more
                # than its length.
                digits = _DIGITS.match(chunk)
                if digits is None or digits.end() == len(chunk):
                    return self._hold_back(chunk)
            chunk = self.flush() + chunk
        last_escape = chunk.rfind(_ESCAPE)
        if last_escape < 0:
            return [(False, chunk)] if chunk else []
        given_up: list[tuple[bool, bytes]] = []
        if _OPEN_SEQUENCE.match(chunk, last_escape):
            given_up = self._hold_back(chunk[last_escape:])
            chunk = chunk[:last_escape]
        pieces: list[tuple[bool, bytes]] = []
        # The pattern has one group, so split() alternates between plain output and digits.
        for index, part in enumerate(_SEQUENCE.split(chunk)):
            if index % 2 == 0:
                if part:
                    pieces.append((False, part))
            elif len(part) % 2:
                # an odd number of digits: another program's sequence, passed on as it came
                pieces.append((False, b"\x1b[" + part + b"z"))
            else:
                pieces.append((True, unhexlify(part.translate(_FROM_WIRE))))
        return pieces + given_up

    def flush(self) -> bytes:
        """Return the bytes that are held back, as plain output; to be called when the stream has
        ended, so that the sequence can no longer continue."""
        sequence = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return sequence

    def _hold_back(self, part: bytes) -> list[tuple[bool, bytes]]:
        self._held.append(part)
        self._held_bytes += len(part)
        return [(False, self.flush())] if self._held_bytes > self._limit else []
