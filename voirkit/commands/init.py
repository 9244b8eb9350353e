"""``voirkit init SCRIPT``: write a voirfile to begin with, from what the script's source shows. Never runs the script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from voirkit.commands.target import read_script, read_words
from voirkit.errors import CommandLineError, VoirfileError
from voirkit.options import ExtendedArgumentParser
from voirkit.probes.selector.suggestions import READINGS, Candidate, Candidates
from voirkit.runner import voirfiles as voirfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.commands.target import Source

NAME = "voirfile.py"
LONGEST_QUOTE = 90  # of a line of the script, in a comment

# For each reading: what it is for, and what to write if the script does not show it.
MEANING = {
    "use_cuda": (
        "Whether the script computes on a GPU. --verify asks for it.",
        ['ov.probe("//FUNCTION > VARIABLE as use_cuda").give()'],
    ),
    "model": ("What is trained.", ['ov.probe("//FUNCTION > VARIABLE as model").give()']),
    "loader": ("Where the batches come from. --loading-rate needs it.", ['ov.probe("//FUNCTION > VARIABLE as loader").give()']),
    "loss": ("The loss, each time that it is set.", ['ov.probe("//FUNCTION > VARIABLE as loss").give()']),
    "step+batch": (
        "The end of each turn of the training loop, with its batch. --train-rate needs it.",
        ['ov.probe("//FUNCTION(BATCH as batch) > #endloop_BATCH as step").give()'],
    ),
    "compute_start/end": (
        "From the beginning (!) to the end (!!) of each turn, so without the wait for a batch. --compute-rate needs it.",
        ['ov.probe("//FUNCTION(BATCH as batch, !#loop_BATCH as compute_start, !!#endloop_BATCH as compute_end)").give()'],
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
    """One reading in the voirfile: what was found for it, the lines that stand for it."""

    reading: str
    found: Candidate | None
    lines: tuple[str, ...]

    @property
    def is_active(self) -> bool:
        """Whether it is probed; else it stands commented out."""
        return self.found is not None and not self.found.obstacle


def main(argv: Sequence[str]) -> int:
    """Write the voirfile."""
    options = read_words(_parser(), argv)
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


def _parser() -> ExtendedArgumentParser:
    text = f"Write a {NAME} beside a script, with probes on its training loop. The script is not run, and no file is overwritten."
    parser = ExtendedArgumentParser("voirkit init", "voirkit init SCRIPT", description=text)
    parser.add_argument("SCRIPT", nargs="?", help="the script, or a folder with a __main__.py")
    return parser


def voirfile_text(source: Source, candidates: Candidates, entries: Sequence[Entry]) -> str:
    """The whole file."""
    # The name stands in a docstring: what could end that is left out.
    script = os.path.basename(os.path.normpath(source.name))
    script = script if script.replace(".", "").replace("-", "").replace("_", "").isalnum() else "the script"
    command = f"`voirkit probes {script}`" if script != "the script" else "`voirkit probes SCRIPT`"
    parts = [HEAD.format(script=script, probes=command)]
    if not any(entry.found for entry in entries):
        parts.append("    # Nothing in the script looks like training: no loop leads to a .backward().\n")
    parts += ["".join(f"    {line}\n" for line in entry.lines) for entry in entries]
    others = candidates.other_loops()
    if others:
        file = _one_line(os.path.basename(source.file))
        listed = ", ".join(f"{where} ({file}:{line})" for where, line in others)
        parts.append(f"    # Other loops that train, and are not probed: {listed}.\n")
    line = candidates.options()
    if line is not None:
        parts.append(
            f"    # {_quoted(source, line)}\n    # The script's options need no probe: voirkit --options gives what the parser returns.\n"
        )
    return "\n".join(parts)


def _entry(reading: str, candidates: Candidates, source: Source) -> Entry:
    purpose, template = MEANING[reading]
    found = candidates.find(reading)
    lines = [f"# {purpose}"]
    if found is None:
        lines += ["# Not found in the script. Fill in and take away the #:", *(f"# {line}" for line in template)]
        return Entry(reading, None, tuple(lines))
    lines.append(f"# {_quoted(source, found.line)}")
    if found.obstacle:
        lines += [f"# Not to be probed as it is: {_one_line(found.obstacle)}.", f"# {found.code or template[0]}"]
    else:
        lines += [f"# {found.note}"] if found.note else []
        lines.append(found.code)
    return Entry(reading, found, tuple(lines))


def _quoted(source: Source, line: int) -> str:
    """``main.py:12: loss = criterion(output, target)``."""
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
        raise VoirfileError(f"it cannot be written: {error.strerror}.", where=_relative(path)) from None


def _is_there(path: str) -> VoirfileError:
    hint = "Delete or rename it first, or add to it what `voirkit probes` lists."
    return VoirfileError(f"there is a {NAME} already, and it is left as it is.", where=_relative(path), next=hint)


def _words(path: str, source: Source, candidates: Candidates, entries: Sequence[Entry]) -> list[str]:
    """What to say on stdout."""
    said = [f"{_relative(path)} is written. It gives"]
    active = [entry.found for entry in entries if entry.found and entry.is_active]
    width = max((len(found.reading) for found in active), default=0)
    said += [f"  {found.reading:<{width}}  {source.file}:{found.line}  {found.selector}" for found in active]
    if not active:
        said[0] = f"{_relative(path)} is written, but gives nothing yet: no training loop was found that can be probed."
    missing = [entry.reading for entry in entries if not entry.is_active]
    if missing:
        said.append(f"Commented out, with hints, as the script does not show how: {', '.join(missing)}.")
    others = [other for other in voirfile.find(source.folder, os.getcwd()) if other != os.path.realpath(path)]
    said += [f"From here {_relative(other)} is used too." for other in others]
    options = " --options" if candidates.options() is not None else ""
    said.append(f"Next: voirkit {f'--verify{options}' if active else 'probes'} {shlex.quote(source.name)}")
    return said


def _relative(path: str) -> str:
    """A path, relative if it is in the current folder."""
    return path.removeprefix(os.getcwd() + os.sep)
