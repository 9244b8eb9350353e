"""``voirkit [options] SCRIPT [arguments]``: run a script under its instruments."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from voirkit import plugins
from voirkit.commands import SUBCOMMANDS
from voirkit.errors import VoirfileError, VoirkitError, say_as_it_is, tell
from voirkit.options import BUILT_IN, PLUGIN
from voirkit.runner import completion
from voirkit.runner import voirfiles as voirfile
from voirkit.runner.overseer import Overseer
from voirkit.runner.script import current_folder, folder_of, put_last, shorten
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.record import listening
from voirkit.runs.summary import loss_note, throughput
from voirkit.trust import FLAG, fault, way_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LEADS_TO_SCRIPT = ("contextlib.py", "runpy.py")
_LONGEST_S = 60.0  # an older process is taken to have been a shell before it became Python (exec)


def main(argv: Sequence[str], with_process: bool = False) -> int:
    """Run the script that the arguments name.

    Args:
        with_process: True if this process was started for the run: then the run begins with the
            process.

    Returns:
        The exit code. An exception of the script is raised again, so that Python ends as it would
        have without voirkit; only the traceback is shown without voirkit's own frames.
    """
    if "--follow" in argv:
        from voirkit.commands import follow

        code = follow.main(argv)
        if code is not None:
            return code
    pid = os.getpid()
    overseer = Overseer(
        logfile=listening(), record=True, begun_ns=process_begun_ns() if with_process else None
    )
    overseer.argparser.describe = list_commands
    try:
        _collect(overseer, argv)
        overseer(argv)
    except SystemExit:
        if overseer.exit_code != 3:
            raise
    except BaseException as exc:  # an exception of the program is raised again below
        if isinstance(exc, VoirkitError) and not overseer.is_the_programs(exc):
            tell(str(exc))
            return exc.exit_code
        _show_without_own_frames(exc, overseer)
        raise
    finally:
        if os.getpid() == pid:
            closing_words(overseer)
    return overseer.exit_code


def list_commands() -> str:
    """Return the text that ``--help`` shows above the options."""
    rows = [
        (f"{word} {arguments}", description)
        for word, (_, arguments, description) in SUBCOMMANDS.items()
    ]
    rows += [
        (word, f"read the records of --{instrument.name} alone")
        for instrument in plugins.installed_instruments()
        for word in instrument.commands
    ]
    return "\n".join(
        [
            "commands (voirkit COMMAND --help):",
            *(f"  {command:<24}{description}" for command, description in rows),
        ]
    )


def process_begun_ns() -> int:
    """Return when this process was started, on the clock of ``time.perf_counter_ns``, so that the
    time of a run includes Python's own start and the import of voirkit.

    The result is never too early. The kernel (Linux) gives the start time in units of 10 ms,
    rounded down. The process is also at least as old as the CPU time that it has used. If a shell
    waited for other commands and then became this process (exec), the kernel gives the start of the
    shell; only the CPU time is used then.
    """
    now, used_ns = time.perf_counter_ns(), time.process_time_ns()
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        faults_of_ended_children, ticks = int(words[8]), int(words[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now - used_ns
    was_a_shell = faults_of_ended_children > 0 or age_s >= _LONGEST_S
    return now - (used_ns if was_a_shell else max(int(age_s * 1e9), used_ns))


def _collect(overseer: Overseer, argv: Sequence[str]) -> None:
    """Give the overseer the instruments of installed packages and of voirfiles."""
    packages = plugins.installed_packages()
    plugins.install_aliases(
        (name, table) for _, name, table in plugins.entry_points(plugins.ALIASES, packages)
    )
    installed = voirfile.plugins(overseer.warn, packages)
    typed, module = overseer.argparser.guess_script(argv)
    folder = folder_of(typed if module is None else None)
    trusted = overseer.argparser.early_values(argv, FLAG)
    voirfiles = _voirfiles(
        folder, os.path.join(current_folder(), (typed if module is None else None) or ""), trusted
    )
    put_last(folder)
    for distribution, instruments in installed.items():
        overseer.adopt(instruments, BUILT_IN if distribution == "voirkit" else PLUGIN)
    for i, path in enumerate(voirfiles):
        instruments = voirfile.load(path, i)
        if not instruments:
            overseer.warn(
                f"{path}: the voirfile defines no instrument.\n  Write: def instrument_x(ov): ..."
            )
        overseer.require(*instruments)
        overseer.voirfiles.append(voirfile.identity(path))


def _voirfiles(folder: str, script: str, trusted: Sequence[str]) -> list[str]:
    """Return the paths in ``$VOIRFILE``, which blanks separate; if it is not set, the voirfiles
    near the script and the current folder.

    Raises:
        VoirfileError: A voirfile in ``$VOIRFILE`` does not exist, or a voirfile that was found
            belongs to somebody else.
    """
    named = os.environ.get("VOIRFILE")
    if named is None:
        paths = voirfile.find(folder, current_folder())
        for path in paths:
            if why := fault(path, script, trusted):
                raise VoirfileError(
                    f"this voirfile {why}, and would be executed as you.",
                    where=path,
                    next=way_out(path),
                )
        return paths
    paths = [os.path.abspath(p) for p in named.split()]
    for path in paths:
        if not os.path.exists(path):
            raise VoirfileError(
                "there is no such voirfile.", where=f"VOIRFILE={named}", next=f"Looked for {path}."
            )
    return paths


def closing_words(overseer: Overseer) -> None:
    """Report, on stderr, the result of the run and where its record is."""
    if overseer.run_dir is None:
        return
    page = _page(overseer, overseer.run_dir) if overseer.options.html else ""
    if overseer.record.table:
        say_as_it_is(overseer.record.table)
    else:
        _say_words(overseer)
    if rank_and_world_size()[0] == 0:  # also with --quiet, since a failed check sets exit code 3
        for reason in overseer.outcome.failures:
            tell(f"check failed: {reason}")
    for hint in _behind_script(overseer):
        overseer.say(hint)
    if not overseer.record.table and os.path.isdir(overseer.run_dir):
        overseer.say(f"run directory: {shorten(overseer.run_dir)}")
    if page and overseer.record.table:
        say_as_it_is(f"see it as a page  {page}\n")
    elif page:
        overseer.say(f"see it as a page: {page}")


def _behind_script(overseer: Overseer) -> list[str]:
    """Return hints about options of voirkit that were typed after the script, if the script's
    source does not contain the option's name: where to type them instead."""
    source = overseer.program.source if overseer.program is not None else None
    if source is None:
        return []
    names, hints = overseer.argparser.option_names(), []
    for word in overseer.options.ARGV:
        flag = word.partition("=")[0]
        if (
            flag in names
            and flag.startswith("--")
            and flag[2:].replace("-", "_").encode() not in source.replace(b"-", b"_")
        ):
            hints.append(
                f"{flag} was given to {overseer.script}, behind which it stands. voirkit's own:"
                f" voirkit {word} {overseer.script}"
            )
    return hints


