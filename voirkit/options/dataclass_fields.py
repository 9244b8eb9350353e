"""Command-line options made from the fields of a dataclass, and the instance with their values.

This module is imported only if an instrument has such options, since it needs dataclasses, inspect,
tokenize and typing.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import tokenize
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from voirkit.errors import CommandLineError, ConfigurationError, InstrumentError, did_you_mean
from voirkit.options.configuration import convert

if TYPE_CHECKING:
    from voirkit.options import ExtendedArgumentParser

Builder = Callable[[argparse.Namespace], Any]
Path = tuple[str, ...]
READABLE = (
    "int, float, str, bool, Path, an Enum, a Literal; T | None, list[T], tuple[T, ...] of these; or"
    " a dataclass"
)


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
        parser: The parser that gets the options.
        model: The dataclass, or an instance that holds the defaults.
        path: Place of the instance among the options: ``("a",)``, or ``("a", "b")`` for a dataclass
            in a field of another.
        prefix: Text before the fields' names in the names of the options: empty, or ``training.``
        table: Values from configuration files, ``{field: value}``; they override the defaults.
        origin: Returns the file and line of the configuration that sets the value at a path.

    Returns:
        A function that removes the values from a namespace and makes an instance of the dataclass.
    """
    cls = model if isinstance(model, type) else type(model)
    if not is_dataclass(cls):
        text = f"options can be made from a dataclass, and {cls.__name__} is none."
        raise InstrumentError(text, where=parser.definer or "")
    hints = _hints(cls, parser)
    helps = field_help(cls)
    group = parser.add_argument_group(str(getattr(cls, "__help__", cls.__name__)))
    init_fields = {field.name: field for field in fields(cls) if field.init}
    _check_keys(table, init_fields, path, origin)
    parts: dict[str, Builder] = {}
    for name, field in init_fields.items():
        default = _default(field) if isinstance(model, type) else getattr(model, name)
        field_path = (*path, name)
        annotation = hints[name]
        if is_dataclass(annotation):
            subtable = table.get(name, {})
            if not isinstance(subtable, Mapping):
                text = f"{'.'.join(field_path)} needs to be a table, not {subtable!r}."
                raise ConfigurationError(text, where=origin(field_path))
            inner = annotation if default is MISSING else default
            parts[name] = add_model(parser, inner, field_path, f"{prefix}{name}.", subtable, origin)
        else:
            option = _Option(parser, group, field_path, prefix, annotation, helps.get(name, ""))
            if name in table:
                default = option.from_configuration(table[name], origin(field_path))
            option.add(default)
            parts[name] = option.value

    def build(namespace: argparse.Namespace) -> Any:
        values = {name: part(namespace) for name, part in parts.items()}
        try:
            return cls(**values)
        except ValueError as exc:  # raised by a check in the user's __post_init__
            raise CommandLineError(
                f"{exc}.".replace("..", "."), where=f"the options of {'.'.join(path)}"
            ) from None

    return build


def _check_keys(
    table: Mapping[str, Any],
    names: Collection[str],
    path: Path,
    origin: Callable[[Path], str],
) -> None:
    """Raise ConfigurationError if a configuration sets a field that does not exist."""
    for key in table:
        if key not in names:
            key_path = (*path, key)
            text = f"unknown key '{'.'.join(key_path)}'."
            raise ConfigurationError(text, where=origin(key_path), next=did_you_mean(key, names))


