"""Configuration files: finds them, reads them, and turns their settings into values of options.

TOML, YAML and JSON; a parser is imported only if there is such a file. Every run loads this module.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from argparse import ONE_OR_MORE, OPTIONAL, ZERO_OR_MORE

from voirkit.errors import CommandLineError, ConfigurationError, did_you_mean, nearest
from voirkit.trust import FLAG, fault, way_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterable, Sequence
    from typing import Any

    from voirkit.options import ExtendedArgumentParser

SUFFIXES = (".toml", ".yaml", ".yml", ".json")


class Setting:
    """One thing that a file says.

    Attributes:
        path: The key, with those of the tables around it: ``("train-rate",)``, ``("model",
            "depth")``.
        value: What it is set to.
        where: The file and, if it can be told, the line: ``voirkit.toml:1``.
    """

    def __init__(self, path: tuple[str, ...], value: Any, where: str) -> None:
        self.path = path
        self.value = value
        self.where = where

    def __repr__(self) -> str:
        return f"<{self.where} {'.'.join(self.path)} = {self.value!r}>"

    def table(self) -> dict[str, Any] | None:
        """The setting in its tables, ``{"model": {"depth": 3}}``; None if it is in none."""
        if len(self.path) == 1:
            return {self.path[0]: {}} if self.value == {} else None
        value = self.value
        for key in reversed(self.path):
            value = {key: value}
        return value  # type: ignore[no-any-return]


# finding and reading


def find(script: str | None, cwd: str) -> list[str]:
    """The files that may hold settings: beside the script, in the current folder, in its parents;
    nearest first."""
    folders = []
    if script is not None:
        path = os.path.join(cwd, script)
        if not os.path.isdir(path):
            path = os.path.dirname(path)
        folders.append(os.path.normpath(path))
    folder = os.path.normpath(cwd)
    while folder not in folders[1:]:
        folders.append(folder)
        folder = os.path.dirname(folder)
    paths = [
        os.path.join(folder, name)
        for folder in dict.fromkeys(folders)
        for name in ("voirkit.toml", "pyproject.toml")
    ]
    return [path for path in paths if os.path.exists(path)]


def collect(
    script: str | None,
    cwd: str,
    configs: Sequence[str] = (),
    search: bool = True,
    trusted: Sequence[str] = (),
) -> list[Setting]:
    """All that configuration files say, each key once: the last of ``configs`` goes first, then the
    nearest file.

    Args:
        script: The script, as far as it is known: a file or a folder.
        configs: The files of ``--config``, in their order.
        search: Whether to look for files besides those.
        trusted: Folders whose files are taken, whoever has written them.

    Raises:
        ConfigurationError: A file cannot be read or understood, or one that was found is somebody
            else's.
    """
    by_key: dict[tuple[str, ...], Setting] = {}
    requested = {os.path.realpath(os.path.join(cwd, path)) for path in configs}
    searched = find(script, cwd) if search else []
    for path in [*reversed(configs), *searched]:
        settings = read(path, cwd)
        if settings and os.path.realpath(os.path.join(cwd, path)) not in requested:
            why = fault(path, os.path.join(cwd, script or ""), trusted)
            if why:
                text = f"this file {why}, and would set options of yours."
                raise ConfigurationError(text, where=path, next=way_out(path))
        for setting in settings:
            key = tuple(part.replace("-", "_") for part in setting.path)
            by_key.setdefault(key, setting)
    return list(by_key.values())


def read(path: str, cwd: str = "") -> list[Setting]:
    """The settings in a file; of a ``pyproject.toml``, those in its ``[tool.voirkit]``.

    Args:
        path: The file; its suffix says what it is written in.
        cwd: Files in this folder are called by their name alone in messages.

    Raises:
        ConfigurationError: It cannot be read, is malformed, or holds no table of settings.
    """
    label = os.path.relpath(path, cwd) if cwd and path.startswith(os.path.join(cwd, "")) else path
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        hint = f"Its name has to end in one of: {', '.join(SUFFIXES)}"
        raise ConfigurationError(
            "a configuration file is written in TOML, YAML or JSON.", where=label, next=hint
        )
    data = _bytes(os.path.join(cwd, path), label)
    is_pyproject = os.path.basename(path) == "pyproject.toml"
    # Most pyproject.toml say nothing to voirkit, though they may name it: they are not parsed (7
    # ms), nor judged.
    if is_pyproject and not re.search(
        rb"""(?m)^[^#\n]*\btool\b.*voirkit|^\s*\[\s*["']?tool["']?\s*\]""", data
    ):
        return []
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ConfigurationError("the file is not UTF-8 text.", where=f"{label}:{line}") from None
    document = _parse(text, suffix, label)
    around: tuple[str, ...] = ()
    if is_pyproject:
        around = ("tool", "voirkit")
        document = _subtable(_subtable(document, "tool"), "voirkit")
    if document is None:
        return []
    if not isinstance(document, dict):
        table = ".".join(around) or "the file"
        message = f"{table} needs to be a table of settings, not {document!r:.60}."
        raise ConfigurationError(message, where=_where(label, _line(text, around)))
    return list(_settings(document, (), text, around, label))


