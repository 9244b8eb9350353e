"""Parser of the command line and configuration files: argparse with voirkit's rules.

Options before SCRIPT are voirkit's; all words after SCRIPT are the script's and are not examined.
Options are never abbreviated. Errors raise CommandLineError: nothing here prints or ends Python,
except ``--help`` and ``--version``. Every run imports this module.
"""

from __future__ import annotations

import argparse
import os
import sys
from argparse import OPTIONAL
from collections.abc import Callable, Iterable, Mapping, Sequence

from voirkit.errors import (
    CommandLineError,
    ConfigurationError,
    InstrumentError,
    VoirkitError,
    did_you_mean,
)
from voirkit.options.argv import (
    MODULE_SYNTAX,
    SYNTAX,
    Words,
    as_argparse_reads_it,
    asks_for_help,
    values_of,
    why_no_script,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action, Namespace
    from typing import Any, NoReturn

    from voirkit.options.configuration import Setting


BUILT_IN, PLUGIN, VOIRFILE = range(3)
# groups of options in --help, named for what a user wants
GROUPS = ("see a run", "look deeper", "try a change", "CI", "output")


class _HelpFormatter(argparse.HelpFormatter):
    """argparse's help formatter with two differences: it gets the width of the terminal without
    ``shutil``, and accepts a lone ``%`` in a help text."""

    def __init__(
        self,
        prog: str,
        indent_increment: int = 2,
        max_help_position: int = 28,
        width: int | None = None,
    ) -> None:
        # argparse makes a formatter for each option that is added. Without a width, the formatter
        # would import shutil (5 ms).
        super().__init__(prog, indent_increment, max_help_position, width or _columns() - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        # no line break within a word such as --torch-profile
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # a text with line breaks is a list that is formatted already
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _expand_help(self, action: Action) -> str:
        try:
            return super()._expand_help(action)
        except (ValueError, TypeError, KeyError):
            return action.help or ""


class _Group(argparse._ArgumentGroup):
    """A group of options in the help text. argparse (3.10-3.15) adds every option to a group, so
    that ``_add_action`` is called for every option."""

    def __init__(self, parser: ExtendedArgumentParser, *args: Any, **kwargs: Any) -> None:
        super().__init__(parser, *args, **kwargs)
        self._parser = parser

    def _add_action(self, action: Any) -> Any:
        self._parser._claim(action)
        return super()._add_action(action)


class ExtendedArgumentParser(argparse.ArgumentParser):
    """An argparse parser that also takes options from dataclasses and from configuration files.

    The arguments are those of ArgumentParser. Without ``prog`` this is the parser of ``voirkit``
    itself, which reads a command line with ``parse_command``. With ``prog`` it is the parser of a
    subcommand, which reads a command line with ``parse_args``.
    """

    def __init__(
        self, prog: str | None = None, usage: str | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if prog is None:
            prog = "voirkit"
            usage = usage or f"{SYNTAX}\n       {MODULE_SYNTAX}"
        # who adds options now, such as ``instrument_x (voirfile.py:3)``; None for voirkit itself
        self.definer: str | None = None
        self._definers: dict[str, str | None] = {}
        # precedence of the options that are added now: ``BUILT_IN``, ``PLUGIN`` or ``VOIRFILE``. A
        # new option takes the name of an earlier option with a lower precedence.
        self.precedence = BUILT_IN
        self._precedences: dict[str, int] = {}
        # names taken from earlier options, each with the definer of the new option
        self.displaced: dict[str, str] = {}
        # returns the description in the help text; called only for ``--help``
        self.describe: Callable[[], str] | None = None
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        self._was_read = False
        self._settings: list[Setting] = []
        self._early: dict[str, list[str]] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._origins: dict[tuple[str, ...], str] = {}
        self._builders: dict[str, Callable[[Namespace], object]] = {}
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(prog, usage, *args, **kwargs)

    # adding options

    def add_argument_group(self, *args: Any, **kwargs: Any) -> argparse._ArgumentGroup:
        """Add a group of options, as argparse does."""
        group = _Group(self, *args, **kwargs)
        self._action_groups.append(group)
        return group

    def _add_action(self, action: Any) -> Any:
        if self.definer is None or not action.option_strings:
            return super()._add_action(action)
        return self.group("instruments")._add_action(action)

    def group(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of that title in ``--help``."""
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    def _claim(self, action: Action) -> None:
        """Register a new option and who adds it. Raises InstrumentError: it cannot be added."""
        who = self.definer
        if action.help == argparse.SUPPRESS:
            action.help = argparse.SUPPRESS  # the same object, since argparse compares by identity
        self._check_addition(action)
        for name in action.option_strings:
            if name in self._option_string_actions and self.conflict_handler == "error":
                self._displace(name)
            self._definers[name] = who
            self._precedences[name] = self.precedence

    def _check_addition(self, action: Action) -> None:
        where = self.definer or ""
        names = ", ".join(action.option_strings) or action.dest
        if self._was_read:
            text = f"the option {names} comes after the command line has been read."
            hint = (
                "Add options in phase init: after `yield ov.phases.init`, before any other phase."
            )
            raise InstrumentError(text, where=where, next=hint)
        if self.definer is None:
            return
        if not action.option_strings:
            text = f"{names!r} is no option: its name needs dashes in front."
            raise InstrumentError(text, where=where, next=f"Write: '--{names}'.")
        if "-m" in action.option_strings:
            hint = "Take another letter, or a long name."
            raise InstrumentError("-m is voirkit's own: it runs a module.", where=where, next=hint)

    def _displace(self, name: str) -> None:
        """Take the name of an earlier option for a new one. Raises InstrumentError: the earlier
        option keeps its name."""
        who = self.definer
        first = self._definers.get(name)
        if first == who:
            raise InstrumentError(f"the option {name} is added twice.", where=who or "")
        if first is None or who is None:
            text = f"the option {name} is voirkit's own."
            raise InstrumentError(text, where=first or who or "", next="Give it another name.")
        if self._precedences[name] >= self.precedence:
            text = f"the option {name} is added by {first} and by {who}."
            raise InstrumentError(text, next="Rename it in one of them.")
        conflict = (name, self._option_string_actions[name])
        self._handle_conflict_resolve(None, [conflict])  # type: ignore[arg-type]  # None is unused
        self.displaced[name] = who

    def format_help(self) -> str:
        """Return the help text, as argparse does, with the description that ``describe`` makes."""
        if self.describe is not None:
            self.description = self.describe()
        return super().format_help()

    def defined_by(self, option: str) -> str | None:
        """Return who added an option (given with its dashes); None if it is voirkit's own."""
        return self._definers.get(option)

    def option_names(self) -> Iterable[str]:
        """Return the names of all options, with their dashes."""
        return self._option_string_actions.keys()

    def value(self, options: Namespace, option: str) -> Any:
        """Return the parsed value of an option that was added with the current ``precedence``; None
        if an option with a higher precedence (of a plugin or a voirfile) has taken its name."""
        if self._precedences.get(option) != self.precedence:
            return None
        return getattr(options, option, None)

    def add_from_model(self, dest: str, model: Any, flatten: bool = True) -> None:
        """Add an option for each field of a dataclass.

        The help text of an option is the comments above and beside the field and the docstring
        below it. A bool field gives ``--x`` and ``--no-x``, a field with a name of one letter gives
        ``-x``, and a list field takes several values. A field without a default is required, unless
        a configuration has a value for it.

        Args:
            dest: Name of the attribute for the values: ``options.<dest>`` is an instance of the
                dataclass.
            model: The dataclass, or an instance that holds the defaults.
            flatten: True to call the options ``--field``, False for ``--dest.field``.

        Raises:
            InstrumentError: ``model`` is not a dataclass, a field has a type that cannot be read
                from a command line, or another option or dataclass uses ``dest``.
            ConfigurationError: The configuration of ``dest`` does not fit the dataclass.
        """
        from voirkit.options.dataclass_fields import add_model

        if dest in self._builders:
            raise InstrumentError(
                f"two dataclasses want the place options.{dest}.", where=self.definer or ""
            )
        for action in self._actions:
            if action.dest == dest:
                name = action.option_strings[0] if action.option_strings else dest
                text = f"options.{dest} is where the value of {name} stands."
                hint = (
                    "Call the parameter that takes the dataclass otherwise, such as"
                    f" {dest}_options."
                )
                raise InstrumentError(text, where=self.definer or "", next=hint)
        table = self._tables.get(_plain(dest), {})
        self._builders[dest] = add_model(
            self, model, (dest,), "" if flatten else f"{dest}.", table, self._origin
        )

    # configuration

    def merge_base_config(self, config: Mapping[str, Any], where: str = "") -> None:
        """Set defaults for dataclasses; values that are merged later win. To be called before
        ``add_from_model``.

        Args:
            config: ``{dest: {field: value}}``; a table may be partial.
            where: The file and line of the configuration, for messages.
        """
        if self._builders:
            text = (
                "merge_base_config has to come before add_from_model: it decides which options are"
                " required."
            )
            raise InstrumentError(text, where=self.definer or "")
        for dest, table in config.items():
            if not isinstance(table, Mapping):
                raise ConfigurationError(
                    f"{dest} needs to be a table of settings, not {table!r}.", where=where
                )
            name = _plain(dest)
            self._merge(self._tables.setdefault(name, {}), table, (name,), where)

    def _merge(
        self, into: dict[str, Any], table: Mapping[str, Any], path: tuple[str, ...], where: str
    ) -> None:
        self._origins[path] = where
        for key, value in table.items():
            name = _plain(key)
            value_path = (*path, name)
            if isinstance(value, Mapping):
                if not isinstance(into.get(name), dict):
                    into[name] = {}
                self._merge(into[name], value, value_path, where)
            else:
                into[name] = value
                self._origins[value_path] = where

    def _origin(self, path: tuple[str, ...]) -> str:
        """Return the file and line from which a value in a table was read."""
        return self._origins.get(tuple(map(_plain, path)), "")

    def apply(self, settings: Iterable[Setting]) -> None:
        """Apply settings from configuration files. To be called before instruments add dataclasses.

        Tables are for dataclasses and are merged now. Other settings are for options, by the name
        of the option without dashes. They are applied in ``parse_command``, when all options are
        known; a setting for which there is no option is an error then.
        """
        for setting in settings:
            table = setting.table()
            if table is None:
                self._settings.append(setting)
            else:
                self.merge_base_config(table, setting.where)

    def keys(self) -> dict[str, tuple[Action, str]]:
        """Return the options by their names in configurations (no dashes in front, ``_`` for
        ``-``), each as its argparse action and its name."""
        return {
            _plain(name.lstrip("-")): (action, name)
            for name, action in self._option_string_actions.items()
        }

    def has_table(self, dest: str) -> bool:
        """True if a table named ``dest`` sets the defaults of a dataclass that was added."""
        return _plain(dest) in map(_plain, self._builders)

    def _check_tables(self) -> None:
        for dest in self._tables:
            if not self.has_table(dest):
                if dest in self.keys():
                    hint = f"{dest} is an option, not a table."
                else:
                    tables = ", ".join(self._builders) or "none"
                    hint = did_you_mean(dest, self._builders) or f"Tables that are used: {tables}."
                raise ConfigurationError(
                    f"nothing uses the table '{dest}'.", where=self._origin((dest,)), next=hint
                )

    # reading the command line

    def split(self, argv: Sequence[str]) -> tuple[list[str], str | None, str | None, list[str]]:
        """Split a command line into voirkit's own words, the script, the module, and the arguments
        of the script or module."""
        words = Words(argv, self._option_string_actions)
        given, end = words.read()
        own_words = words.words[:end]
        if asks_for_help(given):
            return own_words, None, None, []
        return own_words, *words.target(end)

    def guess_script(self, argv: Sequence[str]) -> tuple[str | None, str | None]:
        """Return (script, module), guessed before instruments have added their options."""
        return Words(argv, self._option_string_actions, final=False).guess()[1:]

    def early_values(self, argv: Sequence[str], option: str) -> list[str]:
        """Return the values of one of voirkit's own options, before instruments have added their
        options. ``parse_command`` raises an error if it finds other values."""
        values = Words(argv, self._option_string_actions, final=False).early_values(option)
        self._early[option] = values
        return values

    def parse_command(self, argv: Sequence[str] | None = None) -> Namespace:
        """Read a whole command line; afterwards no option can be added.

        Returns:
            The options, with ``SCRIPT``, ``MODULE`` (each a string or None) and ``ARGV`` (a list).

        Raises:
            CommandLineError: The command line is wrong.
            ConfigurationError: The settings given to ``apply`` are wrong.
            SystemExit: With code 0, after ``--help`` or ``--version``.
        """
        words = Words(sys.argv[1:] if argv is None else argv, self._option_string_actions)
        given, end = words.read()
        # --help comes last, since it may need the values of the other options
        given.sort(key=lambda option: asks_for_help([option]))
        own_words: list[str] = []
        for action, name, values in given:
            own_words += as_argparse_reads_it(action, name, values)
        if asks_for_help(given):
            super().parse_known_args(own_words)
        script, module, arguments = words.target(end)
        if not script and module is None:
            raise CommandLineError("no SCRIPT given.", next=why_no_script(given))
        for option, values in self._early.items():
            if values != values_of(option, given):
                raise CommandLineError(
                    f"{option} has to stand before the options that instruments add.", where=option
                )
        configured = self._configured({action.dest for action, _, _ in given})
        namespace: Namespace = super().parse_known_args(own_words)[0]
        vars(namespace).update(configured)
        self._build(namespace)
        namespace.SCRIPT = script
        namespace.MODULE = module
        namespace.ARGV = arguments
        self._was_read = True
        return namespace

    def _configured(self, given: set[str]) -> dict[str, object]:
        """Return the values of options that configuration files set and the command line does
        not."""
        self._check_tables()
        values: dict[str, object] = {}
        if self._settings:
            from voirkit.options.configuration import values_for

            values = values_for(self, self._settings)
        for action in self._actions:
            if action.required and action.option_strings:
                if action.dest not in given and action.dest not in values:
                    definer = self.defined_by(action.option_strings[0])
                    because = f": {definer} requires it" if definer else ""
                    raise CommandLineError(f"{name_of(action)} has to be given{because}.")
                action.required = False  # argparse does not see the values in configurations
        return {dest: value for dest, value in values.items() if dest not in given}

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse a command line that consists only of this parser's own words, as argparse does.
        Options may stand between positional arguments."""
        self._check_tables()
        options, extra_words = self.parse_known_intermixed_args(args, namespace)
        self._build(options)  # Python 3.14 does not call parse_known_args, which does this
        unknown = next((word for word in extra_words if word.startswith("-")), None)
        if unknown is not None:
            raise Words(extra_words, self._option_string_actions).unknown(unknown, self.prog)
        if extra_words:
            text = f"{extra_words[0]!r} is one word too many."
            raise CommandLineError(text, next=f"All options: {self.prog} --help")
        return options

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words that are known, as argparse does."""
        self._check_tables()
        options, extra_words = super().parse_known_args(args, namespace)
        self._build(options)
        return options, extra_words

    def _build(self, namespace: Namespace) -> None:
        for dest, builder in self._builders.items():
            if not hasattr(namespace, dest):  # argparse may parse twice: at first only the options
                setattr(namespace, dest, builder(namespace))

    # values, and errors in them

    def error(self, message: str) -> NoReturn:
        """Raise CommandLineError for an error that argparse itself has found."""
        text = message.removeprefix("argument ").rstrip(".")
        raise CommandLineError(f"{text}.", next=f"All options: {self.prog} --help")

    def _get_value(self, action: Action, arg_string: str) -> Any:
        """Return a word converted to the type of its option. argparse's own method would hide why
        the type refuses the word."""
        type_: Any = self._registry_get("type", action.type, action.type)
        separator = "=" if action.nargs == OPTIONAL else " "
        where = f"{name_of(action)}{separator}{arg_string}"
        try:
            return type_(arg_string)
        except VoirkitError as exc:
            raise CommandLineError(exc.what, where=exc.where or where, next=exc.next) from None
        except (argparse.ArgumentTypeError, ValueError, TypeError) as exc:
            by_type = {int: "not a whole number", float: "not a number"}
            text = by_type.get(type_) or str(exc) or "not such a value"
            raise CommandLineError(f"{text.rstrip('.')}.", where=where) from None
        except Exception as exc:  # the type of a voirfile's option may be any function
            text = (
                f"the type of {name_of(action)} fails on {arg_string!r}: {type(exc).__name__}:"
                f" {exc}."
            )
            raise InstrumentError(text, where=self.defined_by(name_of(action)) or "") from None

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), choices)
        raise CommandLineError(
            f"not one of {', '.join(choices)}.", where=f"{name_of(action)} {value}", next=hint
        )


def name_of(action: Action) -> str:
    """Return the longest name of an option, or the name of a positional argument."""
    return max(action.option_strings, key=len, default=action.dest)


def _plain(name: str) -> str:
    """Return a name in the form that is used to compare names in configurations: ``train_rate`` for
    ``train-rate``."""
    return name.replace("-", "_")


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(1).columns or 80
    except (OSError, ValueError):
        return 80


_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
    "TI": 1 << 40,
}


def size(text: str) -> int:
    """Return the number of bytes for a text such as ``1GB``, ``500 MB``, ``64MiB``, ``1000000``.
    Raises ValueError: the text is not a size."""
    word = text.strip().upper()
    digits = word.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    factor = _UNITS.get(word[len(digits) :].strip().removesuffix("B"))
    try:
        value = (int(digits) if digits.isdecimal() else float(digits)) * (factor or 0)
    except ValueError:
        value = -1
    if factor is None or not 0 <= value < float("inf"):
        raise ValueError("not a size, such as 4GB, 500MB or 1000000 (bytes)")
    return int(value)
