"""What voirkit says when a user's input is wrong: where, what, and what would be right.

Stands on the ground: imports nothing of voirkit, and nothing heavy, since every run loads it.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable

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
        self.what, self.where, self.next = what, where, next

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


def tell(text: str) -> None:
    """Say something to the user on stderr, if there is one that takes it."""
    if sys.stderr is not None:
        try:
            print(f"voirkit: {text}", file=sys.stderr)
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


PLAIN = "voirkit.plain"  # of characters that an encoding lacks: those that voirkit draws with as what is like them, others as "?"
_LIKE = {"█": "#", "▓": "%", "▒": "+", "░": ".", "·": "-", "µ": "u", "→": "->", "…": "..."}


def _plain(exc: UnicodeError) -> tuple[str, int]:
    if not isinstance(exc, UnicodeEncodeError):
        raise exc
    return "".join(_LIKE.get(character, "?") for character in exc.object[exc.start : exc.end]), exc.end


codecs.register_error(PLAIN, _plain)


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates that look like the word, best first; at most ``limit`` of them.

    Case and a shared beginning count in a candidate's favour, since a user who types ``Los`` or ``tra`` means ``loss`` or ``train``.
    """
    from difflib import SequenceMatcher  # 3 ms: only a mistake pays for it

    def likeness(candidate: str) -> float:
        a, b = word.lower(), candidate.lower()
        return SequenceMatcher(None, a, b).ratio() + (0.2 if a and (b.startswith(a) or a.startswith(b)) else 0.0)

    scored = sorted(((likeness(c), c) for c in dict.fromkeys(candidates)), key=lambda pair: (-pair[0], pair[1]))
    return [c for score, c in scored if score >= 0.6][:limit]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """``Did you mean 'a' or 'b'?``, or nothing when no candidate is near."""
    near = [repr(c) for c in nearest(word, candidates)]
    if not near:
        return ""
    return f"Did you mean {' or '.join([', '.join(near[:-1]), near[-1]] if len(near) > 1 else near)}?"


def misspelt(exc: BaseException) -> str:
    """``Did you mean …?`` of a name that voirkit's own objects and modules do not have; nothing of all else."""
    package = sys.modules.get("voirkit")
    if isinstance(exc, AttributeError) and (exc.obj is package or type(exc.obj).__module__.partition(".")[0] == "voirkit"):
        names: Iterable[str] = package.__all__ if exc.obj is package and package is not None else dir(exc.obj)
        word = exc.name
    elif isinstance(exc, ImportError) and exc.name == "voirkit" and "cannot import name" in str(exc):
        names = package.__all__ if package is not None else ()
        word = str(exc).split("'")[1]
    else:
        return ""
    return did_you_mean(word or "", (name for name in names if not name.startswith("_")))
