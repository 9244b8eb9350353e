"""Options made from the fields of a dataclass: their types, their help, and the instance that comes back.

Imported only when an instrument has such options, since it needs dataclasses, inspect, tokenize and typing.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import tokenize
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from voirkit.errors import CommandLineError, ConfigurationError, InstrumentError, did_you_mean
from voirkit.options.configuration import convert

if TYPE_CHECKING:
    from voirkit.options import ExtendedArgumentParser

Builder = Callable[[argparse.Namespace], Any]
Path = tuple[str, ...]
READABLE = "int, float, str, bool, Path, an Enum, a Literal; T | None, list[T], tuple[T, ...] of these; or a dataclass"


def add_model(
    parser: ExtendedArgumentParser,
    model: Any,
    path: Path,
    prefix: str,
    table: Mapping[str, Any],
    origin: Callable[[Path], str],
) -> Builder:
    """Add an option for each field of a dataclass.

    Args:
        parser: Gets the options.
        model: The dataclass, or an instance that holds the defaults.
        path: Where the instance will stand in the options: ``("a",)``, and ``("a", "b")`` for a dataclass in it.
        prefix: What comes before the fields' names in those of the options: nothing, or ``training.``
        table: What configurations say: ``{field: value}``; it goes before the defaults.
        origin: The file and line of the configuration that the value at a path is from.

    Returns:
        A function that takes the values out of a namespace and makes an instance of the dataclass.
    """
    cls = model if isinstance(model, type) else type(model)
    if not is_dataclass(cls):
        what = f"options can be made from a dataclass, and {cls.__name__} is none."
        raise InstrumentError(what, where=parser.definer or "")
    hints, helps = _hints(cls, parser), field_help(cls)
    group = parser.add_argument_group(str(getattr(cls, "__help__", cls.__name__)))
    own = {field.name: field for field in fields(cls) if field.init}
    for key in table:
        if key not in own:
            name = ".".join((*path, key))
            raise ConfigurationError(f"unknown key '{name}'.", where=origin((*path, key)), next=did_you_mean(key, own))
    parts: dict[str, Builder] = {}
    for name, field in own.items():
        if not isinstance(model, type):
            default = getattr(model, name)
        else:
            default = field.default if field.default_factory is MISSING else field.default_factory()
        here, annotation = (*path, name), hints[name]
        if is_dataclass(annotation):
            below = table.get(name, {})
            if not isinstance(below, Mapping):
                raise ConfigurationError(f"{'.'.join(here)} needs to be a table, not {below!r}.", where=origin(here))
            inner = annotation if default is MISSING else default
            parts[name] = add_model(parser, inner, here, f"{prefix}{name}.", below, origin)
        else:
            option = _Option(parser, group, here, prefix, annotation, helps.get(name, ""))
            configured = option.from_configuration(table[name], origin(here)) if name in table else default
            option.add(configured)
            parts[name] = option.value

    def build(namespace: argparse.Namespace) -> Any:
        values = {name: part(namespace) for name, part in parts.items()}
        try:
            return cls(**values)
        except ValueError as exc:  # a check in the user's __post_init__
            raise CommandLineError(f"{exc}.".replace("..", "."), where=f"the options of {'.'.join(path)}") from None

    return build


def _hints(cls: type, parser: ExtendedArgumentParser) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError as exc:
        text = f"an annotation of {cls.__name__} cannot be resolved: {exc}."
        hint = "Define or import what the annotations name at the top of the module."
        raise InstrumentError(text, where=parser.definer or "", next=hint) from None


class _Option:
    """One field's option (two for a switch), and how its value is made.

    What the command line says is kept under the field's path. An absent option leaves nothing there, and the default is
    taken as it is: argparse would read a default that is a string as if it had been typed.
    """

    def __init__(
        self,
        parser: ExtendedArgumentParser,
        group: argparse._ArgumentGroup,
        path: Path,
        prefix: str,
        annotation: Any,
        help: str,
    ) -> None:
        self.parser, self.group, self.path, self.help = parser, group, path, help
        self.dest, self.name = ".".join(path), f"{prefix}{path[-1]}".replace("_", "-")
        self.default: Any = MISSING
        self.optional, self.type = _without_none(annotation)
        self.many: type | None = None
        item = self.type
        if get_origin(item) in (list, tuple, Sequence):
            arguments = [a for a in get_args(item) if a is not Ellipsis]
            self.many = tuple if get_origin(item) is tuple else list
            item = arguments[0] if len(arguments) == 1 else None
        elif item in (list, tuple):
            self.many, item = item, str
        self.reader: Any = None if self.type is bool else _reader(item)
        if self.reader is None and self.type is not bool:
            simple = isinstance(annotation, type) and not get_origin(annotation)
            shown = annotation.__name__ if simple else str(annotation).replace("typing.", "")
            what = f"the field {self.dest} is of type {shown}, which cannot be read from a command line."
            raise InstrumentError(what, where=parser.definer or "", next=f"What can be: {READABLE}.")

    def add(self, default: Any) -> None:
        """Add it to its group."""
        self.default = default
        dashed = f"-{self.name}" if len(self.name) == 1 else f"--{self.name}"
        escaped = self.help.replace("%", "%%")
        common: dict[str, Any] = {"dest": self.dest, "default": argparse.SUPPRESS, "required": default is MISSING}
        if self.type is bool:
            before, dot, field = self.name.rpartition(".")
            exclusive = self.group if default is not MISSING else self.group.add_mutually_exclusive_group(required=True)
            common.pop("required")
            for option, value in ((dashed, True), (f"--{before}{dot}no-{field}", False)):
                text = escaped if value else f"The opposite of {dashed}."
                shown = f"{text} (default)".strip() if default is value else text
                exclusive.add_argument(option, action="store_const", const=value, help=shown, **common)
            return
        known = default is not MISSING and default is not None
        shown = f"(default: {self._words_of(default)})".replace("%", "%%") if known else "" if default is None else "(required)"
        common["help"] = f"{escaped} {shown}".strip()
        common["metavar"] = getattr(self.reader, "metavar", None) or self.path[-1].upper()
        if self.many:
            common.update(nargs="*", action="extend")  # of what is given: the default is not in the namespace
        self.group.add_argument(dashed, type=self.reader, **common)

    def from_configuration(self, value: Any, where: str) -> Any:
        """A configuration's value, as the field's type."""
        if (value is None and self.optional) or (isinstance(value, (Enum, PurePath)) and isinstance(value, self.type)):
            return value
        stand_in = argparse.Action([f"--{self.name}"], self.dest, nargs="*" if self.many else None, type=self.reader)
        if self.type is bool:
            stand_in.nargs = 0
        found = convert(self.parser, stand_in, self.dest, value, where)
        return self.many(found) if self.many else found

    def value(self, namespace: argparse.Namespace) -> Any:
        """The field's value; takes it out of the namespace."""
        found = vars(namespace).pop(self.dest, MISSING)
        if found is MISSING:
            return self.default
        return self.many(found) if self.many else found

    def _words_of(self, default: Any) -> str:
        if isinstance(default, (list, tuple)):
            return " ".join(map(self._words_of, default)) or "none"
        return default.name if isinstance(default, Enum) else str(default)


