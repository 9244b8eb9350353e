"""Errors about wrong input: each says where, what is wrong, and what would be right.

This module imports nothing of voirkit and nothing heavy, since every run loads it.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

EXIT_WRONG_INPUT = 2
EXIT_CHECK_FAILED = 3


class VoirkitError(Exception):
    """A user's mistake, or something missing, described in three parts.

    Args:
        what: What is wrong, in the user's words; ends with a full stop.
        where: Place of the error: file and line, option or instrument; may be empty.
        next: What would be right, or what to do now; may be empty, may have several lines.

    ``str(error)`` is ``where: what`` and, on lines of their own, ``next``.
    """

    exit_code = EXIT_WRONG_INPUT

    def __init__(self, what: str, *, where: str = "", next: str = "") -> None:
        super().__init__(what, where, next)
        self.what = what
        self.where = where
        self.next = next

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), where=self.where, next=self.next), (self.what,)

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        return "\n  ".join([first, *self.next.splitlines()])


class CommandLineError(VoirkitError):
    """A mistake in the command line: an option, its value, or the script that it names."""


class ConfigurationError(VoirkitError):
    """A configuration file that cannot be read, or has entries that voirkit does not know."""


class VoirfileError(VoirkitError):
    """A voirfile that cannot be loaded, or does not define instruments."""


class InstrumentError(VoirkitError):
    """An instrument that is malformed, or that failed before the script started."""


class SelectorError(VoirkitError, ValueError):
    """A probe selector that cannot be parsed, or whose names match nothing."""


class RunDirectoryError(VoirkitError):
    """A run directory that cannot be used."""


class EngineError(VoirkitError):
    """The engine that computes the parts of a run (``--engine``) has failed."""


# Characters that ``visible`` escapes. Texts come from programs, logs and other people's runs. A
# terminal would obey escape sequences in them, which can set the window's title or the clipboard,
# or change what was shown before. Bidirectional marks would show the text in another order.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str, in_line: bool = False) -> str:
    """Return a text with control characters and bidirectional marks escaped as Python does, for
    instance ``\\x1b``.

    Args:
        in_line: True if the text is part of a line: line breaks and tabs are replaced too.
    """
    text = _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return text.replace("\n", "\\n").replace("\t", " ") if in_line else text


def tell(text: str) -> None:
    """Print a message for the user on stderr; do nothing if stderr cannot be written to."""
    if sys.stderr is not None:
        try:
            print(f"voirkit: {visible(text)}", file=sys.stderr)
        except (OSError, ValueError):
            pass  # stderr is closed, or its disk is full: the summary has what matters


def say_as_it_is(text: str) -> None:
    """Print a text of several lines on stderr; characters that its encoding lacks are replaced."""
    if sys.stderr is not None:
        try:
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            sys.stderr.write(text.encode(encoding, PLAIN).decode(encoding))
        except (OSError, ValueError):
            pass  # stderr is closed, or its disk is full


# The codec error handler for characters that an encoding lacks: characters that voirkit draws with
# become similar ASCII characters, all others "?".
PLAIN = "voirkit.plain"
_LIKE = {"█": "#", "▓": "%", "▒": "+", "░": ".", "·": "-", "µ": "u", "→": "->", "…": "..."}


def _plain(exc: UnicodeError) -> tuple[str, int]:
    if not isinstance(exc, UnicodeEncodeError):
        raise exc
    lacking = exc.object[exc.start : exc.end]
    return "".join(_LIKE.get(character, "?") for character in lacking), exc.end


codecs.register_error(PLAIN, _plain)


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Return the candidates that resemble the word, best first; at most ``limit`` of them.

    Case is ignored and a shared beginning counts in a candidate's favour, since a user who types
    ``Los`` or ``tra`` means ``loss`` or ``train``.
    """
    from difflib import SequenceMatcher  # the import takes 3 ms: only after a mistake

    def likeness(candidate: str) -> float:
        a = word.lower()
        b = candidate.lower()
        ratio = SequenceMatcher(None, a, b).ratio()
        if a and (b.startswith(a) or a.startswith(b)):
            ratio += 0.2
        return ratio

    scored = [(likeness(candidate), candidate) for candidate in dict.fromkeys(candidates)]
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    return [candidate for score, candidate in scored if score >= 0.6][:limit]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``Did you mean 'a' or 'b'?``, or an empty string if no candidate is similar."""
    near = [repr(candidate) for candidate in nearest(word, candidates)]
    return f"Did you mean {_enumeration(near, 'or')}?" if near else ""


def _enumeration(words: list[str], conjunction: str) -> str:
    """Join words like ``a, b or c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def misspelt(exc: BaseException) -> str:
    """Return ``Did you mean …?`` for a name that voirkit's own objects and modules do not have.

    Return an empty string for any other exception.
    """
    package = sys.modules.get("voirkit")
    public: Iterable[str] = () if package is None else package.__all__
    if isinstance(exc, AttributeError):
        owner = exc.obj
        if owner is not package and type(owner).__module__.partition(".")[0] != "voirkit":
            return ""
        names = dir(owner) if owner is not package or package is None else public
        word = exc.name
    elif isinstance(exc, ImportError):
        if exc.name != "voirkit" or "cannot import name" not in str(exc):
            return ""
        names = public
        word = str(exc).split("'")[1]
    else:
        return ""
    return did_you_mean(word or "", (name for name in names if not name.startswith("_")))


# If one part of a report fails, only that part is left out, and one line says so. The data of a run
# may be damaged, of another version, or unlike anything foreseen.


class PartFailures:
    """The parts of a report that failed, grouped by reason."""

    def __init__(self) -> None:
        # Reason -> the parts that failed for it, in the order of the failures. A damaged trace
        # makes all parts that read it fail for one reason, which is then reported in one line.
        self.parts_by_reason: dict[str, list[str]] = {}

    def attempt(self, part: str, compute: Callable[[], T], default: T) -> T:
        """Compute and return a part of the report, or the default if the computation fails.

        Raises:
            BrokenPipeError: The reader of the report has closed the pipe.
            EngineError: The engine cannot compute any part.
        """
        try:
            return compute()
        except (BrokenPipeError, EngineError):
            raise
        except Exception as exc:
            # A damaged file, records of an unknown form, or a bug in voirkit: the other parts are
            # still right.
            self.add(part, exc)
            return default

    def add(self, part: str, exc: Exception) -> None:
        """Record that a part failed."""
        parts = self.parts_by_reason.setdefault(reason(exc), [])
        if part not in parts:
            parts.append(part)

    def __contains__(self, part: str) -> bool:
        return any(part in parts for parts in self.parts_by_reason.values())

    def lines(self) -> list[str]:
        """Return one line for each reason."""
        return [
            left_out(_enumeration(parts, "and"), why) for why, parts in self.parts_by_reason.items()
        ]


def left_out(part: str, why: str) -> str:
    """Return the line that is shown in place of a failed part."""
    return f"left out of the report, since it failed: {part} ({why})."


def reason(exc: Exception) -> str:
    """Return an exception as one line.

    An error of voirkit is shown as where and what. Any other exception is shown with its type,
    which says more than some messages.
    """
    text = str(exc)
    if isinstance(exc, VoirkitError) and exc.where:
        text = f"{exc.where}: {exc.what}"
    first_line = text.strip().partition("\n")[0]
    message = first_line.rstrip(".")[:_LONGEST]
    if isinstance(exc, VoirkitError):
        return message
    kind = type(exc).__name__
    return f"{kind}: {message}" if message else kind


_LONGEST = 200  # maximum characters of a reason: DuckDB's errors may hold a whole query
