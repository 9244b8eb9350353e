"""Splitting of a command line into voirkit's own options, the script or module, and the script's
arguments.

Options are known only from argparse's table. No word after the script is examined. Every run
imports this module.
"""

from __future__ import annotations

import argparse
import os
from argparse import ONE_OR_MORE, OPTIONAL, PARSER, REMAINDER, ZERO_OR_MORE

from voirkit.errors import CommandLineError, did_you_mean, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeAlias

    # an option on the command line: its action, its name, its values
    Given: TypeAlias = tuple[Action, str, list[str]]
    Target: TypeAlias = tuple[str | None, str | None, list[str]]  # script, module, arguments

SYNTAX = "voirkit [options] SCRIPT [script arguments]"
MODULE_SYNTAX = "voirkit [options] -m MODULE[:FUNCTION] [arguments]"


class Words:
    """The words of one command line, and the options that are known so far.

    Args:
        words: The command line, without the program's name.
        options: Each option's name, with its dashes, and its argparse action.
        final: True if these are all options. Otherwise the error for an unknown option suggests no
            similar names, which would take 3 ms.
    """

    def __init__(
        self, words: Iterable[str], options: Mapping[str, Action], final: bool = True
    ) -> None:
        self.words = list(words)
        self.options = options
        self.final = final

    def read(self) -> tuple[list[Given], int]:
        """Return the options before SCRIPT, and the index of the first word after them. No word
        after ``--help`` is read."""
        given: list[Given] = []
        i = 0
        while i < len(self.words) and self._is_option(i) and not self._is_module_option(i):
            more, i = self._read_option(i)
            given += more
            if asks_for_help(more) and not getattr(more[-1][0], "reads_on", False):
                break
        return given, i

    def target(self, start: int) -> Target:
        """Return (script, module, arguments), from the index at which voirkit's own words end."""
        words = self.words
        if words[start : start + 1] == ["--"]:
            start += 1
        elif start < len(words) and self._is_module_option(start):
            name = self._module(start)
            if not name or _has_dash(name):
                raise CommandLineError("-m needs the name of a module.", next=MODULE_SYNTAX)
            first_argument = start + (2 if words[start] == "-m" else 1)
            return None, name, words[first_argument:]
        if start >= len(words):
            return None, None, []
        return words[start], None, words[start + 1 :]

    def guess(self) -> tuple[int, str | None, str | None]:
        """Return (where voirkit's own words seem to end, script, module) while not all options are
        known.

        A word after an unknown option may be the option's value or the script. The first word that
        cannot be a value ends the search. Of the words so far, a file that can be run is preferred,
        then a path that exists, then a name ``*.py``.
        """
        candidates, module = self._script_candidates()
        if len(candidates) == 1 and module is None:
            return candidates[0], self.words[candidates[0]], None
        best = min(candidates, key=lambda i: _unlikeliness(self.words[i]), default=None)
        if module is not None and (best is None or _unlikeliness(self.words[best]) == 3):
            return module, None, self._module(module) or None
        if best is None:
            return len(self.words), None, None
        return best, self.words[best], None

    def _script_candidates(self) -> tuple[list[int], int | None]:
        """Return the indices of words that may be the script, and the index of ``-m`` if the search
        ends there, otherwise None."""
        candidates: list[int] = []
        unsure = False  # True if word ``i`` may be the value of an unknown option
        i = 0
        while i < len(self.words):
            word = self.words[i]
            if word == "--":
                if i + 1 < len(self.words):
                    candidates.append(i + 1)
                break
            if self._is_module_option(i):
                return candidates, i
            if not self._is_option(i):
                candidates.append(i)
                if not unsure:
                    break
                unsure = False
                i += 1
                continue
            try:
                _, i = self._read_option(i)
                unsure = False
            except CommandLineError:
                unsure = "=" not in word
                i += 1
        return candidates, None

    def early_values(self, option: str) -> list[str]:
        """Return the values of an option before the guessed script; options that are not known yet
        are skipped."""
        early = Words(self.words[: self.guess()[0]], self.options, final=False)
        values: list[str] = []
        i = 0
        while i < len(early.words):
            try:
                given, i = early._read_option(i)
            except CommandLineError:
                i += 1
            else:
                values += values_of(option, given)
        return values

    def unknown(self, word: str, prog: str = "voirkit") -> CommandLineError:
        """Return an error for a word that looks like an option but is not one."""
        name = word.partition("=")[0]
        if not self.final:
            return CommandLineError(f"unknown option '{name}'.")
        if "-" + name in self.options:
            hint = f"Did you mean '-{name}'?"
        else:  # compared without dashes, since dashes would make all options similar
            bare = {option.lstrip("-"): option for option in self.options}
            similar = [bare[word] for word in nearest(name.lstrip("-"), bare)]
            hint = did_you_mean(name, similar)
        cure = f"{hint}\nAll options: {prog} --help".strip()
        return CommandLineError(f"unknown option '{name}'.", next=cure)

    def _is_option(self, i: int) -> bool:
        """True if a word is meant as an option. ``-``, ``--`` and negative numbers are not."""
        word = self.words[i]
        if not _has_dash(word) or word == "--":
            return False
        if word in self.options:
            return True
        try:
            float(word)
        except ValueError:
            return True
        return False

    def _is_module_option(self, i: int) -> bool:
        """True if a word is ``-m`` or ``-mNAME``. ``-monitor`` is taken for a mistyped
        ``--monitor`` if that option exists."""
        word = self.words[i]
        if word == "-m":
            return True
        if not word.startswith("-m"):
            return False
        return word not in self.options and "-" + word.partition("=")[0] not in self.options

    def _module(self, i: int) -> str:
        return self.words[i][2:] or "".join(self.words[i + 1 : i + 2])

    def _read_option(self, i: int) -> tuple[list[Given], int]:
        """Return an option with its values, and the index after them. A word of several short
        options gives several options."""
        word = self.words[i]
        options = self.options
        name, equals, value = (word, "", "") if word in options else word.partition("=")
        if name in options:
            values, i = self._values(options[name], name, value if equals else None, i + 1)
            return [(options[name], name, values)], i
        if not _has_dash(word) or word.startswith("--") or "-" + name in options:
            raise self.unknown(word)
        given: list[Given] = []
        for position, letter in enumerate(word[1:], 1):
            name = "-" + letter
            if name not in options:
                raise self.unknown(word)
            action = options[name]
            if action.nargs != 0:
                values, i = self._values(action, name, word[position + 1 :] or None, i + 1)
                return [*given, (action, name, values)], i
            given.append((action, name, []))
        return given, i + 1

    def _values(
        self, action: Action, name: str, attached: str | None, i: int
    ) -> tuple[list[str], int]:
        """Return the values of an option, and the index of the word after them. ``attached``: the
        value in the same word as the option's name; None if there is none."""
        nargs: Any = action.nargs
        if nargs == 0:
            if attached is not None:
                raise CommandLineError(f"{name} takes no value.", where=f"{name}={attached}")
            return [], i
        attached_values = [] if attached is None else [attached]
        if nargs in (REMAINDER, PARSER):
            return [*attached_values, *self.words[i:]], len(self.words)
        least, most = self._value_counts(action, i)
        values = attached_values
        if attached is None:
            while len(values) < most and self._can_be_value(i):
                values.append(self.words[i])
                i += 1
        if len(values) < least or attached == "--":
            needs = "a value" if least <= 1 else f"{least} values, {len(values)} given"
            hint = self._dash_hint(name, i) if least == 1 else ""
            raise CommandLineError(f"{name} needs {needs}.", next=hint)
        return values, i

    def _value_counts(self, action: Action, i: int) -> tuple[int, int]:
        """Return the least and the largest number of values that an option takes from
        ``words[i:]``."""
        nargs: Any = action.nargs
        if nargs == OPTIONAL:
            return 0, int(self._is_optional_value(action, i))
        many = len(self.words)
        ranges = {None: (1, 1), ZERO_OR_MORE: (0, many), ONE_OR_MORE: (1, many)}
        return ranges.get(nargs, (nargs, nargs))

    def _is_optional_value(self, action: Action, i: int) -> bool:
        """True if a word is the optional value of an option, though it is not attached with "=".
        Either the option itself can tell the word from SCRIPT, or the option's type accepts the
        word and no file has that name."""
        if not self._can_be_value(i):
            return False
        word = self.words[i]
        # some options have a function that recognizes SCRIPT
        is_script = getattr(action, "is_script", None)
        if is_script is not None:
            return not is_script(word, self.words[i + 1 :])
        return i + 1 < len(self.words) and _is_value(action, word)

    def _can_be_value(self, i: int) -> bool:
        return i < len(self.words) and self.words[i] != "--" and not self._is_option(i)

    def _dash_hint(self, name: str, i: int) -> str:
        if i >= len(self.words) or self.words[i] == "--" or self.words[i] in self.options:
            return ""
        return f"A value that begins with a dash is written {name}={self.words[i]}"