def _default(field: Field[Any]) -> Any:
    """Return a field's default; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _hints(cls: type, parser: ExtendedArgumentParser) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError as exc:
        text = f"an annotation of {cls.__name__} cannot be resolved: {exc}."
        hint = "Define or import what the annotations name at the top of the module."
        raise InstrumentError(text, where=parser.definer or "", next=hint) from None


class _Option:
    """The command-line option of one field (two options for a bool), which converts its value.

    The parsed value is stored in the namespace under the field's path. An absent option stores
    nothing, and the default is used unchanged: argparse would convert a string default as if it had
    been typed.
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
        self.parser = parser
        self.group = group
        self.path = path
        self.help = help
        self.dest = ".".join(path)
        self.name = f"{prefix}{path[-1]}".replace("_", "-")
        self.default: Any = MISSING
        self.optional, self.type = _without_none(annotation)
        self.many, item = _collection_and_item(self.type)
        self.reader: Any = None
        if self.type is bool:
            return
        self.reader = _reader(item)
        if self.reader is None:
            text = (
                f"the field {self.dest} is of type {_type_name(annotation)}, which cannot be read"
                " from a command line."
            )
            raise InstrumentError(
                text, where=parser.definer or "", next=f"What can be: {READABLE}."
            )

    def add(self, default: Any) -> None:
        """Add the option to its group."""
        self.default = default
        dashed = f"-{self.name}" if len(self.name) == 1 else f"--{self.name}"
        escaped = self.help.replace("%", "%%")
        common: dict[str, Any] = {
            "dest": self.dest,
            "default": argparse.SUPPRESS,
            "required": default is MISSING,
        }
        if self.type is bool:
            before, dot, field = self.name.rpartition(".")
            group: Any = self.group
            if default is MISSING:
                group = group.add_mutually_exclusive_group(required=True)
            common.pop("required")
            for option, value in ((dashed, True), (f"--{before}{dot}no-{field}", False)):
                text = escaped if value else f"The opposite of {dashed}."
                if default is value:
                    text = f"{text} (default)".strip()
                group.add_argument(option, action="store_const", const=value, help=text, **common)
            return
        if default is MISSING:
            note = "(required)"
        elif default is None:
            note = ""
        else:
            note = f"(default: {self._words_of(default)})".replace("%", "%%")
        common["help"] = f"{escaped} {note}".strip()
        common["metavar"] = getattr(self.reader, "metavar", None) or self.path[-1].upper()
        if self.many:
            # The values on the command line replace the default, since the default is not in the
            # namespace, where argparse's "extend" would append to it.
            common.update(nargs="*", action="extend")
        self.group.add_argument(dashed, type=self.reader, **common)

    def from_configuration(self, value: Any, where: str) -> Any:
        """Return a configuration's value, converted to the field's type."""
        if value is None and self.optional:
            return value
        if isinstance(value, (Enum, PurePath)) and isinstance(value, self.type):
            return value
        nargs = "*" if self.many else None
        stand_in = argparse.Action([f"--{self.name}"], self.dest, nargs=nargs, type=self.reader)
        if self.type is bool:
            stand_in.nargs = 0
        converted = convert(self.parser, stand_in, self.dest, value, where)
        return self.many(converted) if self.many else converted

    def value(self, namespace: argparse.Namespace) -> Any:
        """Return the field's value, and remove it from the namespace."""
        parsed = vars(namespace).pop(self.dest, MISSING)
        if parsed is MISSING:
            return self.default
        return self.many(parsed) if self.many else parsed

    def _words_of(self, default: Any) -> str:
        if isinstance(default, (list, tuple)):
            return " ".join(map(self._words_of, default)) or "none"
        return default.name if isinstance(default, Enum) else str(default)


def _without_none(annotation: Any) -> tuple[bool, Any]:
    """Return (True if None is allowed, the type without None)."""
    if get_origin(annotation) in (Union, types.UnionType):
        alternatives = get_args(annotation)
        without_none = tuple(type_ for type_ in alternatives if type_ is not type(None))
        if len(without_none) == len(alternatives):
            return False, annotation
        if len(without_none) == 1:
            return True, without_none[0]
        return True, Union[without_none]  # noqa: UP007 - `|` does not take a tuple of types
    return False, annotation


