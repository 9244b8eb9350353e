"""What pages of the reference are made of when the site is built: what stands between ``<!-- generated: NAME -->``
and ``<!-- end -->`` is replaced.

A Sphinx extension. What it writes is of the parsers of the command line and the schema of ``summary.json``: it cannot be out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from voirkit.commands.command_lines import CommandLine, command_lines
from voirkit.commands.explain import paragraphs
from voirkit.findings import CATALOGUE, Severity
from voirkit.runs.summary import SCHEMA_FILE, summary_schema

_HERE = Path(__file__).parent
_HUBS = ("reference/instruments.md",)  # whose tables say which page an option has


def command_line() -> str:
    """A section for each command, with its usage and options in the groups of ``--help``."""
    pages = dict(_pages())
    return "\n".join(
        line for command in command_lines(with_plugins=False) for line in _command(command, pages)
    )


def _command(command: CommandLine, pages: dict[str, str]) -> Iterator[str]:
    parser = command.parser
    assert parser is not None, f"voirkit {command.word} does not show its parser"
    usage = parser.format_usage().removeprefix("usage: ").splitlines()
    yield from (
        f"## {parser.prog if command.word else 'voirkit SCRIPT'}",
        "",
        "```text",
        *map(str.strip, usage),
        "```",
        "",
    )
    if command.word:
        yield from (_text(parser.description or ""), "")
        if parser.prog in pages:
            yield from (f"See {pages[parser.prog]}.", "")
    yield from (f"```{{program}} {parser.prog}", "```", "")
    for action in parser._get_positional_actions():
        several = " ..." if action.nargs in ("*", "+") else ""
        yield from _item(
            "describe", f"{action.metavar or action.dest}{several}", action.help or "", ""
        )
    for title, options in groupby(command.options(), lambda option: option.group):
        yield from (f"### {title[0].upper()}{title[1:]}" if not command.word else "**Options**", "")
        for option in options:
            value = (
                ""
                if not option.value
                else f"[={option.value}]"
                if option.is_optional
                else f" {option.value}"
            )
            page = (
                next((pages[name] for name in option.names if name in pages), "")
                if not command.word
                else ""
            )
            yield from _item(
                "option", ", ".join(f"{name}{value}" for name in option.names), option.help, page
            )
    if "\n" in (parser.epilog or ""):
        heading, *rows = (parser.epilog or "").strip().splitlines()
        yield from (f"**{heading.rstrip(':').capitalize()}**", "", "| | |", "|---|---|")
        yield from (
            f"| `{name}` | {_text(what)} |" for name, what in (row.split(None, 1) for row in rows)
        )
        yield ""


def _item(directive: str, names: str, help: str, page: str) -> Iterator[str]:
    help = _text(help[:1].upper() + help[1:])
    yield from (
        f"````{{{directive}}} {names}",
        help + ("" if help.endswith(".") else ".") + (f" See {page}." if page else ""),
        "````",
        "",
    )


def _pages() -> Iterator[tuple[str, str]]:
    """(option or command, link to its page) of each row of the tables of the reference."""
    for name in _HUBS:
        for row in re.findall(
            r"^\| (`.*)\|$", (_HERE / name).read_text(encoding="utf-8"), re.MULTILINE
        ):
            words, _, link = row.partition("|")
            first = re.match(r"\s*\[[^]]+\]\([^)]+\)", link)
            for word in re.findall(r"`([^`]+)`", words):
                yield word, first[0].strip() if first else ""


def _text(words: str) -> str:
    """A text of ``--help`` as Markdown: names of options and what is quoted are code."""
    words = re.sub(r"(?<![\w`-])(--?[a-z][\w-]*(?:=[\w.]+)?)", r"`\1`", words)
    words = re.sub(r"\"([^\"`]+)\"", r"`\1`", words)
    return re.sub(r"([*<>_])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", words)


def summary() -> str:
    """A section for each key of ``summary.json``, with a row for each figure in it, and one for each shape that is in several places."""
    schema = summary_schema()
    simple = {
        name: part
        for name, part in schema["properties"].items()
        if not any(True for _ in _below(part))
    }
    lines = ["## The run", "", *_table((name, part) for name, part in simple.items())]
    for name, part in schema["properties"].items():
        if name not in simple:
            lines += [f"## `{name}`", "", _described(part), "", *_table(_figures(part, ""))]
    lines += ["## Shapes", "", "They stand in several places of the tables above.", ""]
    for name, shape in schema["$defs"].items():
        lines += [
            f"({_target(name)})=",
            f"### {name}",
            "",
            _described(shape),
            "",
            *_table(_figures(shape, "")),
        ]
    return "\n".join(lines)


def _figures(part: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, schema) of all that is below a part, depth first."""
    for name, below in _below(part):
        yield f"{path}{name}", below
        yield from _figures(below, f"{path}{name}")


def _below(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in part.get("properties", {}).items():
        yield f".{name}", one
    if isinstance(part.get("additionalProperties"), dict):
        yield f".<{part.get('key') or 'name'}>", part["additionalProperties"]
    if "items" in part and "object" in _types(part["items"]):
        yield from ((f"[]{name}", one) for name, one in _below(part["items"]))


def _types(part: dict[str, Any]) -> list[str]:
    found = part.get("type", [])
    return [found] if isinstance(found, str) else found


def _table(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    yield from ("| key | type | unit | what it is |", "|---|---|---|---|")
    for path, part in rows:
        kinds = (
            f"[{_shape(part)}](#{_target(_shape(part))})"
            if "$ref" in part
            else " or ".join(_types(part)) or "any"
        )
        yield f"| `{path.removeprefix('.')}` | {kinds} | {part.get('unit', '')} | {_described(part)} |"
    yield ""


def _shape(part: dict[str, Any]) -> str:
    return str(part["$ref"]).rpartition("/")[2]


def _target(shape: str) -> str:
    return f"summary-shape-{shape}"


def _described(part: dict[str, Any]) -> str:
    if "$ref" in part and "description" not in part:
        return _described(summary_schema()["$defs"][_shape(part)])
    values = [value for value in part.get("enum", ()) if value is not None]
    return part.get("description", "") + (
        f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""
    )


def findings() -> str:
    """A section for each kind of finding, by severity."""
    lines: list[str] = []
    for severity in Severity:
        lines += [f"## {severity.name.capitalize()}", ""]
        for kind in (kind for kind in CATALOGUE.values() if kind.severity == severity):
            lines += [f"### {kind.name}", ""]
            for head, words in paragraphs(kind):
                lines += [f"**{head}**: {words}", ""]
    return "\n".join(lines)


_PARTS = {"command-line": command_line, "summary": summary, "findings": findings}


def generated(text: str) -> str:
    """A page with its generated parts."""
    return re.sub(
        r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->",
        lambda found: _PARTS[found[1]](),
        text,
        flags=re.DOTALL,
    )


def setup(app: Any) -> dict[str, bool]:
    """As Sphinx calls it."""

    def replace(app: Any, page: str, source: list[str]) -> None:
        source[0] = generated(source[0])

    def write_schema(app: Any, exception: Exception | None) -> None:
        if exception is None and app.builder.format == "html":
            Path(app.outdir, SCHEMA_FILE).write_text(
                json.dumps(summary_schema(), indent=1, ensure_ascii=False), encoding="utf-8"
            )

    app.connect("source-read", replace)
    app.connect("build-finished", write_schema)
    return {"parallel_read_safe": True}
