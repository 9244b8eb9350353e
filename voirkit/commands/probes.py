"""``voirkit probes SCRIPT``: what can be probed in a script, with the selectors to paste. Never runs the script."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from voirkit.commands.target import read_module, read_script, read_words
from voirkit.errors import CommandLineError, did_you_mean
from voirkit.options import ExtendedArgumentParser
from voirkit.probes.selector.suggestions import FunctionOffers, offers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.commands.target import Source

SCHEMA = 1
NOTHING = "nothing in it to be probed: no function, and no variable at its top level"


def main(argv: Sequence[str]) -> int:
    """List what can be probed."""
    options = read_words(_parser(), argv)
    words = [word for word in (options.SCRIPT, options.FUNCTION) if word is not None]
    if options.module is None and not words:
        raise CommandLineError("no SCRIPT given.", next="voirkit probes SCRIPT [FUNCTION]")
    source = read_script(words.pop(0)) if options.module is None else read_module(options.module)
    if len(words) > 1:
        raise CommandLineError(f"{words[1]!r} is one word too many.", next="All options: voirkit probes --help")
    function = words[0] if words else options.module.partition(":")[2] if options.module else ""
    listed = offers(source.catalogue)
    if function:
        listed = select_functions(listed, function, source.file)
    try:
        if options.json:
            print(json.dumps(document(source, listed), indent=1))
        elif sys.stdout is not None and sys.stdout.isatty():
            _draw(rows(source, listed), source)
        else:
            print(plain(rows(source, listed), source))
        sys.stdout.flush()
    except BrokenPipeError:  # `voirkit probes main.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit probes",
        "voirkit probes [--json] SCRIPT [FUNCTION]\n       voirkit probes [--json] -m MODULE [FUNCTION]",
        description="List what can be probed in a script, without running it: the variables and loops of its top level and functions.",
    )
    parser.add_argument("SCRIPT", nargs="?", help="the script, or a folder with a __main__.py")
    parser.add_argument("FUNCTION", nargs="?", help="only this function or class: train_epoch, Trainer.run, Trainer")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module instead of a script")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def select_functions(listed: list[FunctionOffers], word: str, file: str) -> list[FunctionOffers]:
    """The functions that a word names: by their whole name, else by its last part, else all in a class or function."""
    name = word.strip("/").replace("/", ".")
    exact = [one for one in listed if one.function.name == name or one.prefix == word]
    found = exact or [one for one in listed if one.function.path[-1] == name]
    found = found or [one for one in listed if f".{one.function.name}.".find(f".{name}.") >= 0]
    if not found:
        names = [one.function.name for one in listed]
        near = did_you_mean(name, [*names, *(one.function.path[-1] for one in listed)])
        raise CommandLineError(f"{file} has no function {word!r}.", next=near or f"Its functions: {', '.join(names) or 'none'}.")
    return found


def document(source: Source, listed: list[FunctionOffers]) -> dict[str, Any]:
    """What ``--json`` prints. What cannot be probed has no selector, and the reason under ``refused``."""
    return {"schema": SCHEMA, "name": source.name, "file": source.file, "functions": [_as_json(one, source.file) for one in listed]}


def _as_json(one: FunctionOffers, file: str) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("parameter", "variable", "loop", "return", "yield")}
    for offer in one.offers:
        selector, refused = offer.selectors[0] if offer.selectors else None, offer.refused or None
        if offer.kind == "loop":
            row = {"names": offer.names, "line": offer.lines[0], "selectors": offer.selectors, "refused": refused}
        elif offer.kind in ("return", "yield"):
            row = {"lines": offer.lines, "selector": selector, "refused": refused}
        else:
            row = {"name": offer.names[0], "line": offer.lines[0], "selector": selector, "refused": refused}
        found[offer.kind].append(row)
    return {
        "name": one.function.name,
        "file": file,
        "line": one.function.line,
        "prefix": one.prefix,
        "refused": one.refused or None,
        "parameters": found["parameter"],
        "variables": found["variable"],
        "loops": found["loop"],
        "returns": next(reversed(found["return"]), None),
        "yields": next(reversed(found["yield"]), None),
    }


# For people: (where, what, name, selector, refused); the first row of a function has its name as what.

Row = tuple[str, str, str, str, str]


def rows(source: Source, listed: list[FunctionOffers]) -> list[list[Row]]:
    """A table's rows, function by function."""
    return [_rows_of(one, source.file) for one in listed]


def _rows_of(one: FunctionOffers, file: str) -> list[Row]:
    function = one.function
    table: list[Row] = [(f"{file}:{function.line}", "function", function.name, "", one.refused)]
    offers = [] if one.refused else [offer for offer in one.offers if offer.lines or offer.selectors]
    # The line of a return that is not written is the function's last.
    lines = {id(offer): offer.lines[0] if offer.lines else function.last_line for offer in offers}
    for offer in sorted(offers, key=lambda offer: (offer.kind != "parameter", lines[id(offer)], offer.kind != "loop")):
        selector = offer.selectors[0] if offer.selectors else ""
        table.append((f"{file}:{lines[id(offer)]}", offer.kind, ", ".join(offer.names), selector, offer.refused))
    return table


def plain(groups: list[list[Row]], source: Source) -> str:
    """Aligned text, nothing cut off, for files and pipes."""
    if not groups:
        return f"{source.file}: {NOTHING}."
    widths = [max(len(row[i]) for group in groups for row in group) for i in range(3)]
    texts = []
    for group in groups:
        lines = []
        for where, what, name, selector, refused in group:
            last = selector or (f"(cannot be probed: {refused})" if refused else "")
            lines.append(f"{where:<{widths[0]}}  {what:<{widths[1]}}  {name:<{widths[2]}}  {last}".rstrip())
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def _draw(groups: list[list[Row]], source: Source) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not groups:
        console.print(Text(f"{source.file}: {NOTHING}."))
        return
    table = Table("where", "what", "name", "selector", box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for i, group in enumerate(groups):
        if i:
            table.add_row()
        for where, what, name, selector, refused in group:
            style = "dim" if refused else "bold" if what == "function" else ""
            last = Text(f"cannot be probed: {refused}") if refused else Text(selector, style="cyan")
            table.add_row(Text(where), Text(what), Text(name), last, style=style)
    console.print(table)
