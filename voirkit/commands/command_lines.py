"""All command lines of voirkit, as their parsers define them: the source of completion scripts, the
man page and the reference.

This module reads no voirfile and runs no script.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import NamedTuple

from voirkit import plugins
from voirkit.commands import SUBCOMMANDS
from voirkit.instrument import resolve
from voirkit.options import BUILT_IN, PLUGIN, ExtendedArgumentParser
from voirkit.runner import voirfiles
from voirkit.runner.overseer import Overseer

RUN = ""  # stands for the command line that runs a script, which has no subcommand
_OWN = "voirkit"  # the distribution whose instruments are voirkit's own
# a metavar that lists the values that the option takes: ``full|files|counts``, ``timing``
_LITERAL = re.compile(r"[a-z]+([|,][a-z]+)*")


class DescribedOption(NamedTuple):
    """An option as it is described to users.

    Attributes:
        names: Its names, with their dashes.
        help: Its help text, in which argparse has filled in the placeholders.
        value: Name of its value in ``--help``; empty if it takes no value.
        is_optional: True if the value may be left out; a value is then attached with ``=``.
        words: The values that may be typed; empty if they are not known.
        group: Title of its group in ``--help``.
    """

    names: tuple[str, ...]
    help: str
    value: str
    is_optional: bool
    words: tuple[str, ...]
    group: str

    @property
    def path_kind(self) -> str:
        """``"file"`` or ``"folder"`` if the name of its value in ``--help`` stands for a path;
        otherwise empty."""
        if any(word in self.value for word in ("FILE", "LOG", "SCRIPT")):
            return "file"
        return "folder" if self.value in ("DIR", "RUN") else ""


class CommandLine(NamedTuple):
    """One command line.

    Attributes:
        word: The subcommand; ``RUN`` for the command line of a run.
        arguments: The arguments after the word, such as ``[RUN]``.
        what: A few words on what the command does.
        parser: The parser with all its options; None for a plug-in's command that does not offer
            its parser.
    """

    word: str
    arguments: str
    what: str
    parser: ExtendedArgumentParser | None

    def options(self) -> list[DescribedOption]:
        """Return the options that ``--help`` lists, in its order."""
        return list(_options(self.parser)) if self.parser is not None else []


def command_lines(with_plugins: bool = True) -> list[CommandLine]:
    """Return the command line of a run, then those of the subcommands.

    Args:
        with_plugins: True to include the options and subcommands of other installed packages.
    """
    lines = [
        CommandLine(
            RUN,
            "SCRIPT [script arguments]",
            "run a script under its instruments",
            _parser_of_run(with_plugins),
        )
    ]
    for word, (reference, arguments, description) in SUBCOMMANDS.items():
        lines.append(CommandLine(word, arguments, description, parser_of(reference)))
    for instrument in plugins.installed_instruments():
        for word, module in instrument.commands.items():
            if with_plugins or module.partition(".")[0] == f"{_OWN}_instruments":
                description = f"read the records of --{instrument.name} alone"
                lines.append(CommandLine(word, "", description, parser_of(f"{module}:main")))
    return lines


def parser_of(reference: str) -> ExtendedArgumentParser | None:
    """Return the parser of the subcommand ``module:function``, which ``module:function_parser``
    makes; None if that function does not exist."""
    make_parser = getattr(
        resolve(reference.partition(":")[0]), f"{reference.partition(':')[2]}_parser", None
    )
    return None if make_parser is None else make_parser()


def _parser_of_run(with_plugins: bool) -> ExtendedArgumentParser:
    overseer = Overseer()
    for distribution, instruments in voirfiles.plugins(lambda _: None).items():
        if with_plugins or distribution == _OWN:
            overseer.adopt(instruments, BUILT_IN if distribution == _OWN else PLUGIN)
    with redirect_stdout(StringIO()):
        try:
            overseer(["--version"])  # instruments add their options, then it exits
        except SystemExit:
            pass
    return overseer.argparser


def _options(parser: ExtendedArgumentParser) -> Iterator[DescribedOption]:
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        for action in group._group_actions:
            if not action.option_strings or action.help == argparse.SUPPRESS:
                continue
            value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
            literal = tuple(re.split("[|,]", value)) if _LITERAL.fullmatch(value) else ()
            words = tuple(map(str, action.choices or ())) or literal
            words = words or (
                *getattr(action, "completes", ()),
                *getattr(action, "asks_for_help", ()),
            )
            yield DescribedOption(
                tuple(action.option_strings),
                formatter._expand_help(action) if action.help else "",
                value,
                action.nargs in (argparse.OPTIONAL, argparse.ZERO_OR_MORE),
                words,
                str(group.title),
            )
