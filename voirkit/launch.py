"""``voirkit.run("main.py")``: a script run from Python as the command ``voirkit`` runs it, in another process, and what it came to.

For tests, notebooks and programs that compare runs. Who wants what a run logs while it goes on uses ``voirkit.multiplexer``.
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

    def __init__(self, what: str, *, where: str = "", next: str = "", run: FinishedRun | None = None) -> None:
        super().__init__(what, where=where, next=next)
        self.run = run


class FinishedRun:
    """What a run came to. A notebook shows its report.

    Args:
        path: The run directory.
        exit_code: As the shell sees it.
        stdout: What the script printed, if it was captured.
        stderr: The same of standard error.
    """

    def __init__(self, path: str, exit_code: int, stdout: str | None = None, stderr: str | None = None) -> None:
        self.path, self.exit_code, self.stdout, self.stderr = path, exit_code, stdout, stderr

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary, as ``voirkit report --json`` prints it."""
        with open_run(self.path) as opened:
            return directory.finite(summary_of(opened))  # type: ignore[no-any-return]  # of a dictionary it is one

    def report(self, form: str = "text") -> str:
        """The report: ``text``, ``markdown``, ``html`` (a page) or ``json``.

        Raises:
            VoirkitError: There is no such form.
        """
        if form == "text":
            from rich.console import Console

            from voirkit.report.terminal import draw

            file = io.StringIO()
            draw(self.summary, Console(file=file, width=100, highlight=False, force_jupyter=False, force_terminal=False), self._title)
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
        raise VoirkitError(f"there is no report in the form {form!r}.", where="report()", next="text, markdown, html or json.")

    @property
    def _title(self) -> str:
        return self.path.removeprefix(os.getcwd() + os.sep)

    def __repr__(self) -> str:
        command = shlex.join(map(str, self.summary.get("command") or ()))
        return f"<FinishedRun {command}: {self.summary['verdict']['kind']}, exit code {self.exit_code}, {self._title}>"

    def _repr_html_(self) -> str:
        from voirkit.report.html import fragment

        with open_run(self.path) as opened:
            return fragment(opened, self.summary)

    def _repr_markdown_(self) -> str:
        return self.report("markdown")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.report())


def run(
    script: str | os.PathLike[str] | None = None, args: Sequence[object] = (), *, module: str | None = None, check: bool = False,
    capture_output: bool = False, timeout: float | None = None, env: Mapping[str, str] | None = None, **options: Any,
) -> FinishedRun:  # fmt: skip
    """Run a script under voirkit, in another process with this python, and wait for its end.

    Args:
        script: The script.
        args: Its arguments; each becomes a word.
        module: In place of a script, what stands behind ``-m``.
        check: Whether an exit code that is not 0 is an error; a check that fails (``require``, ``verify``) ends a run with 3.
        capture_output: Whether what the script prints is kept, and not shown; see ``stdout`` and ``stderr`` of what is returned.
        timeout: Seconds after which it is killed.
        env: Variables of its environment beside those of this process.
        options: voirkit's, as ``voirkit --help`` lists them: ``loader=True`` for ``--loader``, ``monitor=0.5`` for ``--monitor=0.5``,
            ``require=["train_rate>=500"]`` for one that may be repeated. One that is None or False is left out.

    Returns:
        What it came to, also if the script failed.

    Raises:
        CommandLineError: voirkit has refused the options or the script; nothing was run.
        RunFailedError: ``check`` is true and it failed.
        subprocess.TimeoutExpired: It took longer than ``timeout``; what was recorded until then can be opened.
    """
    if (script is None) == (module is None):
        raise CommandLineError("one of script and module is needed.", where="voirkit.run()", next='voirkit.run("main.py")')
    if timeout is not None and not isinstance(timeout, Real):
        raise CommandLineError(f"{timeout!r} is no number of seconds.", where="voirkit.run(timeout=)", next="timeout=60")
    program = [os.fspath(script)] if script is not None else ["-m", str(module)]
    return launch([*_flags(options), *program, *map(str, args)], check=check, capture_output=capture_output, timeout=timeout, env=env)


def launch(
    words: Sequence[str], *, check: bool = False, capture_output: bool = False, timeout: float | None = None,
    env: Mapping[str, str] | None = None, is_quiet: bool = False,
) -> FinishedRun:  # fmt: skip
    """Run the command ``voirkit`` with these words: see ``run``. If it is quiet, the caller shows the report."""
    parser = ExtendedArgumentParser()
    parser.add_argument("--run-dir")
    chosen = parser.early_values(words, "--run-dir")
    path = os.path.abspath(chosen[-1]) if chosen else directory.make(None, script_in(words), force=False)
    command = [*(["--quiet"] if is_quiet else []), *([] if chosen else ["--run-dir", path]), *words]
    environment = {key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")}
    ended = _run([sys.executable, "-m", "voirkit", *command], {**environment, **(env or {})}, capture_output, timeout)
    shown = shlex.join(["voirkit", *words])
    if ended.returncode == EXIT_WRONG_INPUT and directory.read_manifest(path) is None:
        if not chosen:
            os.rmdir(path)
        why = (ended.stderr or "").strip().removeprefix("voirkit: ")
        raise CommandLineError(why or "it was refused; what is wrong stands above.", where="" if why else shown)
    code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode  # a signal, as the shell has it
    result = FinishedRun(path, code, ended.stdout, ended.stderr)
    if check and code:
        last = (ended.stderr or "").strip().splitlines()[-1:]
        raise RunFailedError(" ".join([f"it ended with exit code {code}.", *last]), where=shown, next=f"voirkit report {path}", run=result)
    return result


def _run(
    command: Sequence[str], environment: Mapping[str, str], is_captured: bool, timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Run a command. What it prints goes where this process prints; in a notebook, whose streams are no files, it is brought there."""
    if is_captured or not type(sys.stdout).__module__.startswith("ipykernel"):
        return subprocess.run(
            command, env=environment, capture_output=is_captured, timeout=timeout, text=True, errors="replace", check=False
        )

    def show(pipe: Any, stream: Any) -> None:
        for line in pipe:
            stream.write(line)

    # Lines appear when they are printed, as of a cell.
    with subprocess.Popen(
        command, env={"PYTHONUNBUFFERED": "1", **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        threads = [Thread(target=show, args=pair) for pair in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))]
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
    """What is run, for the name of the run directory."""
    words = [word for word in words if not word.startswith("-")]
    return next((word for word in words if word.endswith(".py")), words[0] if words else "run")


def _flags(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(flag)
            elif one is not None and one is not False:
                words.append(f"{flag}={one}")
    return words
