"""``%load_ext voirkit``: ``%%voirkit`` runs a cell under voirkit, ``%voirkit`` a script.

The report is shown below the cell.

A cell runs in the process and the namespace of the kernel: it sees the variables of earlier cells,
and its own variables stay. An overseer runs the cell like a script, and undoes its changes in
libraries when the cell has ended. The peak memory and ``sys.argv`` are those of the kernel process,
not of the cell. Voirfiles are for scripts, and are not used.
"""

from __future__ import annotations

import ast
import shlex
from itertools import takewhile
from types import CodeType, TracebackType
from typing import TYPE_CHECKING

from voirkit.commands import function_of
from voirkit.errors import CommandLineError, VoirkitError, tell
from voirkit.launch import FinishedRun, launch, script_in
from voirkit.options import BUILT_IN, PLUGIN
from voirkit.runner import completion, recording, voirfiles
from voirkit.runner.overseer import Overseer
from voirkit.runner.script import Program

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

last: FinishedRun | None = None  # the run that the last ``%voirkit`` or ``%%voirkit`` recorded


class Cell(Program):
    """The code of a cell. It runs as the kernel runs cells: in the kernel's namespace, with
    IPython's magics, and the value of the last line is shown.

    Args:
        shell: IPython's shell.
        text: The cell as it was typed.
    """

    def __init__(self, shell: InteractiveShell, text: str) -> None:
        # while a cell runs, IPython's counter is already one higher (ipython 9.18)
        number = len(shell.history_manager.input_hist_parsed) - 1
        super().__init__(f"cell-{number}", None, [], "")
        self._shell = shell
        self._text = shell.transform_cell(text)
        # the cache keeps the lines of the cell for tracebacks
        self._file = shell.compile.cache(self._text, number, raw_code=text)
        # This cell may call functions that other cells have defined. IPython keeps the numbers of
        # those cells for its tracebacks (ipython 9.18).
        numbers = {**getattr(shell.compile, "_filename_map", {}), self._file: number}
        self.source_names = {file: f"cell-{number}" for file, number in numbers.items()}
        self._parts: list[CodeType] = []

    def compile(self) -> None:
        """Compile the cell; the last statement separately if its value is to be shown."""
        body = self._shell.compile.ast_parse(self._text, self._file).body
        last = body[-1:] if body and isinstance(body[-1], ast.Expr) else []
        compiler = self._shell.compile
        if statements := body[: len(body) - len(last)]:
            self._parts.append(compiler(ast.Module(statements, []), self._file, "exec"))
        if last:
            self._parts.append(compiler(ast.Interactive(last), self._file, "single"))

    def enter(self) -> None:
        """Do nothing: ``sys.argv`` and ``sys.path`` stay those of the kernel."""

    def load(self) -> None:
        """Run no code in advance: the definitions in a cell are part of its work."""
        self._names_id = id(self._shell.user_ns)

    def run(self) -> None:
        """Run the cell."""
        self.begins()
        try:
            for code in self._parts:
                exec(code, self._shell.user_ns)
        finally:
            self.ends()


def run_cell(shell: InteractiveShell, words: list[str], text: str) -> FinishedRun | None:
    """Run a cell under voirkit, with options as on the command line.

    Returns:
        The recorded run; None if an option such as ``--help`` was answered without a run.

    Raises:
        VoirkitError: An option is wrong, or the run cannot be recorded.
        BaseException: The exception that the cell raises.
    """
    import voirkit

    if voirkit.current_overseer() is not None:
        raise CommandLineError("a cell is being run under voirkit already.", where="%%voirkit")
    cell = Cell(shell, text)
    overseer = Overseer(record=True, program=cell)
    for distribution, instruments in voirfiles.plugins(overseer.warn).items():
        overseer.adopt(instruments, BUILT_IN if distribution == "voirkit" else PLUGIN)
    try:
        overseer([*words, "--quiet", cell.name])
    except BaseException as exc:  # among others, the errors of the cell's own code
        own_tb = cell.own_part(exc.__traceback__)
        if own_tb is not None:
            _show_from(shell, exc, own_tb)
        if own_tb is not None and overseer.run_dir is not None:
            _show(_finished(overseer, overseer.run_dir), is_quiet="--quiet" in words)
        elif isinstance(exc, SystemExit):
            return None
        raise
    finally:
        recording.end_late()  # later cells are not part of this run
    if overseer.run_dir is None:
        raise CommandLineError(
            "it was not recorded, for the reason that stands above.", where="%%voirkit"
        )
    return _finished(overseer, overseer.run_dir)


def _finished(overseer: Overseer, run_dir: str) -> FinishedRun:
    for failure in overseer.outcome.failures:
        tell(f"check failed: {failure}")
    if overseer.options.html and (why := completion.page(run_dir)):
        tell(f"--html: {why.removeprefix('voirkit: ')}")
    return FinishedRun(run_dir, overseer.exit_code)


def _show_from(shell: InteractiveShell, exc: BaseException, tb: TracebackType) -> None:
    """Have IPython show an exception with a traceback that begins at the cell's own frame."""

    def traceback() -> list[str]:
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(exc), exc, tb, tb_offset=0)
        return lines

    try:
        exc._render_traceback_ = traceback  # type: ignore[attr-defined]  # IPython calls it
    except AttributeError:
        pass  # the exception takes no new attribute: voirkit's frames are shown too


def _show(run: FinishedRun, is_quiet: bool = False) -> None:
    from IPython.display import display

    global last
    last = run
    if not is_quiet:
        display(run)


def voirkit_magic(line: str, cell: str | None = None) -> None:
    """Run a cell, or a script, under voirkit, and show the report.

    ``%%voirkit [options]`` runs the cell in the kernel. ``%voirkit [options] SCRIPT [arguments]``
    runs a script in another process. With ``--quiet`` no report is shown. Afterwards the recorded
    run is ``voirkit.notebook.last``, with its ``summary``, ``path`` and ``report()``.
    """
    from IPython.core.error import UsageError
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    assert shell is not None
    try:
        words = shlex.split(line)
        _refuse_subcommand(words)
        # quiet, because ``_show`` shows the report below
        run = launch(words, is_quiet=True) if cell is None else run_cell(shell, words, cell)
    except VoirkitError as exc:
        raise UsageError(str(exc)) from None
    if run is not None:
        run_words = (
            words if cell is not None else takewhile(lambda word: word != script_in(words), words)
        )
        _show(run, is_quiet="--quiet" in run_words)


def _refuse_subcommand(words: list[str]) -> None:
    """Refuse a subcommand, which is not a run. Raises CommandLineError: the first word is a
    subcommand."""
    if words and function_of(words[0]) is not None:
        raise CommandLineError(
            f"{words[0]} is a subcommand, which shows no run below the cell.",
            where="%voirkit",
            next=f"!voirkit {shlex.join(words)}, or voirkit.notebook.last for the last run.",
        )


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magic ``voirkit``; IPython calls this at ``%load_ext voirkit``."""
    shell.register_magic_function(voirkit_magic, magic_kind="line_cell", magic_name="voirkit")
