"""Cuts the words of a command line: voirkit's own options, then the script or module, then the script's arguments.

Knows the options only as argparse's table of them. Looks at no word after the script. Every run loads this module.
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

    Given: TypeAlias = tuple[Action, str, list[str]]  # an option on the command line: its action, its name, its values
    Target: TypeAlias = tuple[str | None, str | None, list[str]]  # script, module, arguments

SYNTAX = "voirkit [options] SCRIPT [script arguments]"
MODULE_SYNTAX = "voirkit [options] -m MODULE[:FUNCTION] [arguments]"


class Words:
    """The words of one command line, and the options that are known by now.

    Args:
        words: The command line, without the program's name.
        options: Each option's name, with its dashes, and its argparse action.
        final: Whether these are all options; else nothing is looked up to help with an unknown one (3 ms).
    """

    def __init__(self, words: Iterable[str], options: Mapping[str, Action], final: bool = True) -> None:
        self.words = list(words)
        self.options = options
        self.final = final

    def read(self) -> tuple[list[Given], int]:
        """The options before SCRIPT, and the index of the first word that is none; nothing is read after ``--help``."""
        given: list[Given] = []
        i = 0
        while i < len(self.words) and self._is_option(i) and not self._is_module_option(i):
            more, i = self._read_option(i)
            given += more
            if asks_for_help(more) and not getattr(more[-1][0], "reads_on", False):
                break
        return given, i

    def target(self, start: int) -> Target:
        """(script, module, arguments), from the index at which voirkit's own words end."""
        words = self.words
        if words[start : start + 1] == ["--"]:
            start += 1
        elif start < len(words) and self._is_module_option(start):
            name, rest = self._module(start), words[start + (2 if words[start] == "-m" else 1) :]
            if not name or _has_dash(name):
                raise CommandLineError("-m needs the name of a module.", next=MODULE_SYNTAX)
            return None, name, rest
        return (words[start], None, words[start + 1 :]) if start < len(words) else (None, None, [])

    def guess(self) -> tuple[int, str | None, str | None]:
        """(where voirkit's own words seem to end, script, module) while options are still missing.

        A word after an unknown option may be its value or the script. The first word that can be no value ends the
        search; of those so far, one that can be run is preferred, then one that exists, then one called ``*.py``.
        """
        candidates: list[int] = []
        module: int | None = None
        unsure = False  # whether the word may be the value of an unknown option
        i = 0
        while i < len(self.words):
            if self.words[i] == "--":
                candidates += range(i + 1, len(self.words))[:1]
                break
            if self._is_module_option(i):
                module = i
                break
            if not self._is_option(i):
                candidates.append(i)
                if not unsure:
                    break
                i, unsure = i + 1, False
                continue
            try:
                i, unsure = self._read_option(i)[1], False
            except CommandLineError:
                i, unsure = i + 1, "=" not in self.words[i]
        if len(candidates) == 1 and module is None:
            return candidates[0], self.words[candidates[0]], None
        best = min(candidates, key=lambda i: _unlikeliness(self.words[i]), default=None)
        if module is not None and (best is None or _unlikeliness(self.words[best]) == 3):
            return module, None, self._module(module) or None
        return (len(self.words), None, None) if best is None else (best, self.words[best], None)

    def early_values(self, option: str) -> list[str]:
        """The values of an option before the guessed script; words that are unknown by now are passed over."""
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
        """An error for a word that looks like an option and is none."""
        name = word.partition("=")[0]
        if not self.final:
            return CommandLineError(f"unknown option '{name}'.")
        if "-" + name in self.options:
            hint = f"Did you mean '-{name}'?"
        else:  # compared without the dashes, which make all options alike
            bare = {option.lstrip("-"): option for option in self.options}
            hint = did_you_mean(name, [bare[word] for word in nearest(name.lstrip("-"), bare)])
        return CommandLineError(f"unknown option '{name}'.", next=f"{hint}\nAll options: {prog} --help".strip())

    def _is_option(self, i: int) -> bool:
        """Whether a word is meant as an option: ``-`` and ``--`` are not, nor is a negative number."""
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
        """Whether a word is ``-m`` or ``-mNAME``; ``-monitor`` is a slip for ``--monitor`` if there is that option."""
        word = self.words[i]
        if word == "-m" or not word.startswith("-m"):
            return word == "-m"
        return word not in self.options and "-" + word.partition("=")[0] not in self.options

    def _module(self, i: int) -> str:
        return self.words[i][2:] or "".join(self.words[i + 1 : i + 2])

    def _read_option(self, i: int) -> tuple[list[Given], int]:
        """What an option says (several, if it is short ones in one word), and the index after it and its values."""
        word, options = self.words[i], self.options
        name, equals, value = (word, "", "") if word in options else word.partition("=")
        if name in options:
            values, i = self._values(options[name], name, value if equals else None, i + 1)
            return [(options[name], name, values)], i
        if not _has_dash(word) or word.startswith("--") or "-" + name in options:
            raise self.unknown(word)
        given: list[Given] = []
        for at in range(1, len(word)):
            name = "-" + word[at]
            if name not in options:
                raise self.unknown(word)
            if options[name].nargs != 0:
                values, i = self._values(options[name], name, word[at + 1 :] or None, i + 1)
                return [*given, (options[name], name, values)], i
            given.append((options[name], name, []))
        return given, i + 1

    def _values(self, action: Action, name: str, attached: str | None, i: int) -> tuple[list[str], int]:
        """The values of an option, of which one may be attached to it, and the index of the word after them."""
        words = self.words
        nargs: Any = action.nargs
        if nargs == 0:
            if attached is not None:
                raise CommandLineError(f"{name} takes no value.", where=f"{name}={attached}")
            return [], i
        if nargs in (REMAINDER, PARSER):
            return words[i:] if attached is None else [attached, *words[i:]], len(words)
        many = len(words)
        # An optional value needs an "=", unless the option can tell it from SCRIPT, or its type takes the word and no file has that name.
        ranges = {None: (1, 1), OPTIONAL: (0, 0), ZERO_OR_MORE: (0, many), ONE_OR_MORE: (1, many)}
        least, most = ranges.get(nargs, (nargs, nargs))
        values = [] if attached is None else [attached]
        is_script = getattr(action, "is_script", None)  # of one that says itself which word is SCRIPT
        if nargs == OPTIONAL and is_script is not None and i < many and words[i] != "--" and not self._is_option(i):
            most = 0 if is_script(words[i], words[i + 1 :]) else 1
        elif nargs == OPTIONAL and i + 1 < many and words[i] != "--" and not self._is_option(i) and _is_value(action, words[i]):
            most = 1
        while attached is None and i < many and len(values) < most and words[i] != "--" and not self._is_option(i):
            values.append(words[i])
            i += 1
        if len(values) < least or attached == "--":
            needs = "a value" if least <= 1 else f"{least} values, {len(values)} given"
            dashed = least == 1 and i < many and words[i] != "--" and words[i] not in self.options
            hint = f"A value that begins with a dash is written {name}={words[i]}" if dashed else ""
            raise CommandLineError(f"{name} needs {needs}.", next=hint)
        return values, i


