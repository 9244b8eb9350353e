"""``voirkit.run("main.py")``: a script run from Python as the command ``voirkit`` runs it, in
another process, and its results.

For tests, notebooks and programs that compare runs. ``voirkit.multiplexer`` reads what a run logs
while it goes on.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Real
from threading import Thread
from typing import Any

from voirkit.analysis.summary import summary_of
from voirkit.errors import EXIT_WRONG_INPUT, CommandLineError, VoirkitError
from voirkit.options import ExtendedArgumentParser
from voirkit.runs import directory
from voirkit.runs.opened import open_run


class RunFailedError(VoirkitError):
    """A script that was run with ``check=True`` has not ended with exit code 0.

    Attributes:
        run: What was recorded of it.
    """

    def __init__(
        self, what: str, *, where: str = "", next: str = "", run: FinishedRun | None = None
    ) -> None:
        super().__init__(what, where=where, next=next)
        self.run = run


class FinishedRun:
    """The results of a run. A notebook shows its report.

    Args:
        path: The run directory.
        exit_code: As the shell sees it.
        stdout: What the script printed, if it was captured.
        stderr: The same of standard error.
    """

    def __init__(
        self, path: str, exit_code: int, stdout: str | None = None, stderr: str | None = None
    ) -> None:
        self.path = path
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary, as ``voirkit report --json`` prints it."""
        with open_run(self.path) as opened:
            summary: dict[str, Any] = directory.finite(summary_of(opened))
            return summary

    def report(self, form: str = "text") -> str:
        """The report: ``text``, ``markdown``, ``html`` (a page) or ``json``.

        Raises:
            VoirkitError: There is no such form.
        """
        if form == "text":
            from rich.console import Console

            from voirkit.report.terminal import draw

            file = io.StringIO()
            console = Console(
                file=file, width=100, highlight=False, force_jupyter=False, force_terminal=False
            )
            draw(self.summary, console, self._title)
            return file.getvalue()
        if form == "markdown":
            from voirkit.report.markdown import markdown

            return markdown(self.summary, self._title)
        if form == "html":
            from voirkit.report.html import page

            with open_run(self.path) as opened:
                return page(opened, self.summary)
        if form == "json":
            return json.dumps(self.summary, indent=1)
        raise VoirkitError(
            f"there is no report in the form {form!r}.",
            where="report()",
            next="text, markdown, html or json.",
        )

    @property
    def _title(self) -> str:
        return self.path.removeprefix(os.getcwd() + os.sep)

    def __repr__(self) -> str:
        command = shlex.join(map(str, self.summary.get("command") or ()))
        verdict = self.summary["verdict"]["kind"]
        return f"<FinishedRun {command}: {verdict}, exit code {self.exit_code}, {self._title}>"

    def _repr_html_(self) -> str:
        from voirkit.report.html import fragment

        with open_run(self.path) as opened:
            return fragment(opened, self.summary)

    def _repr_markdown_(self) -> str:
        return self.report("markdown")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.report())