def _page(overseer: Overseer, run_dir: str) -> str:
    """Write the run's HTML report, after everything else, and return its path; empty if another
    rank writes it, or if it could not be written."""
    if rank_and_world_size()[0] > 0 or not os.path.isdir(run_dir):
        return ""
    why = completion.page(run_dir)
    if why:
        overseer.warn(f"--html: {why.removeprefix('voirkit: ')}")
        return ""
    return shorten(os.path.join(run_dir, "report.html"))


def _say_words(overseer: Overseer) -> None:
    try:
        for line in words(overseer.summary):
            overseer.say(line)
    except Exception as exc:  # an instrument may have put anything into the summary
        overseer.warn(f"the summary has not its form ({type(exc).__name__}: {exc}).")


def words(summary: dict[str, Any]) -> list[str]:
    """Return the main results of a summary, one line each."""
    from voirkit.report import figure

    lines = []
    loss = summary.get("loss")
    if loss:
        first, last = (
            "nan" if value is None else figure(value, 4) for value in (loss["first"], loss["last"])
        )
        lines.append(f"loss: {first} -> {last} ({loss['n']} values){loss_note(loss)}")
    lines += [f"{alert['kind']}: {alert['because']}" for alert in summary.get("alerts", [])]
    for name, rate in summary.get("rates", {}).items():
        spread = (
            f" (typically {figure(rate['median'])}, p10 {figure(rate['p10'])}, p90"
            f" {figure(rate['p90'])})"
            if rate["n"] > 1
            else ""
        )
        lines.append(f"{name}: {figure(throughput(rate))} {rate['units']}{spread}")
    silent = [
        f"{p['selector']} ({p['where']})" for p in summary.get("probes", []) if not p["events"]
    ]
    if silent:
        lines.append("probes that never fired: " + ", ".join(silent))
    return lines


def _show_without_own_frames(exc: BaseException, overseer: Overseer) -> None:
    """Have Python show the exception as it would without voirkit: with a traceback that begins at
    the script's first frame."""
    script_tb = _from_the_script(exc.__traceback__, overseer)
    hook = sys.excepthook

    def excepthook(
        kind: type[BaseException], value: BaseException, tb: TracebackType | None
    ) -> None:
        if value is exc:
            value.__traceback__ = tb = script_tb
            before = value.__context__
            # The script had raised ``before``, and voirkit had caught it, when a signal handler
            # raised ``value``: the traceback of ``before``, too, loses voirkit's frames.
            if (
                before is not None
                and before.__traceback__ is not None
                and _file_of(before.__traceback__).startswith(_HERE)
            ):
                before.__traceback__ = _from_the_script(before.__traceback__, overseer)
        with contextlib.suppress(AttributeError):
            sys.last_traceback = tb
        sys.excepthook = hook
        try:
            hook(kind, value, tb)
        except SystemExit:
            raise
        except BaseException as failed:  # reported as Python does, without this function's frame
            _write("Error in sys.excepthook:\n")
            failed.__traceback__ = failed.__traceback__ and failed.__traceback__.tb_next
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            _write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, value, tb)

    sys.excepthook = excepthook


def _write(text: str) -> None:
    # stderr may be missing or closed
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)


def _from_the_script(tb: TracebackType | None, overseer: Overseer) -> TracebackType | None:
    """Return a traceback from the script's first frame on. If no frame is the script's, return it
    without voirkit's own frames at its beginning."""
    own_tb = overseer.program.own_part(tb) if overseer.program is not None else None
    if own_tb is not None:
        return own_tb
    while tb is not None and (
        _file_of(tb).startswith((_HERE, "<frozen "))
        or os.path.basename(_file_of(tb)) in _LEADS_TO_SCRIPT
    ):
        tb = tb.tb_next
    return tb


def _file_of(tb: TracebackType) -> str:
    return tb.tb_frame.f_code.co_filename
