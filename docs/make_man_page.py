"""Writes the man page and the completion files of ``share/`` from the parsers; a wheel installs them as they are there.

``python docs/make_man_page.py`` rewrites them; with ``--check`` it changes nothing and exits with 1 if one is out of date. They are kept
in the repository because the parsers import numpy and DuckDB, which an environment that builds a wheel has not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from voirkit import __version__
from voirkit.commands.command_lines import RUN, CommandLine, DescribedOption, command_lines
from voirkit.commands.completion import script

SHARE = Path(__file__).parent.parent / "share"
COMPLETIONS = {
    "bash": "bash-completion/completions/voirkit",
    "zsh": "zsh/site-functions/_voirkit",
    "fish": "fish/vendor_completions.d/voirkit.fish",
}
DESCRIPTION = """\
voirkit runs a PyTorch training script unchanged and reports what it does and why it is slow: where the time of a step goes, rates, and a
verdict with its evidence and what to try next. Options of voirkit stand before SCRIPT; all that stands behind it is the script's.
A voirfile.py beside the script adds probes and instruments of its own."""
EXIT_STATUS = (
    ("that of the script", "voirkit ran it to its end, or to its failure."),
    ("0", "also where --stop, --stop-after or an instrument ended the run."),
    ("1", "compare: the runs call different functions (--calls)."),
    (
        "2",
        "the command line, a voirfile, a selector or a run directory is wrong; the script was not started.",
    ),
    (
        "3",
        "--require or --verify found that a figure or a reading is not as it has to be.",
    ),
)
FILES = (
    (
        "voirfile.py",
        "beside the script, or in the current folder or one above it, up to the project's: probes and instruments.",
    ),
    ("voirkit.toml, pyproject.toml", "options, in the latter under [tool.voirkit]."),
    ("voirkit-runs/", "one directory a run; voirkit-runs/latest is the last."),
)


def roff(text: str) -> str:
    """Text as roff shows it: no mark of its own, and dashes that can be pasted."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _option(option: DescribedOption) -> list[str]:
    names = []
    for name in option.names:
        joint = "=" if name.startswith("--") and option.is_optional else " "
        value = f"\\fI{roff(option.value)}\\fR"
        names.append(
            f"\\fB{roff(name)}\\fR"
            + (
                f"[{joint.strip()}{value}]"
                if option.is_optional
                else f"{joint}{value}"
                if option.value
                else ""
            )
        )
    return [".TP", ", ".join(names), roff(option.help)]


def _command(line: CommandLine) -> list[str]:
    if line.parser is None:
        return []
    usage = [roff(" ".join(one.split())) for one in str(line.parser.usage).split("\n")]
    rows = [
        f".SS voirkit {line.word}",
        ".nf",
        *usage,
        ".fi",
        ".PP",
        roff(line.parser.description or f"{line.what}."),
    ]
    for option in line.options():
        rows += _option(option) if "--help" not in option.names else []
    if line.parser.epilog:
        rows += [".PP", ".nf", roff(line.parser.epilog.rstrip()), ".fi"]
    return rows


def man_page(lines: list[CommandLine]) -> str:
    """voirkit(1)."""
    run = next(line for line in lines if line.word == RUN)
    usage = ["[options] SCRIPT [script arguments]", "[options] -m MODULE[:FUNCTION] [arguments]"]
    usage += [f"{line.word} {line.arguments}".rstrip() for line in lines if line.word != RUN]
    rows = [f'.TH VOIRKIT 1 "" "voirkit {__version__}" "User Commands"', ".SH NAME"]
    rows += ["voirkit \\- report what a PyTorch training script does and why it is slow"]
    rows += [".SH SYNOPSIS", ".nf", *(roff(f"voirkit {words}") for words in usage), ".fi"]
    rows += [".SH DESCRIPTION", roff(DESCRIPTION), ".SH OPTIONS"]
    group = ""
    for option in run.options():
        if option.group != group:
            group = option.group
            rows += [f".SS {roff(group)}"] if group != "options" else []
        rows += _option(option)
    rows += [".SH COMMANDS", *(row for line in lines if line.word for row in _command(line))]
    for title, pairs in (("EXIT STATUS", EXIT_STATUS), ("FILES", FILES)):
        rows += [
            f".SH {title}",
            *(row for name, what in pairs for row in (".TP", f"\\fB{roff(name)}\\fR", roff(what))),
        ]
    return "\n".join(rows) + "\n"


def files() -> dict[Path, str]:
    """What stands in ``share/``."""
    lines = command_lines(with_plugins=False)
    texts = {SHARE / path: script(shell, with_plugins=False) for shell, path in COMPLETIONS.items()}
    return {**texts, SHARE / "man/man1/voirkit.1": man_page(lines)}


def main() -> int:
    """Write them, or check them."""
    stale = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if "--check" in sys.argv:
            print(
                f"{path.relative_to(SHARE.parent)} is not what the command line is now: make format",
                file=sys.stderr,
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
