"""Configuration files: finds them, reads them, and turns their settings into values of options.

They are TOML, YAML or JSON; a parser is imported only if a file needs it. Every run loads this
module.
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
    """One setting in a configuration file.

    Attributes:
        path: The key, preceded by the keys of the tables around it: ``("train-rate",)``,
            ``("model", "depth")``.
        value: The value of the key.
        where: The file and, if known, the line: ``voirkit.toml:1``.
    """

    def __init__(self, path: tuple[str, ...], value: Any, where: str) -> None:
        self.path = path
        self.value = value
        self.where = where

    def __repr__(self) -> str:
        return f"<{self.where} {'.'.join(self.path)} = {self.value!r}>"

    def table(self) -> dict[str, Any] | None:
        """Return the setting nested in its tables, ``{"model": {"depth": 3}}``; None if it is not
        in a table."""
        if len(self.path) == 1:
            return {self.path[0]: {}} if self.value == {} else None
        value = self.value
        for key in reversed(self.path):
            value = {key: value}
        return value  # type: ignore[no-any-return]


# finding and reading the files


def find(script: str | None, cwd: str) -> list[str]:
    """Return the files that may hold settings, nearest first.

    They are next to the script, in the current folder, or in a parent of the current folder.
    """
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
    """Return the settings of all configuration files, each key once.

    If several files set a key, the last of ``configs`` wins, and after ``configs`` the nearest
    file.

    Args:
        script: The script, as far as it is known: a file or a folder.
        configs: The files of ``--config``, in the order of the command line.
        search: True to look for other files too.
        trusted: Folders whose files are accepted, whoever has written them.

    Raises:
        ConfigurationError: A file cannot be read or parsed, or a file that was not requested
            cannot be trusted, since it may be somebody else's.
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
    """Return the settings in a file; in a ``pyproject.toml``, those in its ``[tool.voirkit]``.

    Args:
        path: The file; its suffix determines the format.
        cwd: Messages show files in this folder relative to it.

    Raises:
        ConfigurationError: The file cannot be read, is malformed, or holds no table of settings.
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
    # Most pyproject.toml have no settings of voirkit, though they may name it. They are not parsed
    # (7 ms), and errors in them are not reported.
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
    """Return the line and the message of a parser's error.

    An error of JSON has the line as an attribute. The message of a TOML error ends with "(at line
    1, column 7)" or "(at end of document)".
    """
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
    """Yield a setting for each value that is not a table.

    ``path`` has the keys that lead to the table within voirkit's settings. ``around`` has the keys
    of the tables around these settings, such as ``("tool", "voirkit")``.
    """
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
    """Return the line of a key, found by searching for the parts of its path in turn; None if a
    part is not found."""
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


# from settings to values of options


def values_for(parser: ExtendedArgumentParser, settings: Iterable[Setting]) -> dict[str, object]:
    """Return a dict from the ``dest`` of options to the values that settings give them."""
    options = parser.keys()
    scratch = argparse.Namespace()
    # `x` and `no-x` may both be set. The first setting wins, so the settings are applied from the
    # last to the first.
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
    """Change a namespace as the option on a command line would."""
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
        return  # false for an option with an optional value: it counts as not given
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
    """Return a setting's value, converted by the option's type; true or false for a switch."""
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
    """True if an item can be a word of a command line: a number, or a string other than ``--``."""
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
