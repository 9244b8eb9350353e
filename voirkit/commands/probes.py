"""``voirkit probes SCRIPT`` lists what can be probed in a script; ``voirkit init SCRIPT`` writes a
first voirfile.

Both read the source, named on the command line as for a run; neither runs or imports it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from voirkit.commands import printing
from voirkit.errors import CommandLineError, SelectorError, VoirfileError, did_you_mean
from voirkit.options import ExtendedArgumentParser
from voirkit.probes.selector.catalogue import Catalogue, catalogue, catalogue_of_module
from voirkit.probes.selector.offers import FunctionOffers, offers
from voirkit.probes.selector.suggestions import READINGS, Candidate, Candidates
from voirkit.runner import voirfiles as voirfile
from voirkit.runner.script import enter_folder, folder_of, script, shorten

SCHEMA = 1
NOTHING = "nothing in it to be probed: no function, and no variable at its top level"


@dataclass(frozen=True)
class Source:
    """Source code of a script or a module."""

    name: str  # name that the user typed: the path of a script, or the name of a module
    file: str  # its file, for messages: relative if it is in the current folder
    folder: str  # folder where its voirfile belongs
    text: bytes  # the source
    # its functions and variables. ``catalogue.module`` is empty if the source runs as ``__main__``,
    # so that selectors begin with ``//``.
    catalogue: Catalogue


def read_script(name: str) -> Source:
    """Read a script: a file, or a folder or archive with a ``__main__.py``."""
    try:
        program = script(name, [])
    except SyntaxError as error:  # in the __main__.py of a folder
        raise _no_python(error, name) from None
    if program.source is None or program.path is None:
        raise CommandLineError(f"{name!r} holds no Python source.")
    file = os.path.join(name, os.path.basename(program.path)) if os.path.isdir(name) else name
    enter_folder(program.folder)
    try:
        listing = catalogue(program.source, file)
    except SyntaxError as error:
        raise _no_python(error, file) from None
    return Source(name, file, folder_of(name), program.source, listing)


def read_module(name: str) -> Source:
    """Read a module as ``-m`` names it: ``package.module``, a package with a ``__main__``, or
    ``module:function``."""
    folder = os.getcwd()
    enter_folder(folder)
    module, colon, _ = name.partition(":")
    try:
        listing = catalogue_of_module(module)
        if not colon and (listing is None or os.path.basename(listing.filename) == "__init__.py"):
            listing = _main_of(module, is_source=listing is not None)
    except SelectorError as error:
        raise CommandLineError(error.what, where=f"-m {name}", next=error.next) from None
    except SyntaxError as error:
        raise _no_python(error, module) from None
    if listing is None:
        raise CommandLineError("it has no Python source.", where=f"-m {name}")
    with open(listing.filename, "rb") as file:
        text = file.read()
    file_name = shorten(listing.filename)
    listing = replace(listing, filename=file_name, module=module if colon else "")
    return Source(name, file_name, folder, text, listing)


def _main_of(package: str, is_source: bool) -> Catalogue | None:
    try:
        return catalogue_of_module(f"{package}.__main__")
    except SelectorError:
        kind = (
            "is a package without a __main__"
            if is_source
            else "has no Python source and no __main__"
        )
        raise SelectorError(
            f"{package!r} {kind}, so there is nothing to run.", next="Name a module with functions."
        ) from None


def _no_python(error: SyntaxError, name: str) -> CommandLineError:
    where = f"{name}:{error.lineno}" if error.lineno else name
    return CommandLineError(
        f"it does not parse: {error.msg}.", where=where, next=(error.text or "").strip()
    )


# ``voirkit probes``: the list of what can be probed


def list_probes(argv: Sequence[str]) -> int:
    options = list_probes_parser().parse_args(argv)
    words = [word for word in (options.SCRIPT, options.FUNCTION) if word is not None]
    if options.module is None and not words:
        raise CommandLineError("no SCRIPT given.", next="voirkit probes SCRIPT [FUNCTION]")
    source = read_script(words.pop(0)) if options.module is None else read_module(options.module)
    if len(words) > 1:
        raise CommandLineError(
            f"{words[1]!r} is one word too many.", next="All options: voirkit probes --help"
        )
    function = words[0] if words else options.module.partition(":")[2] if options.module else ""
    listed = offers(source.catalogue)
    if function:
        listed = select_functions(listed, function, source.file)
    with printing():
        if options.json:
            print(json.dumps(document(source, listed), indent=1))
        elif sys.stdout is not None and sys.stdout.isatty():
            _draw(rows(source, listed), source)
        else:
            print(plain(rows(source, listed), source))
    return 0


def list_probes_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit probes",
        "voirkit probes [--json] SCRIPT [FUNCTION]\n       voirkit probes [--json] -m MODULE"
        " [FUNCTION]",
        description=(
            "List what can be probed in a script, without running it: the variables and loops of"
            " its top level and functions."
        ),
    )
    parser.add_argument("SCRIPT", nargs="?", help="the script, or a folder with a __main__.py")
    parser.add_argument(
        "FUNCTION", nargs="?", help="only this function or class: train_epoch, Trainer.run, Trainer"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module instead of a script")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def select_functions(listed: list[FunctionOffers], word: str, file: str) -> list[FunctionOffers]:
    """Return the functions that a word names: those with this full name, else those whose last part
    it is, else all functions inside the class or function of this name."""
    name = word.strip("/").replace("/", ".")
    matches = [f for f in listed if f.function.name == name or f.prefix == word]
    if not matches:
        matches = [f for f in listed if f.function.path[-1] == name]
    if not matches:
        matches = [f for f in listed if f".{name}." in f".{f.function.name}."]
    if not matches:
        names = [f.function.name for f in listed]
        near = did_you_mean(name, [*names, *(f.function.path[-1] for f in listed)])
        raise CommandLineError(
            f"{file} has no function {word!r}.",
            next=near or f"Its functions: {', '.join(names) or 'none'}.",
        )
    return matches


def document(source: Source, listed: list[FunctionOffers]) -> dict[str, Any]:
    """Return the document that ``--json`` prints. Entries that cannot be probed have no selector,
    and the reason under ``refused``."""
    return {
        "schema": SCHEMA,
        "name": source.name,
        "file": source.file,
        "functions": [_as_json(function, source.file) for function in listed],
    }


def _as_json(listed: FunctionOffers, file: str) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in ("parameter", "variable", "loop", "return", "yield")
    }
    for offer in listed.offers:
        selectors = offer.selectors
        selector = {"selector": selectors[0] if selectors else None}
        row: dict[str, Any]
        if offer.kind == "loop":
            row = {"names": offer.names, "line": offer.lines[0], "selectors": selectors}
        elif offer.kind in ("return", "yield"):
            row = {"lines": offer.lines, **selector}
        else:
            row = {"name": offer.names[0], "line": offer.lines[0], **selector}
        rows[offer.kind].append({**row, "refused": offer.refused or None})
    returns, yields = (next(reversed(rows[kind]), None) for kind in ("return", "yield"))
    return {
        "name": listed.function.name,
        "file": file,
        "line": listed.function.line,
        "prefix": listed.prefix,
        "refused": listed.refused or None,
        "parameters": rows["parameter"],
        "variables": rows["variable"],
        "loops": rows["loop"],
        "returns": returns,
        "yields": yields,
    }


# A row of the printed table: (where, what, name, selector, why it cannot be probed). The first row
# of a function is the function itself.

Row = tuple[str, str, str, str, str]


def rows(source: Source, listed: list[FunctionOffers]) -> list[list[Row]]:
    """Return the rows of the printed table, one list for each function."""
    return [_rows_of(function, source.file) for function in listed]


def _rows_of(listed: FunctionOffers, file: str) -> list[Row]:
    function = listed.function
    table: list[Row] = [(f"{file}:{function.line}", "function", function.name, "", listed.refused)]
    if listed.refused:
        return table
    ranked = []
    for offer in listed.offers:
        if offer.lines or offer.selectors:
            # An implicit return is shown at the function's last line.
            line = offer.lines[0] if offer.lines else function.last_line
            place = (offer.kind != "parameter", line, offer.kind != "loop")
            selector = offer.selectors[0] if offer.selectors else ""
            names = ", ".join(offer.names)
            row = (f"{file}:{line}", offer.kind, names, selector, offer.refused)
            ranked.append((place, row))
    ranked.sort(key=lambda placed: placed[0])
    return table + [row for _, row in ranked]


def plain(groups: list[list[Row]], source: Source) -> str:
    """Return the rows as aligned text, with nothing cut off, for files and pipes."""
    if not groups:
        return f"{source.file}: {NOTHING}."
    widths = [max(len(row[i]) for group in groups for row in group) for i in range(3)]
    texts = []
    for group in groups:
        lines = []
        for where, kind, name, selector, refused in group:
            last = selector or (f"(cannot be probed: {refused})" if refused else "")
            lines.append(
                f"{where:<{widths[0]}}  {kind:<{widths[1]}}  {name:<{widths[2]}}  {last}".rstrip()
            )
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
    table = Table(
        "where", "what", "name", "selector", box=None, header_style="bold", pad_edge=False
    )
    for column in table.columns:
        column.overflow = "fold"
    for i, group in enumerate(groups):
        if i:
            table.add_row()
        for where, kind, name, selector, refused in group:
            style = "dim" if refused else "bold" if kind == "function" else ""
            last = Text(f"cannot be probed: {refused}") if refused else Text(selector, style="cyan")
            table.add_row(Text(where), Text(kind), Text(name), last, style=style)
    console.print(table)


# ``voirkit init``: the first voirfile of a script

NAME = "voirfile.py"
LONGEST_QUOTE = 90  # maximum characters of a line of the script that a comment quotes

# For each reading (a value under a name that instruments know): its purpose, and the code to write
# if the script does not show how to get it.
MEANING = {
    "use_cuda": (
        "Whether the script computes on a GPU. --verify asks for it.",
        ['ov.probe("//FUNCTION > VARIABLE as use_cuda").give()'],
    ),
    "model": ("What is trained.", ['ov.probe("//FUNCTION > VARIABLE as model").give()']),
    "loader": (
        "Where the batches come from. --loading-rate needs it.",
        ['ov.probe("//FUNCTION > VARIABLE as loader").give()'],
    ),
    "loss": (
        "The loss, each time that it is set.",
        ['ov.probe("//FUNCTION > VARIABLE as loss").give()'],
    ),
    "step+batch": (
        "The end of each turn of the training loop, with its batch. --train-rate needs it.",
        ['ov.probe("//FUNCTION(BATCH as batch) > #endloop_BATCH as step").give()'],
    ),
    "compute_start/end": (
        (
            "From the beginning (!) to the end (!!) of each turn, so without the wait for a batch."
            " --compute-rate needs it."
        ),
        [
            'ov.probe("//FUNCTION(BATCH as batch, !#loop_BATCH as compute_start, !!#endloop_BATCH'
            ' as compute_end)").give()'
        ],
    ),
}
HEAD = '''\
"""What to observe of {script}: written by `voirkit init` from its source, yours to change.

