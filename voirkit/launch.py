"""``voirkit.run("main.py")``: runs a script like the command ``voirkit``, and returns its results.

The script runs in another process. This is for tests, notebooks and programs that compare runs.
``voirkit.multiplexer`` reads the log of a run while the script is running.
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
    """A script run with ``check=True`` ended with an exit code other than 0.

    Attributes:
        run: The results of the failed run.
    """

    def __init__(
        self, what: str, *, where: str = "", next: str = "", run: FinishedRun | None = None
    ) -> None:
        super().__init__(what, where=where, next=next)
        self.run = run


class FinishedRun:
    """The results of a run. A notebook displays them as the run's report.

    Args:
        path: The run directory.
        exit_code: The exit code as a shell reports it.
        stdout: The script's standard output, if it was captured.
        stderr: The script's standard error, if it was captured.
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
        """The summary of the run, as ``voirkit report --json`` prints it."""
        with open_run(self.path) as opened:
            summary: dict[str, Any] = directory.finite(summary_of(opened))
            return summary

    def report(self, form: str = "text") -> str:
        """Return the report as ``text``, ``markdown``, ``html`` (a page) or ``json``.

        Raises:
            VoirkitError: ``form`` is none of these.
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
    """Run a script under voirkit, in another process with this Python, and wait for its end.

    Args:
        script: The script.
        args: The script's arguments; each becomes one word of the command line.
        module: Name of a module to run in place of a script, as with ``-m``.
        check: If true, an exit code other than 0 raises an error. A failed check of the run
            (``require``, ``verify``) gives exit code 3.
        capture_output: If true, the script's output is not shown, but kept in ``stdout`` and
            ``stderr`` of the result.
        timeout: Seconds after which the script is killed.
        env: Environment variables for the script, in addition to those of this process.
        options: voirkit's options, as ``voirkit --help`` lists them: ``loader=True`` for
            ``--loader``, ``monitor=0.5`` for ``--monitor=0.5``, ``require=["train_rate>=500"]`` for
            an option that may be repeated. An option that is None or False is left out.

    Returns:
        The results of the run, also if the script failed.

    Raises:
        CommandLineError: voirkit has refused the options or the script; nothing was run.
        RunFailedError: ``check`` is true and the script failed.
        subprocess.TimeoutExpired: The script took longer than ``timeout``. The data recorded until
            then can be opened.
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
    """Run the command ``voirkit`` with the given words as arguments; see ``run``.

    With ``is_quiet`` the command prints no report: the caller shows it.
    """
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
    # for a process killed by a signal, the exit code that a shell reports
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
    """Run a command whose output goes where this process prints.

    The streams of a notebook are not files: there, threads copy the output to them.
    """
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

    # Lines appear as soon as they are printed, like the output of a cell.
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
        except BaseException:  # including an interrupt by the notebook's kernel
            process.kill()
            raise
        finally:
            for thread in threads:
                thread.join()
    return subprocess.CompletedProcess(command, process.returncode)


def script_in(words: Sequence[str]) -> str:
    """Return the script or module in a command line, for the name of the run directory."""
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