def values_of(option: str, given: list[Given]) -> list[str]:
    """Return all the values of an option on a command line."""
    values: list[str] = []
    for action, _, action_values in given:
        if option in action.option_strings:
            values += action_values
    return values


def asks_for_help(given: list[Given]) -> bool:
    """True if ``--help`` or ``--version`` is among the options, or an option with a value that is
    answered without a run."""
    for action, _, values in given:
        if isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            return True
        help_values = getattr(action, "asks_for_help", ())
        if any(value in help_values for value in values):
            return True
    return False


def as_argparse_reads_it(action: Action, name: str, values: list[str]) -> list[str]:
    """Return the words of an option in a form for argparse: a single value is attached with ``=``,
    since it may begin with a dash."""
    if len(values) == 1 and action.nargs not in (REMAINDER, PARSER):
        return [f"{name}={values[0]}"]
    return [name, *values]


def why_no_script(given: list[Given]) -> str:
    """Return a hint for a command line without SCRIPT; an option may have taken the word that was
    meant as SCRIPT."""
    if not given:
        return SYNTAX
    action, name, values = given[-1]
    if not values:
        return SYNTAX
    if action.nargs in (ZERO_OR_MORE, ONE_OR_MORE):
        cure = "put -- before SCRIPT"
    else:
        cure = "SCRIPT comes after it"
    return f"'{values[-1]}' was taken as a value of {name}; {cure}."


def _is_value(action: Action, word: str) -> bool:
    """True if a word in a place where SCRIPT may stand is probably the option's value: the option's
    type accepts the word, and no file has that name."""
    if not callable(action.type) or action.type is str or os.path.exists(word):
        return False
    try:
        action.type(word)
    except Exception:  # whatever a type raises for a word that is not a value
        return False
    return True


def _has_dash(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _unlikeliness(word: str) -> int:
    """Return how unlikely it is that a word is a script: 0 if it can be run, 1 if it exists, 2 if
    it is named ``*.py``, otherwise 3."""
    if word.endswith(".py"):
        return 0 if os.path.isfile(word) else 2
    if os.path.exists(word):
        return 0 if os.path.exists(os.path.join(word, "__main__.py")) else 1
    return 3