def values_of(option: str, given: list[Given]) -> list[str]:
    """All the values of an option on a command line."""
    return [value for action, _, values in given if option in action.option_strings for value in values]


def asks_for_help(given: list[Given]) -> bool:
    """Whether ``--help`` or ``--version`` is among the options, or another with a value that is answered without a run."""
    return any(
        isinstance(action, (argparse._HelpAction, argparse._VersionAction))
        or any(value in getattr(action, "asks_for_help", ()) for value in values)
        for action, _, values in given
    )


def as_argparse_reads_it(action: Action, name: str, values: list[str]) -> list[str]:
    """Words that argparse cannot take otherwise: a lone value is attached, since it may begin with a dash."""
    return [f"{name}={values[0]}"] if len(values) == 1 and action.nargs not in (REMAINDER, PARSER) else [name, *values]


def why_no_script(given: list[Given]) -> str:
    """What to do if no SCRIPT is left; an option may have taken the word that was meant as one."""
    if not given or not given[-1][2]:
        return SYNTAX
    action, name, values = given[-1]
    cure = "put -- before SCRIPT" if action.nargs in (ZERO_OR_MORE, ONE_OR_MORE) else "SCRIPT comes after it"
    return f"'{values[-1]}' was taken as a value of {name}; {cure}."


def _is_value(action: Action, word: str) -> bool:
    """Whether a word that stands where SCRIPT may is rather an option's value: its type takes it, and no file has that name."""
    if not callable(action.type) or action.type is str or os.path.exists(word):
        return False
    try:
        action.type(word)
    except Exception:  # whatever a type raises of what is no value for it
        return False
    return True


def _has_dash(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _unlikeliness(word: str) -> int:
    """How unlikely a word is a script: 0 is one that can be run, 3 one with nothing in its favour."""
    if word.endswith(".py"):
        return 0 if os.path.isfile(word) else 2
    if os.path.exists(word):
        return 0 if os.path.exists(os.path.join(word, "__main__.py")) else 1
    return 3
