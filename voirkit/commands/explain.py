"""``voirkit explain [KIND]``: explains a kind of finding: meaning, condition, check and remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from voirkit.commands import printing
from voirkit.errors import CommandLineError, did_you_mean
from voirkit.findings import CATALOGUE, Kind, Severity
from voirkit.options import ExtendedArgumentParser

_WIDTH = 100
_SEVERITIES = {
    Severity.BUG: "the training is not what it is meant to be",
    Severity.MEASUREMENT: "the times of this run are not the script's own",
    Severity.MEMORY: "memory is held or copied for nothing",
    Severity.SYMPTOM: "something is wrong, and a flag would tell what",
    Severity.TIME: "time is lost",
    Severity.ADVICE: "what could save time of the part that takes most",
    Severity.VERDICT: "what the run is bound by",
}


def main(argv: Sequence[str]) -> int:
    """Print the documentation of a kind of finding, or a list of all kinds with their meanings."""
    name = main_parser().parse_args(argv).KIND
    if name is not None and name not in CATALOGUE:
        hint = did_you_mean(name, CATALOGUE) or "voirkit explain lists all kinds."
        raise CommandLineError(f"{name!r} is no kind of finding.", next=hint)
    lines = _list_kinds() if name is None else _explain(CATALOGUE[name])
    with printing():
        print("\n".join(lines))
    return 0


def main_parser() -> ExtendedArgumentParser:
    """Return the parser of the command's arguments."""
    parser = ExtendedArgumentParser(
        "voirkit explain",
        "voirkit explain [KIND]",
        description=(
            "Explains a kind of finding: what it means, when it is said, how to confirm it and how"
            " to mend it."
        ),
    )
    kind = parser.add_argument(
        "KIND", nargs="?", help="as a report names it; without it all kinds are listed"
    )
    vars(kind)["completes"] = tuple(CATALOGUE)  # words that shell completion offers (command_lines)
    return parser


def _list_kinds() -> Iterator[str]:
    """Yield lines that list all kinds by severity, with the first sentence of each meaning."""
    width = max(map(len, CATALOGUE))
    indent = " " * (width + 4)
    for severity, words in _SEVERITIES.items():
        yield f"{severity.name.lower()}: {words}"
        for kind in CATALOGUE.values():
            if kind.severity == severity:
                sentence = kind.meaning.partition(". ")[0].rstrip(".")
                line = f"  {kind.name:<{width}}  {sentence}."
                yield textwrap.fill(line, _WIDTH, subsequent_indent=indent)


def _explain(kind: Kind) -> Iterator[str]:
    yield f"{kind.name} ({kind.severity.name.lower()}: {_SEVERITIES[kind.severity]})"
    for head, words in paragraphs(kind):
        yield ""
        yield textwrap.fill(f"{head}: {words}", _WIDTH)


def paragraphs(kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each paragraph of a kind's documentation."""
    yield "What it means", kind.meaning
    yield "When it is said", kind.condition
    yield "How to confirm it", kind.confirm
    yield "How to mend it", kind.mend
    if kind.gain:
        yield "Where its figure comes from", kind.gain[:1].upper() + kind.gain[1:] + "."
    if kind.example:
        yield "An example", f"`{kind.example}`, in the project's repository."