def _collection_and_item(annotation: Any) -> tuple[type | None, Any]:
    """Return (collection type, item type).

    The collection type is list or tuple, or None for a single value. The item type is None if there
    are several.
    """
    if annotation in (list, tuple):
        return annotation, str
    collection = get_origin(annotation)
    if collection not in (list, tuple, Sequence):
        return None, annotation
    items = [item for item in get_args(annotation) if item is not Ellipsis]
    item = items[0] if len(items) == 1 else None
    return (tuple if collection is tuple else list), item


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_origin(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _reader(annotation: Any) -> Callable[[str], Any] | None:
    """Return a function that converts a word to a value of a type; None for an unsupported type."""
    if annotation in (int, float, str):
        return annotation  # type: ignore[no-any-return]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        by_value = {str(member.value): member for member in annotation}
        return _OneOf(dict(annotation.__members__), by_value)
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return annotation
    origin = get_origin(annotation)
    if origin is Literal:
        return _OneOf({str(value): value for value in get_args(annotation)})
    if origin in (Union, types.UnionType):
        return _union_reader(get_args(annotation))
    return None


def _union_reader(annotations: Sequence[Any]) -> _FirstOf | None:
    readers = []
    for annotation in annotations:
        reader = _reader(annotation)
        if reader is None:
            return None
        readers.append(reader)
    return _FirstOf(readers)


class _OneOf:
    """Converter that accepts one of a fixed set of words."""

    def __init__(self, values: Mapping[str, Any], also: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.also = also or {}
        self.metavar = "{" + ",".join(values) + "}"

    def __call__(self, word: str) -> Any:
        if word not in self.values and word not in self.also:
            raise CommandLineError(
                f"not one of {', '.join(self.values)}.", next=did_you_mean(word, self.values)
            )
        return self.values[word] if word in self.values else self.also[word]


class _FirstOf:
    """Converter that uses the first of several types that accepts the word."""

    def __init__(self, readers: Sequence[Callable[[str], Any]]) -> None:
        self.readers = readers

    def __call__(self, word: str) -> Any:
        for reader in self.readers:
            try:
                return reader(word)
            except (ValueError, CommandLineError):
                continue
        raise ValueError("none of the types of this option takes it")


# Help texts from the source of a dataclass


def field_help(cls: type) -> dict[str, str]:
    """Return the help of each field of a dataclass or named tuple, from its source.

    A field's help is the comments above and beside it, and the docstring below it.
    """
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" not in vars(base) and "_fields" not in vars(base):
            continue
        try:
            # The source of a class defined in a function is indented; a line `if 1:` before it
            # makes that valid. textwrap.dedent would fail if a multi-line string in the class has
            # text at the margin.
            indented = inspect.getsource(base).replace("\n", "\n ")
            helps.update(_help_in(f"if 1:\n {indented}"))
        except (OSError, TypeError, SyntaxError, tokenize.TokenError):
            continue  # the class has no source, as in an interactive session
    return helps


class _Comment(NamedTuple):
    column: int
    is_alone: bool  # no code on the same line
    text: str


def _help_in(source: str) -> dict[str, str]:
    comments = _comments(source)
    cls = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    helps: dict[str, str] = {}
    for statement, following in zip(cls.body, [*cls.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        parts = _comments_above(statement, comments)
        last_line = statement.end_lineno or statement.lineno
        for line in range(statement.lineno, last_line + 1):
            if line in comments:
                parts.append(comments[line].text)
        docstring = _string_of(following)
        if docstring is not None:
            parts.append(inspect.cleandoc(docstring))
        helps[statement.target.id] = " ".join(parts)
    return helps


def _comments_above(statement: ast.stmt, comments: Mapping[int, _Comment]) -> list[str]:
    """Return the lines of the comment right above a statement, with the same indentation."""
    texts: list[str] = []
    line = statement.lineno - 1
    while line in comments:
        comment = comments[line]
        if not comment.is_alone or comment.column != statement.col_offset:
            break
        texts.insert(0, comment.text)
        line -= 1
    return texts


def _comments(source: str) -> dict[int, _Comment]:
    """Return the comments by line, except those for tools (``noqa``, ``type:`` ...)."""
    comments: dict[int, _Comment] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#").strip()
        if not text.startswith(("noqa", "type:", "pragma:", "fmt:", "ruff:")):
            line, column = token.start
            comments[line] = _Comment(column, not token.line[:column].strip(), text)
    return comments


def _string_of(statement: ast.stmt | None) -> str | None:
    """Return the string that a statement consists of; None for any other statement."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return None
    value = statement.value.value
    return value if isinstance(value, str) else None
