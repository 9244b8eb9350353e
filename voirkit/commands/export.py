"""``voirkit export [RUN] --format FORMAT``: a run's trace for other tools. Never changes the run, nor overwrites a file unasked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from voirkit.commands.target import read_words
from voirkit.errors import CommandLineError, VoirkitError, tell
from voirkit.options import ExtendedArgumentParser
from voirkit.report.formats import FORMATS, load
from voirkit.runs.find import LATEST, check_manifest, find
from voirkit.runs.opened import Run, open_run
from voirkit.runs.selection import selection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.report.formats import Format


def main(argv: Sequence[str]) -> int:
    """Write the files.

    Returns:
        The exit code.

    Raises:
        CommandLineError: The command line is wrong, or the run has no such steps or ranks.
        RunDirectoryError: RUN is none.
    """
    options = read_words(_parser(), argv)
    path = find(LATEST if options.RUN is None else options.RUN)
    for fault in check_manifest(path):
        tell(fault)
    if options.format is None:
        raise CommandLineError("no format is given.", next=f"voirkit export [RUN] --format {'|'.join(FORMATS)}")
    format = load(options.format)
    chosen = selection(options.steps, options.ranks)
    with open_run(path) as run:
        target = _target(format, options.output, run)
        if not target.startswith(("http://", "https://")):
            _prepare(format, target, options.force)
        try:
            written = format.write(run, chosen, target)
        except OSError as exc:
            raise _not_written(target, exc) from None
        for warning in run.warnings:
            tell(warning)
    for path in written:
        print(path)
    return 0


def _parser() -> ExtendedArgumentParser:
    width = max(map(len, FORMATS))
    formats = "\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in FORMATS.items())
    parser = ExtendedArgumentParser(
        "voirkit export",
        "voirkit export [RUN] --format FORMAT [-o FILE_OR_DIR] [--steps A:B] [--ranks LIST] [--force]",
        description="Write what a run recorded for other tools.",
        epilog=f"formats:\n{formats}\n",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("RUN", nargs="?", help=f"a run directory; by default {LATEST}")
    parser.add_argument("--format", metavar="FORMAT", help="one of those below")
    parser.add_argument("-o", "--output", metavar="FILE_OR_DIR", help="where to; by default the run's name, in the current folder")
    parser.add_argument("--steps", metavar="A:B", help="only steps A to B-1, and what happened meanwhile")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks: 0,2-3")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    return parser


def _target(format: Format, output: str | None, run: Run) -> str:
    """Where to write."""
    if output is None:
        return f"{run.name}{format.SUFFIX}" if format.SUFFIX else f"{run.name}-{format.NAME}"
    if "://" in output:
        if format.NAME != "otlp":
            raise CommandLineError(f"{format.NAME} is written to files; only otlp can be sent.", where=f"-o {output}")
        if not output.startswith(("http://", "https://")):
            raise CommandLineError("spans are sent over HTTP only.", where=f"-o {output}", next="--format otlp -o http://HOST:4318")
        return output
    if format.SUFFIX and (os.path.isdir(output) or output.endswith(os.sep)):
        return os.path.join(output, f"{run.name}{format.SUFFIX}")
    return output


def _is_file(format: Format, target: str) -> bool:
    """Whether one file is to be written; a format of several takes the name of one too."""
    return bool(format.SUFFIX) or target.endswith((f".{format.NAME}", f".{format.NAME}.gz"))


def _prepare(format: Format, target: str, force: bool) -> None:
    """Make the folder to write into.

    Raises:
        CommandLineError: There is a file of that name, or the folder has files of that format: a reader would take them for one trace.
        VoirkitError: It can not be made.
    """
    is_file = _is_file(format, target)
    folder = os.path.dirname(target) if is_file else target
    if is_file and os.path.isdir(target):
        raise CommandLineError("this is a folder; one file is to be written.", where=target)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise CommandLineError("this is a file, not a folder.", where=folder, next="Give another name with -o.")
    there = [target] * os.path.lexists(target) if is_file else _written_before(format, folder)
    special = next((path for path in there if os.path.islink(path) or not os.path.isfile(path)), None)
    if special is not None:
        raise CommandLineError(
            "this is a link, a device or the like, and is left as it is.", where=special, next="Give another name with -o."
        )
    if there and not force:
        raise CommandLineError("it is there already.", where=there[0], next="Give another name with -o, or overwrite it with --force.")
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
    except OSError as exc:
        raise _not_written(folder, exc) from None


def _written_before(format: Format, folder: str) -> list[str]:
    """The files of this format that a folder holds."""
    if (prefix := getattr(format, "PREFIX", None)) is not None:  # its files lie in folders of their own, and have no suffix
        return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.startswith(prefix))
    suffixes = (f".{format.NAME}", f".{format.NAME}.gz")
    return sorted(os.path.join(folder, name) for name in (os.listdir(folder) if os.path.isdir(folder) else ()) if name.endswith(suffixes))


def _not_written(target: str, exc: OSError) -> VoirkitError:
    return VoirkitError(f"it can not be written: {exc.strerror or exc}.", where=target)
