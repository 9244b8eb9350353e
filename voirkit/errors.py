"""The errors of wrong input: each says where, what is wrong, and what would be right.

Stands on the ground: imports nothing of voirkit, and nothing heavy, since every run loads it.
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
    """A user's mistake, or something missing, told in three parts.

    Args:
        what: What is wrong, in the user's words; ends with a full stop.
        where: The file and line, the option or the instrument it stands in; may be empty.
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
    """The command line is wrong: an option, its value, or the script it names."""


class ConfigurationError(VoirkitError):
    """A configuration file cannot be read, or says what voirkit does not know."""


class VoirfileError(VoirkitError):
    """A voirfile cannot be loaded, or does not hold instruments."""


class InstrumentError(VoirkitError):
    """An instrument does not have the form of one, or failed before the script started."""


class SelectorError(VoirkitError, ValueError):
    """A selector that cannot be read, or cannot match what it names."""


class RunDirectoryError(VoirkitError):
    """A run directory that cannot be used."""


class EngineError(VoirkitError):
    """The engine that computes the parts of a run (``--engine``) cannot."""


# Names come from programs, logs and other people's runs. A terminal would obey escape sequences in
# them (the window's title, the clipboard, text that was shown before), and marks of direction show
# a text in another order than it has.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str, in_line: bool = False) -> str:
    """A text as a terminal may show it: characters that the terminal would obey are written as
    python writes them, ``\\x1b``.

    Args:
        in_line: True if it is part of a line, which a line break in it would end.
    """
    text = _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return text.replace("\n", "\\n").replace("\t", " ") if in_line else text


def tell(text: str) -> None:
    """Print a message for the user on stderr, if there is one that takes it."""
    if sys.stderr is not None:
        try:
            print(f"voirkit: {visible(text)}", file=sys.stderr)
        except (OSError, ValueError):
            pass  # it is closed, or full: the summary has what matters


def say_as_it_is(text: str) -> None:
    """Show a text of several lines on stderr; what its encoding lacks is replaced."""
    if sys.stderr is not None:
        try:
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            sys.stderr.write(text.encode(encoding, PLAIN).decode(encoding))
        except (OSError, ValueError):
            pass  # it is closed, or full


# of characters that an encoding lacks: those that voirkit draws with as what is like them, others
# as "?"
PLAIN = "voirkit.plain"
_LIKE = {"█": "#", "▓": "%", "▒": "+", "░": ".", "·": "-", "µ": "u", "→": "->", "…": "..."}


def _plain(exc: UnicodeError) -> tuple[str, int]:
    if not isinstance(exc, UnicodeEncodeError):
        raise exc
    lacking = exc.object[exc.start : exc.end]
    return "".join(_LIKE.get(character, "?") for character in lacking), exc.end


codecs.register_error(PLAIN, _plain)


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates that look like the word, best first; at most ``limit`` of them.

    Case and a shared beginning count in a candidate's favour, since a user who types ``Los`` or
    ``tra`` means ``loss`` or ``train``.
    """
    from difflib import SequenceMatcher  # 3 ms: only a mistake pays for it

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
    """``Did you mean 'a' or 'b'?``, or nothing when no candidate is near."""
    near = [repr(candidate) for candidate in nearest(word, candidates)]
    return f"Did you mean {_enumeration(near, 'or')}?" if near else ""


def _enumeration(words: list[str], conjunction: str) -> str:
    """``a, b or c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def misspelt(exc: BaseException) -> str:
    """``Did you mean …?`` of a name that voirkit's own objects and modules do not have; nothing of
    all else."""
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


# One part of a report that fails costs that part, with one line, never the report. What a run
# recorded may be damaged, of another version, or like nothing that was foreseen.


class PartFailures:
    """The parts of a report that failed, by the reason."""

    def __init__(self) -> None:
        # in the order of the failures. A damaged trace fails every part that reads it: it is one
        # line.
        self.parts_by_reason: dict[str, list[str]] = {}

    def attempt(self, part: str, compute: Callable[[], T], default: T) -> T:
        """Compute a part of the report; its default takes its place if it fails.

        Raises:
            BrokenPipeError: Whoever reads the report has had enough of it.
            EngineError: Nothing can be computed.
        """
        try:
            return compute()
        except (BrokenPipeError, EngineError):
            raise
        except Exception as exc:
            # A damaged file, records that are like no known ones, an error of ours: the rest is
            # still true.
            self.add(part, exc)
            return default

    def add(self, part: str, exc: Exception) -> None:
        """Note that a part failed."""
        parts = self.parts_by_reason.setdefault(reason(exc), [])
        if part not in parts:
            parts.append(part)

    def __contains__(self, part: str) -> bool:
        return any(part in parts for parts in self.parts_by_reason.values())

    def lines(self) -> list[str]:
        """A line for each reason."""
        return [
            left_out(_enumeration(parts, "and"), why) for why, parts in self.parts_by_reason.items()
        ]


def left_out(part: str, why: str) -> str:
    """The line that stands for a part."""
    return f"left out of the report, since it failed: {part} ({why})."


def reason(exc: Exception) -> str:
    """An exception in one line; of voirkit's own errors where and what, of others the type too,
    which says more than some messages."""
    text = str(exc)
    if isinstance(exc, VoirkitError) and exc.where:
        text = f"{exc.where}: {exc.what}"
    first_line = text.strip().partition("\n")[0]
    message = first_line.rstrip(".")[:_LONGEST]
    if isinstance(exc, VoirkitError):
        return message
    kind = type(exc).__name__
    return f"{kind}: {message}" if message else kind


_LONGEST = 200  # characters: DuckDB's errors may hold a whole query
