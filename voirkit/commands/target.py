"""The script or module that a subcommand reads, named on the command line as for a run. Never runs or imports it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from voirkit.errors import CommandLineError, SelectorError
from voirkit.options import ExtendedArgumentParser
from voirkit.options.argv import Words
from voirkit.probes.selector.catalogue import Catalogue, catalogue, catalogue_of_module
from voirkit.runner.script import enter_folder, folder_of, script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


@dataclass(frozen=True)
class Source:
    """Source that has been read.

    Attributes:
        name: What the user calls it: the path of a script as typed, the name of a module.
        file: Its file, for messages: relative if it is in the current folder.
        folder: Where a voirfile of it belongs.
        text: The source.
        catalogue: What is in it. Its module is empty if it runs as ``__main__``, so that selectors begin with ``//``.
    """

    name: str
    file: str
    folder: str
    text: bytes
    catalogue: Catalogue


def read_words(parser: ExtendedArgumentParser, words: Sequence[str]) -> Namespace:
    """Read a command line on which options may stand between the other words, which argparse alone does not allow."""
    found, rest = parser.parse_known_intermixed_args(words)
    dashed = [word for word in rest if word.startswith("-")]
    if dashed:
        raise Words(rest, parser._option_string_actions).unknown(dashed[0], parser.prog)
    if rest:
        raise CommandLineError(f"{rest[0]!r} is one word too many.", next=f"All options: {parser.prog} --help")
    return found


def read_script(name: str) -> Source:
    """A script: a file, or a folder or archive with a ``__main__.py``."""
    try:
        program = script(name, [])
    except SyntaxError as error:  # of the __main__.py in a folder
        raise _no_python(error, name) from None
    if program.source is None or program.path is None:
        raise CommandLineError(f"{name!r} holds no Python source.")
    file = os.path.join(name, os.path.basename(program.path)) if os.path.isdir(name) else name
    enter_folder(program.folder)
    try:
        found = catalogue(program.source, file)
    except SyntaxError as error:
        raise _no_python(error, file) from None
    return Source(name, file, folder_of(name), program.source, found)


def read_module(name: str) -> Source:
    """A module as ``-m`` names it: ``package.module``, a package with a ``__main__``, or ``module:function``."""
    here = os.getcwd()
    enter_folder(here)
    module, colon, _ = name.partition(":")
    try:
        found = catalogue_of_module(module)
        if not colon and (found is None or os.path.basename(found.filename) == "__init__.py"):
            found = _main_of(module, is_source=found is not None)
    except SelectorError as error:
        raise CommandLineError(error.what, where=f"-m {name}", next=error.next) from None
    except SyntaxError as error:
        raise _no_python(error, module) from None
    if found is None:
        raise CommandLineError("it has no Python source.", where=f"-m {name}")
    with open(found.filename, "rb") as file:
        text = file.read()
    shown = found.filename.removeprefix(here + os.sep)
    found = replace(found, filename=shown, module=module if colon else "")
    return Source(name, shown, here, text, found)


def _main_of(package: str, is_source: bool) -> Catalogue | None:
    try:
        return catalogue_of_module(f"{package}.__main__")
    except SelectorError:
        kind = "is a package without a __main__" if is_source else "has no Python source and no __main__"
        raise SelectorError(f"{package!r} {kind}, so there is nothing to run.", next="Name a module with functions.") from None


def _no_python(error: SyntaxError, name: str) -> CommandLineError:
    where = f"{name}:{error.lineno}" if error.lineno else name
    return CommandLineError(f"it does not parse: {error.msg}.", where=where, next=(error.text or "").strip())