def run(
    script: str | os.PathLike[str] | None = None,
    args: Sequence[object] = (),
    *,
    module: str | None = None,
    check: bool = False,
    capture_output: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> FinishedRun:
    """Run a script under voirkit, in another process with this python, and wait for its end.

    Args:
        script: The script.
        args: Its arguments; each becomes a word.
        module: In place of a script, what stands behind ``-m``.
        check: If true, an exit code that is not 0 is an error; a check that fails (``require``,
            ``verify``) ends a run with 3.
        capture_output: If true, the script's output is kept, and not shown; see ``stdout`` and
            ``stderr`` of what is returned.
        timeout: Seconds after which it is killed.
        env: Variables of its environment beside those of this process.
        options: voirkit's, as ``voirkit --help`` lists them: ``loader=True`` for ``--loader``,
            ``monitor=0.5`` for ``--monitor=0.5``, ``require=["train_rate>=500"]`` for one that may
            be repeated. One that is None or False is left out.

    Returns:
        Its results, also if the script failed.

    Raises:
        CommandLineError: voirkit has refused the options or the script; nothing was run.
        RunFailedError: ``check`` is true and it failed. subprocess.TimeoutExpired: It took longer
        than ``timeout``; what was recorded until then can be opened.
    """
    if (script is None) == (module is None):
        raise CommandLineError(
            "one of script and module is needed.",
            where="voirkit.run()",
            next='voirkit.run("main.py")',
        )
    if timeout is not None and not isinstance(timeout, Real):
        raise CommandLineError(
            f"{timeout!r} is no number of seconds.",
            where="voirkit.run(timeout=)",
            next="timeout=60",
        )
    program = [os.fspath(script)] if script is not None else ["-m", str(module)]
    return launch(
        [*_flags(options), *program, *map(str, args)],
        check=check,
        capture_output=capture_output,
        timeout=timeout,
        env=env,
    )


def launch(
    words: Sequence[str],
    *,
    check: bool = False,
    capture_output: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> FinishedRun:
    """Run the command ``voirkit`` with these words: see ``run``. If it is quiet, the caller shows
    the report."""
    parser = ExtendedArgumentParser()
    parser.add_argument("--run-dir")
    run_dirs = parser.early_values(words, "--run-dir")
    command = [sys.executable, "-m", "voirkit"]
    if is_quiet:
        command.append("--quiet")
    if run_dirs:
        path = os.path.abspath(run_dirs[-1])
    else:
        path = directory.create(None, script_in(words), force=False)
        command += ["--run-dir", path]
    environment = dict(os.environ)
    for variable in ("VOIRKIT_RUN_DIR", "DATA_FD"):
        environment.pop(variable, None)
    environment.update(env or {})
    process = _run([*command, *words], environment, capture_output, timeout)
    typed = shlex.join(["voirkit", *words])
    errors = (process.stderr or "").strip()
    if process.returncode == EXIT_WRONG_INPUT and directory.read_manifest(path) is None:
        if not run_dirs:
            os.rmdir(path)
        why = errors.removeprefix("voirkit: ")
        if why:
            raise CommandLineError(why)
        raise CommandLineError("it was refused; what is wrong stands above.", where=typed)
    # a signal, as the shell has it
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    result = FinishedRun(path, code, process.stdout, process.stderr)
    if check and code:
        last_line = errors.splitlines()[-1:]
        raise RunFailedError(
            " ".join([f"it ended with exit code {code}.", *last_line]),
            where=typed,
            next=f"voirkit report {path}",
            run=result,
        )
    return result


def _run(
    command: Sequence[str], environment: Mapping[str, str], is_captured: bool, timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Run a command. Its output goes where this process prints; in a notebook, whose streams are no
    files, it is brought there."""
    if is_captured or not type(sys.stdout).__module__.startswith("ipykernel"):
        return subprocess.run(
            command,
            env=environment,
            capture_output=is_captured,
            timeout=timeout,
            text=True,
            errors="replace",
            check=False,
        )

    def show(pipe: Any, stream: Any) -> None:
        for line in pipe:
            stream.write(line)

    # Lines appear when they are printed, as of a cell.
    with subprocess.Popen(
        command,
        env={"PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        threads = [
            Thread(target=show, args=(process.stdout, sys.stdout)),
            Thread(target=show, args=(process.stderr, sys.stderr)),
        ]
        try:
            for thread in threads:
                thread.start()
            process.wait(timeout)
        except BaseException:  # also the kernel's interrupt
            process.kill()
            raise
        finally:
            for thread in threads:
                thread.join()
    return subprocess.CompletedProcess(command, process.returncode)


def script_in(words: Sequence[str]) -> str:
    """The script or module in a command line, for the name of the run directory."""
    words = [word for word in words if not word.startswith("-")]
    for word in words:
        if word.endswith(".py"):
            return word
    return words[0] if words else "run"


def _flags(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if item is True:
                words.append(flag)
            elif item is not None and item is not False:
                words.append(f"{flag}={item}")
    return words