The script knows nothing of this file; voirkit finds it beside the script. Every function here whose name starts with
``instrument_`` runs along with the script; each ``yield`` waits for the end of a phase of the run. A probe names a
variable of the script, and ``.give()`` puts each value of it into the stream ``ov.given``, where voirkit's
instruments (--train-rate, --dash, --verify) look for names that they know; "as" gives a variable such a name.
{probes} lists all that can be probed.
"""


def instrument_probes(ov):
    """Gives what voirkit's instruments look for, under the names that they know."""
'''


@dataclass(frozen=True)
class Entry:
    """One reading in the voirfile: the candidate found for it in the script, and its lines in the
    voirfile."""

    reading: str
    candidate: Candidate | None
    lines: tuple[str, ...]

    @property
    def is_active(self) -> bool:
        """True if the reading is probed; otherwise its lines are commented out."""
        return self.candidate is not None and not self.candidate.obstacle


def write_voirfile(argv: Sequence[str]) -> int:
    options = write_voirfile_parser().parse_args(argv)
    if options.SCRIPT is None:
        raise CommandLineError("no SCRIPT given.", next="voirkit init SCRIPT")
    source = read_script(options.SCRIPT)
    path = os.path.join(source.folder, NAME)
    if os.path.lexists(path):
        raise _is_there(path)
    candidates = Candidates(source.catalogue)
    entries = [_entry(reading, candidates, source) for reading in READINGS]
    _write(path, voirfile_text(source, candidates, entries))
    print("\n".join(_words(path, source, candidates, entries)))
    return 0


def write_voirfile_parser() -> ExtendedArgumentParser:
    text = (
        f"Write a {NAME} beside a script, with probes on its training loop. The script is not run,"
        " and no file is overwritten."
    )
    parser = ExtendedArgumentParser("voirkit init", "voirkit init SCRIPT", description=text)
    parser.add_argument("SCRIPT", nargs="?", help="the script, or a folder with a __main__.py")
    return parser


def voirfile_text(source: Source, candidates: Candidates, entries: Sequence[Entry]) -> str:
    """Return the text of the voirfile."""
    # The script's name is put into a docstring: a name that could end the docstring is replaced.
    script = os.path.basename(os.path.normpath(source.name))
    command = f"`voirkit probes {script}`"
    if not re.sub("[._-]", "", script).isalnum():
        script = "the script"
        command = "`voirkit probes SCRIPT`"
    parts = [HEAD.format(script=script, probes=command)]
    if not any(entry.candidate for entry in entries):
        parts.append(
            "    # Nothing in the script looks like training: no loop leads to a .backward().\n"
        )
    parts += ["".join(f"    {line}\n" for line in entry.lines) for entry in entries]
    loops = candidates.other_loops()
    if loops:
        file = _one_line(os.path.basename(source.file))
        listed = ", ".join(f"{where} ({file}:{line})" for where, line in loops)
        parts.append(f"    # Other loops that train, and are not probed: {listed}.\n")
    line = candidates.options()
    if line is not None:
        parts.append(
            f"    # {_quoted(source, line)}\n    # The script's options need no probe: voirkit"
            " --options gives what the parser returns.\n"
        )
    return "\n".join(parts)


def _entry(reading: str, candidates: Candidates, source: Source) -> Entry:
    purpose, template = MEANING[reading]
    candidate = candidates.find(reading)
    lines = [f"# {purpose}"]
    if candidate is None:
        lines += [
            "# Not found in the script. Fill in and take away the #:",
            *(f"# {line}" for line in template),
        ]
        return Entry(reading, None, tuple(lines))
    lines.append(f"# {_quoted(source, candidate.line)}")
    if candidate.obstacle:
        lines += [
            f"# Not to be probed as it is: {_one_line(candidate.obstacle)}.",
            f"# {candidate.code or template[0]}",
        ]
    else:
        lines += [f"# {candidate.note}"] if candidate.note else []
        lines.append(candidate.code)
    return Entry(reading, candidate, tuple(lines))


def _quoted(source: Source, line: int) -> str:
    """Return a line of the source as ``main.py:12: loss = criterion(output, target)``."""
    lines = source.text.decode("utf-8", "replace").splitlines()
    text = _one_line(lines[line - 1]) if 0 < line <= len(lines) else ""
    text = text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."
    return f"{_one_line(os.path.basename(source.file))}:{line}: {text}"


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _write(path: str, text: str) -> None:
    try:
        with open(path, "x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise VoirfileError(
            f"it cannot be written: {error.strerror}.", where=shorten(path)
        ) from None


def _is_there(path: str) -> VoirfileError:
    hint = "Delete or rename it first, or add to it what `voirkit probes` lists."
    return VoirfileError(
        f"there is a {NAME} already, and it is left as it is.", where=shorten(path), next=hint
    )


def _words(
    path: str, source: Source, candidates: Candidates, entries: Sequence[Entry]
) -> list[str]:
    """Return the lines to print on stdout."""
    lines = [f"{shorten(path)} is written. It gives"]
    active = [entry.candidate for entry in entries if entry.candidate and entry.is_active]
    width = max((len(candidate.reading) for candidate in active), default=0)
    lines += [
        f"  {candidate.reading:<{width}}  {source.file}:{candidate.line}  {candidate.selector}"
        for candidate in active
    ]
    if not active:
        lines[0] = (
            f"{shorten(path)} is written, but gives nothing yet: no training loop was found that"
            " can be probed."
        )
    missing = [entry.reading for entry in entries if not entry.is_active]
    if missing:
        lines.append(
            f"Commented out, with hints, as the script does not show how: {', '.join(missing)}."
        )
    other_files = [
        other
        for other in voirfile.find(source.folder, os.getcwd())
        if other != os.path.realpath(path)
    ]
    lines += [f"From here {shorten(other)} is used too." for other in other_files]
    options = " --options" if candidates.options() is not None else ""
    lines.append(
        f"Next: voirkit {f'--verify{options}' if active else 'probes'} {shlex.quote(source.name)}"
    )
    return lines