def _subtable(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None


def _bytes(path: str, label: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "there is no such file: its folder does not exist.", where=label
            ) from None
        names = nearest(os.path.basename(path), os.listdir(folder))
        near = ", ".join(os.path.join(os.path.dirname(label), name) for name in names)
        raise ConfigurationError(
            "there is no such file.", where=label, next=near and f"There is: {near}"
        ) from None
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        raise ConfigurationError(f"the file cannot be read: {why}.", where=label) from None


def _parse(text: str, suffix: str, label: str) -> Any:
    try:
        if suffix == ".toml":
            return __import__("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(text)
        if suffix == ".json":
            import json

            return json.loads(text)
        return _parse_yaml(text, label)
    except ValueError as exc:
        line, why = _syntax_error(exc, text)
        message = f"this is not {suffix[1:].upper()}: {why.rstrip('.')}."
        raise ConfigurationError(message, where=_where(label, line)) from None
    except RecursionError:
        raise ConfigurationError("the file is nested too deep.", where=label) from None


def _syntax_error(exc: ValueError, text: str) -> tuple[int | None, str]:
    """The line and the message of a parser's error. JSON's errors know their line; TOML's say "(at
    line 1, column 7)" or "(at end of document)"."""
    line = None
    message = str(exc)
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if place:
        message = message[: place.start()]
        last_line = text.count("\n") + (not text.endswith("\n"))
        line = int(place[1]) if place[1] else last_line
    return getattr(exc, "lineno", None) or line, getattr(exc, "msg", None) or message


def _parse_yaml(text: str, label: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        why = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it cannot be read"
        mark = getattr(exc, "problem_mark", None)
        if mark:
            line = mark.line + 1
        else:
            position = getattr(exc, "position", 0) or 0
            line = text.count("\n", 0, position) + 1
        raise ConfigurationError(f"this is not YAML: {why}.", where=f"{label}:{line}") from None


def _settings(
    table: dict[Any, Any], path: tuple[str, ...], text: str, around: tuple[str, ...], label: str
) -> Iterable[Setting]:
    """Each value that is not a table. ``path`` is the table in voirkit's settings, ``around`` the
    tables around those."""
    for key, value in table.items():
        if not isinstance(key, str):
            hint = "Names can be put in quotes."
            raise ConfigurationError(
                f"the key {key!r} is no name of an option.", where=label, next=hint
            )
        key_path = (*path, key)
        if isinstance(value, dict) and value:
            yield from _settings(value, key_path, text, around, label)
        else:
            line = _line(text, (*around, *key_path))
            yield Setting(key_path, value, _where(label, line))


def _where(label: str, line: int | None) -> str:
    return f"{label}:{line}" if line else label


def _line(text: str, path: tuple[str, ...]) -> int | None:
    """The line of a key, by looking for its parts one after the other; None if one is not there."""
    lines = text.splitlines()
    index = 0
    column = 0
    for part in path:
        key = re.compile(rf"""(?:^|[\s{{,.\["']){re.escape(part)}["']?\s*[]=:.]""")
        while index < len(lines):
            is_comment = lines[index].lstrip().startswith("#")
            match = None if is_comment else key.search(lines[index], column)
            if match:
                column = match.end() - 1
                break
            index += 1
            column = 0
        else:
            return None
    return index + 1 if path else None


# settings as values of options


def values_for(parser: ExtendedArgumentParser, settings: Iterable[Setting]) -> dict[str, object]:
    """The values that settings give to options, by each option's ``dest``."""
    options = parser.keys()
    scratch = argparse.Namespace()
    # `x` and `no-x` may both be there: the first goes before the others
    for setting in reversed(list(settings)):
        key = setting.path[0]
        action, name = options.get(key.replace("-", "_"), (None, ""))
        if action is None or isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            hint = did_you_mean(key, [name.lstrip("-") for _, name in options.values()])
            if parser.has_table(key):
                hint = f"It is a table of settings: [{key}]"
            raise ConfigurationError(f"unknown key '{key}'.", where=setting.where, next=hint)
        if name in ("--config", FLAG):
            raise ConfigurationError(
                f"{name} can stand only on the command line.", where=setting.where
            )
        _give(parser, scratch, action, name, setting)
    return vars(scratch)


def _give(
    parser: ExtendedArgumentParser,
    scratch: argparse.Namespace,
    action: Action,
    name: str,
    setting: Setting,
) -> None:
    """Do to a namespace what the option on a command line would have done."""
    value = setting.value
    key = setting.path[0]
    if isinstance(action, argparse._CountAction) and isinstance(value, int):
        setattr(scratch, action.dest, int(value))
        return
    if _appends(action):
        items = value if isinstance(value, list) else [value]
        for item in items:
            action(parser, scratch, convert(parser, action, key, item, setting.where), name)
        return
    if action.nargs == OPTIONAL and value is False:
        return  # as if it had not been given
    converted = convert(parser, action, key, value, setting.where)
    if action.nargs != 0:
        action(parser, scratch, converted, name)
    elif converted is True:
        action(parser, scratch, [], name)
    else:
        _switch_off(parser, scratch, action, name)


def _appends(action: Action) -> bool:
    """True if an option may be repeated, with one value each time."""
    if isinstance(action, argparse._ExtendAction) or action.nargs == 0:
        return False
    return isinstance(action, argparse._AppendAction)


def _switch_off(
    parser: ExtendedArgumentParser, scratch: argparse.Namespace, action: Action, name: str
) -> None:
    opposite = f"--no-{name.lstrip('-')}"
    if opposite in action.option_strings:
        action(parser, scratch, [], opposite)
    elif isinstance(action.const, bool):
        setattr(scratch, action.dest, not action.const)


def convert(
    parser: ExtendedArgumentParser, action: Action, key: str, value: Any, where: str
) -> Any:
    """A setting's value as its option takes it: through the option's type, or true or false for a
    switch."""
    needs = _needs(action)
    if action.nargs == 0:
        if isinstance(value, bool):
            return value
        raise ConfigurationError(f"{key} needs {needs}, not {value!r}.", where=where)
    if action.nargs == OPTIONAL and value is True:
        items = []
    elif isinstance(value, list) and action.nargs not in (None, OPTIONAL):
        items = value
    else:
        items = [value]
    if not all(map(_is_scalar, items)):
        raise ConfigurationError(f"{key} needs {needs}, not {value!r}.", where=where)
    if not _fits(action, len(items)):
        raise ConfigurationError(f"{key} needs {needs}, not {len(items)}.", where=where)
    try:
        return parser._get_values(action, [str(item) for item in items])
    except CommandLineError as exc:
        text = f"{key} = {value!r}: {exc.what}"
        raise ConfigurationError(text, where=where, next=exc.next) from None
    except argparse.ArgumentError as exc:
        raise ConfigurationError(f"{key} = {value!r}: {exc}.", where=where) from None


def _is_scalar(item: object) -> bool:
    """True if an item can be a word of a command line: a number or a string, but no ``--``."""
    return isinstance(item, (str, int, float)) and not isinstance(item, bool) and item != "--"


def _fits(action: Action, n_values: int) -> bool:
    """True if an option takes this many values."""
    if isinstance(action.nargs, int):
        return n_values == action.nargs
    return n_values > 0 or action.nargs != ONE_OR_MORE


def _needs(action: Action) -> str:
    if action.nargs == 0:
        return "true or false"
    if isinstance(action.nargs, int):
        return f"a list of {action.nargs} values"
    if action.nargs in (ZERO_OR_MORE, ONE_OR_MORE):
        return "a list of values"
    return "a number or a string"