def _without_none(annotation: Any) -> tuple[bool, Any]:
    """(whether None is allowed, the type without it)."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = tuple(a for a in get_args(annotation) if a is not type(None))
        if len(rest) < len(get_args(annotation)):
            return True, rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - there is no `|` of a tuple
    return False, annotation


def _reader(annotation: Any) -> Callable[[str], Any] | None:
    """What turns a word into a value of a type, or None if nothing does."""
    if annotation in (int, float, str):
        return annotation  # type: ignore[no-any-return]
    if get_origin(annotation) is Literal:
        return _OneOf({str(value): value for value in get_args(annotation)})
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _OneOf(dict(annotation.__members__), {str(member.value): member for member in annotation})
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        readers = [_reader(a) for a in get_args(annotation)]
        return None if None in readers else _FirstOf([r for r in readers if r])
    return None


class _OneOf:
    """Reads one of a few words."""

    def __init__(self, values: Mapping[str, Any], also: Mapping[str, Any] | None = None) -> None:
        self.values, self.also = values, also or {}
        self.metavar = "{" + ",".join(values) + "}"

    def __call__(self, word: str) -> Any:
        if word not in self.values and word not in self.also:
            raise CommandLineError(f"not one of {', '.join(self.values)}.", next=did_you_mean(word, self.values))
        return self.values[word] if word in self.values else self.also[word]


class _FirstOf:
    """Reads a word as the first of several types that takes it."""

    def __init__(self, readers: Sequence[Callable[[str], Any]]) -> None:
        self.readers = readers

    def __call__(self, word: str) -> Any:
        for reader in self.readers:
            try:
                return reader(word)
            except (ValueError, CommandLineError):
                continue
        raise ValueError("none of the types of this option takes it")


# the help


def field_help(cls: type) -> dict[str, str]:
    """What the source of a dataclass or named tuple says of each field: in comments above and beside it, in a docstring below it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(base) or "_fields" in vars(base):
            try:
                # A class in a function is indented. `if 1:` makes that right; dedent fails on a text at the margin.
                found.update(_help_in("if 1:\n" + " " + inspect.getsource(base).replace("\n", "\n ")))
            except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # no source, as in an interactive session
                continue
    return found


def _help_in(source: str) -> dict[str, str]:
    comments: dict[int, tuple[int, bool, str]] = {}  # line: column, whether it is alone there, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            (line, column), text = token.start, token.string.lstrip("#").strip()
            if not text.startswith(("noqa", "type:", "pragma:", "fmt:", "ruff:")):
                comments[line] = (column, not token.line[:column].strip(), text)
    cls = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    found: dict[str, str] = {}
    for statement, below in zip(cls.body, [*cls.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        above: list[str] = []
        line = statement.lineno - 1
        while line in comments and comments[line][1] and comments[line][0] == statement.col_offset:
            above.insert(0, comments[line][2])
            line -= 1
        end = statement.end_lineno or statement.lineno
        beside = [comments[n][2] for n in range(statement.lineno, end + 1) if n in comments]
        docs = []
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs.append(inspect.cleandoc(below.value.value))
        found[statement.target.id] = " ".join([*above, *beside, *docs])
    return found
