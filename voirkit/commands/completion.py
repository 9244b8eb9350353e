"""``voirkit completion SHELL``: prints a shell script that completes commands, options and values.

shtab (checked with 1.13) generates the script from the argument parsers. Completion itself does not
start Python. The script knows the options of installed packages, but not those of a voirfile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from voirkit.commands import printing
from voirkit.commands.command_lines import CommandLine, command_lines
from voirkit.errors import CommandLineError, did_you_mean
from voirkit.options import ExtendedArgumentParser

SHELLS = ("bash", "zsh", "fish")

# Strings that are put before the completion script, or after it. ``voirkit SCRIPT`` has a script in
# place of a subcommand. argparse cannot declare that, so these strings make the shell offer files
# as well.
_BEFORE = {
    "zsh": """\
functions[_voirkit_words]=$functions[_shtab_voirkit]
_shtab_voirkit() {
  _voirkit_words "$@"
  (( compstate[nmatches] )) || _files
}"""
}
_AFTER = {
    "bash": "complete -o bashdefault -o default -F _shtab_voirkit voirkit",
    "fish": "complete -c voirkit -F",
}


def main(argv: Sequence[str]) -> int:
    """Print the completion script for a shell."""
    shell = main_parser().parse_args(argv).SHELL
    if shell not in SHELLS:
        hint = did_you_mean(shell or "", SHELLS) or f"voirkit completion {'|'.join(SHELLS)}"
        raise CommandLineError(
            f"{shell!r} is not a shell that is known." if shell else "no SHELL given.", next=hint
        )
    with printing():
        print(script(shell), end="")
    return 0


def main_parser() -> ExtendedArgumentParser:
    """Return the parser of the command's arguments."""
    parser = ExtendedArgumentParser(
        "voirkit completion",
        "voirkit completion bash|zsh|fish",
        description="Prints a script that makes a shell complete the command line of voirkit.",
        epilog=(
            'bash: eval "$(voirkit completion bash)" in ~/.bashrc\n'
            "zsh:  voirkit completion zsh > _voirkit, in a folder of $fpath\n"
            "fish: voirkit completion fish > ~/.config/fish/completions/voirkit.fish\n"
        ),
    )
    parser.add_argument("SHELL", nargs="?", help="bash, zsh or fish")
    return parser


def script(shell: str, with_plugins: bool = True) -> str:
    """Return the completion script for a shell; ``with_plugins`` is passed to ``command_lines``."""
    import shtab

    run, *subcommands = command_lines(with_plugins)
    parser = argparse.ArgumentParser("voirkit", **_declarations(run))
    parser.add_argument("-m", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    commands = parser.add_subparsers()
    commands.nargs = None  # one word: otherwise shtab would offer subcommands after SCRIPT too
    for line in subcommands:
        commands.add_parser(line.word, help=line.what, **_declarations(line))
    text = shtab.complete(parser, shell, preamble=_BEFORE.get(shell, ""))
    return f"{text}\n{_AFTER.get(shell, '')}".rstrip() + "\n"


def _declarations(line: CommandLine) -> dict[str, Any]:
    """Return the arguments for a plain ArgumentParser that has the options of a command line.

    Changes the options of ``line.parser``: each is marked with the values that shtab offers.
    """
    import shtab

    arguments = {"add_help": False, "description": line.what}
    parser = line.parser
    if parser is None:
        return arguments
    paths = {"file": shtab.FILE, "folder": shtab.DIRECTORY}
    for positional in parser._get_positional_actions():
        positional.help = argparse.SUPPRESS  # otherwise zsh completes no options after RUN...
    for option in line.options():
        action = parser._option_string_actions[option.names[0]]
        if option.is_optional:
            action.nargs = 0  # shtab would take the next word as the value, but it is SCRIPT
        elif option.words:
            action.choices = option.words
        elif option.path_kind:
            vars(action)["complete"] = paths[option.path_kind]
    return {**arguments, "parents": [parser], "formatter_class": parser.formatter_class}
