"""``voirkit [options] --follow SHELL-SCRIPT [arguments]``: each python that a shell script starts runs under voirkit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from voirkit.errors import CommandLineError, VoirkitError, tell
from voirkit.follow import Noted, end_like, follow
from voirkit.processes.subprocesses import HOOK
from voirkit.runner import voirfiles as voirfile
from voirkit.runner.overseer import Overseer
from voirkit.runs import directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

FLAG = "--follow"


class _Reader(Overseer):
    """Reads a command line with the options of all instruments, and runs nothing.

    Attributes:
        found: The options.
        own: Voirkit's own words on it.
    """

    found: Namespace
    own: list[str]

    def _run(self, argv: Sequence[str]) -> None:
        with self.run_phase(self.phases.init):
            pass
        self._refuse()
        self.found = self.argparser.parse_command(argv)
        self.own = self.argparser.split(argv)[0]


def main(argv: Sequence[str]) -> int | None:
    """Run the shell script.

    Returns:
        Its exit code; None if ``--follow`` is no option of voirkit's on this command line.
    """
    reader = _Reader()
    try:
        for instruments in voirfile.plugins(reader.warn).values():
            reader.require(*instruments)
        reader(argv)
        if not reader.found.follow:
            return None
        if reader.found.SCRIPT is None:
            raise CommandLineError("-m runs a module, and no shell script.", where=FLAG, next="voirkit --follow SHELL-SCRIPT [arguments]")
        if not any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
            tell(
                f"there is no {HOOK} beside voirkit: {sys.executable} is not followed.\n  Install voirkit into it anew: pip install voirkit"
            )
        options, run_dir = _for_each(reader.own, reader.found.run_dir)
        status, pythons = follow(reader.found.SCRIPT, reader.found.ARGV, options, run_dir)
    except VoirkitError as exc:
        tell(str(exc))
        return exc.exit_code
    if not reader.found.quiet:
        for line in words(reader.found.SCRIPT, pythons):
            tell(line)
    return end_like(status)


def _for_each(own: Sequence[str], run_dir: str | None) -> tuple[list[str], str | None]:
    """Voirkit's words for each run, and the directory of the first: the script may change its folder before it starts a python."""
    words: list[str] = []
    given = iter(own)
    for word in given:
        name, equals, value = word.partition("=")
        if word == FLAG:
            continue
        if name == "--run-dir":
            if not equals:
                next(given)
        elif name == "--config":
            words += [name, os.path.abspath(value if equals else next(given))]
        else:
            words.append(word)
    return words, None if run_dir is None else os.path.abspath(run_dir)


def words(script: str, pythons: Sequence[Noted]) -> Iterator[str]:
    """What is told when a shell script has ended: its runs, and where their records are."""
    runs = [one for one in pythons if one.how == "run"]
    if not runs:
        others = {one.how for one in pythons}
        why = "its pythons ran commands, tools, or voirkit itself" if others else "it started no python that has voirkit"
        yield f"{script}: nothing was followed: {why}."
        return
    seen: dict[str, list[Noted]] = {}
    for one in runs:
        seen.setdefault(_directory(one) or f"?{one.ppid}", []).append(one)
    lines = []
    for path, ranks in seen.items():
        first = min(ranks, key=lambda one: one.rank)
        name = " ".join([*(["-m"] if first.kind == "module" else []), *first.command])
        many = f" ({len(ranks)} ranks)" if len(ranks) > 1 else ""
        lines.append(f"  {'(no run directory)' if path.startswith('?') else _shown(path)}   {name}{many}")
    yield "\n".join([f"{script}: {len(lines)} run{'s' if len(lines) > 1 else ''}", *lines])


def _shown(path: str) -> str:
    return path.removeprefix(os.getcwd() + os.sep)


def _directory(one: Noted) -> str | None:
    """The run directory of a python: the one it was told to use, or the one whose manifest names it; of ranks that of their first."""
    if one.run_dir:
        return one.run_dir if os.path.isdir(one.run_dir) else None
    parent = os.path.join(one.cwd, directory.PARENT)
    for name in sorted(os.listdir(parent), reverse=True) if os.path.isdir(parent) else ():
        path = os.path.join(parent, name)
        manifest = None if os.path.islink(path) else directory.read_manifest(path)
        if manifest is not None and (manifest.get("pid") == one.pid or _is_rank_of(path, one)):
            return path
    return None


def _is_rank_of(path: str, one: Noted) -> bool:
    folder = os.path.join(path, "stream")
    ending = f"-{one.pid}.jsonl"
    return os.path.isdir(folder) and any(name.endswith(ending) for name in os.listdir(folder))
