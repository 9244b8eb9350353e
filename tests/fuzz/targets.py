"""What reads other people's files, each as a function of bytes: it returns in a word what came of them, and raises only if voirkit is wrong.

A reader may refuse its input with an error of voirkit's. Any other exception, more than a second, or a gigabyte of memory is a defect.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from voirkit.errors import VoirkitError
from voirkit.trace import layout


class Target(NamedTuple):
    """A reader.

    Attributes:
        read: Reads bytes; the second argument is a folder for files.
        seeds: Inputs that are right, of which others are made.
        words: What a mutation may put into one.
    """

    read: Callable[[bytes, Path], str]
    seeds: list[bytes]
    words: list[bytes]


def refused(exc: VoirkitError) -> str:
    """An error without what it quotes of the input."""
    return f"{type(exc).__name__}: {''.join(c for c in exc.what.partition(chr(39))[0] if c.isalpha() or c == ' ')[:60]}"


# segments: the lines of names, a word between, the records

BETWEEN = b"\n=segment=\n"


def _names() -> bytes:
    header = {
        "schema": 1, "pid": 7, "ppid": 1, "rank": 0, "world_size": 1, "host": "node", "process": "main.py", "argv": ["main.py"], "job": "",
        "clocks": {"perf_counter_ns": 10**9, "time_ns": 10**18},
    }  # fmt: skip
    lines = [
        header,
        {"n": 1, "kind": "phase", "category": "pipeline", "name": "forward", "value": None},
        {"n": 2, "kind": "counter", "category": "memory", "name": "rss", "value": None},
        {"n": 3, "kind": "loader", "category": "data", "name": "item", "value": "index"},
        {"a": 1, "arguments": {"epoch": 1, "step": 3, "loss": float("nan"), "path": "\udc80"}},
        {"t": 7, "thread": "MainThread"}, {"g": 1, "world_size": 2}, {"e": {"0": 64 + 5 * 32}},
    ]  # fmt: skip
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def _segment() -> bytes:
    records = [
        (0, 0, 7, 0, layout.THREAD),
        (10, 5, 0, 1, 1),
        (20, 0, 4611686018427387904, 0, 2),
        (30, 9, 12, 1, 3),
        (0, 0, 0, 0, 0),
    ]
    header = struct.pack(
        layout.HEADER, layout.MAGIC, layout.SCHEMA, layout.RECORD_BYTES, 7, 0, 10**9
    )
    return header + b"".join(struct.pack(layout.RECORD, *record) for record in records)


def read_segment(data: bytes, folder: Path) -> str:
    """Records as arrays, with their names and arguments, and what is kept of the process."""
    from voirkit.runs.trace_files import SegmentRecords, described_processes, tallies_of
    from voirkit.runs.trace_files import layout as files_of

    names, _, segment = data.partition(BETWEEN)
    trace = folder / "trace"
    trace.mkdir(exist_ok=True)
    (trace / "node-r0-7.names").write_bytes(names)
    (trace / "node-r0-7-0.seg").write_bytes(segment)
    records = SegmentRecords(str(folder), files_of(str(folder)))
    everything = records.of_names(range(len(records.names)))
    records.arguments(everything)
    records.values(everything)
    described_processes(records.described, 0)
    tallies_of(records.described)
    kinds = ",".join(sorted({name.kind[:4] for name in records.names}))
    return f"{min(len(everything), 9)} records of {kinds}; {len(records.warnings)} warnings"


# logs of strace

STRACE = rb"""7 1700000000.123456 openat(AT_FDCWD, "a) = 1", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000012>
7 1700000000.123460 access("/voirkit/phase/forward+", F_OK) = -1 ENOENT (No such file or directory) <0.000010>
7 1700000000.123456 read(3,  <unfinished ...>
8 1700000000.123556 futex(0x7f, FUTEX_WAIT_PRIVATE, 2, NULL <unfinished ...>
7 1700000000.123999 <... read resumed>"ab", 2) = 2 <0.000543>
7 1700000000.124000 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=9} ---
7 1700000000.124050 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 9 <0.000100>
9 1700000000.124060 read(3</data/a.bin>, "x", 1) = 1 <0.000010>
8 1700000000.124070 +++ superseded by execve in pid 7 +++
7 1700000000.124100 +++ exited with 0 +++
"""


def read_strace(data: bytes, folder: Path) -> str:
    """A log as figures."""
    from voirkit_instruments.syscalls.analyse import read_strace

    path = folder / "log"
    path.write_bytes(data)
    document = read_strace(str(path))
    log = document["log"]
    return f"{len(document.get('threads') or ())} threads, {min(log['unread'], 5)} unread, {log['torn']} {log['dated']}"


# selectors


def read_selector(data: bytes, folder: Path) -> str:
    """A selector as a plan."""
    from voirkit.probes.selector import parse

    parsed = parse(data.decode("utf-8", "replace"), "voirfile.py:1")
    return f"{type(parsed).__name__} {len(str(parsed.focus)) if hasattr(parsed, 'focus') else ''}"


# configuration: the first byte says in which language


def _parser() -> Any:
    from voirkit.plugins import installed_instruments
    from voirkit.runner.overseer import Overseer

    overseer = Overseer(installed_instruments())
    with overseer.run_phase(overseer.phases.init):
        pass
    return overseer.argparser


class _Configuration:
    """The options of all instruments, made once."""

    parser: Any = None


def read_configuration(data: bytes, folder: Path) -> str:
    """A file as values of options."""
    from voirkit.options.configuration import read, values_for

    if _Configuration.parser is None:
        _Configuration.parser = _parser()
    suffix = (".toml", ".yaml", ".json")[data[0] % 3] if data else ".toml"
    path = folder / f"voirkit{suffix}"
    path.write_bytes(data[1:])
    settings = read(str(path))
    values = values_for(_Configuration.parser, [one for one in settings if one.table() is None])
    tables = [table for one in settings if (table := one.table()) is not None]
    return f"{suffix} {sorted(values)[:3]} {len(tables)}"


TOML = b"""stop = 3
train-rate = true
require = ["train_rate>=500"]
trace_limit = "1GB"
[model]
depth = 3
"""
YAML = b"stop: 3\ntrain-rate: true\nrequire: ['train_rate>=500', \"memory<2GB\"]\nmodel: {depth: 3, a: &x [1, 2], b: *x}\n"
JSON = b'{"stop": 3, "train-rate": true, "require": ["train_rate>=500"], "options": {"loader": false}, "monitor": 0.5}'


# summaries


def _summary() -> dict[str, Any]:
    phases = ("wait", "communication", "other")
    spread = {"median": 0.0123, "p10": 0.001, "p90": 0.2}
    return {
        "schema": 1, "voirkit": "0.1.0", "command": ["train.py", "--epochs", "3"], "exit_code": 0, "duration_s": 130.0, "world_size": 1,
        "ended": "normal",
        "verdict": {"kind": "input-bound", "because": "61% of a step.", "next": "Use more workers.", "evidence": {"share": 0.6}},
        "steps": {"n": 100, "items": 3200, "time_s": spread,
                  "phases": {p: {"share": 1 / 7, "total_s": 20.0, "step_s": spread, "parts": {"gc": {"share": 0.1, "total_s": 1.0}}} for p in phases}},
        "rates": {"train_rate": {"value": 512.0, "median": 500.0, "p10": 400.0, "p90": 600.0, "n": 100, "units": "items/s"}},
        "memory": {"peak": 2_340_000_000, "process_peak": 2_340_000_000, "units": "bytes"},
        "monitor": {"gpu0_load": {"mean": 0.42}, "gpu0_power": {"mean": 250.0}, "rss": {"mean": 3e9, "max": 4e9}},
        "loss": {"first": 2.3, "last": None, "n": 100, "curve": [[i, 2.0] for i in range(12)]},
        "overhead": {"share": 0.001, "events": 600, "seconds": 0.1, "parts": {"start": {"seconds": 0.1}}},
        "alerts": [{"kind": "loss-not-finite", "because": "The loss is nan.", "next": "Look at the step before.", "evidence": {}}],
        "wall": {"total_s": 130.0, "parts": {"startup": {"total_s": 2.0, "share": 0.1}, "training": {"total_s": 120.0, "share": 0.9}}},
        "ranks": [{"rank": 0, "host": "node", "steps": 100, "time_s": spread, "phases": {p: {"share": 0.1, "total_s": 1.0} for p in phases}}],
        "processes": [{"pid": 7, "name": "main.py"}], "advice": [{"what": "x", "saving": 0.1}], "dropped": {"a.b": 3}, "warnings": ["w"],
        "probes": [{"selector": "//f > x", "where": "main.py:3", "events": 0}], "given": {"loss": 3}, "evaluation": None, "goodput": 0.9,
    }  # fmt: skip


def read_summary(data: bytes, folder: Path) -> str:
    """A run directory that holds a manifest and these bytes as its summary, read and put into words."""
    from voirkit.commands.run import words
    from voirkit.errors import PartFailures
    from voirkit.findings import findings_of
    from voirkit.report.overview import command_of, how_it_went, parts_of_report
    from voirkit.runs import directory
    from voirkit.runs.conditions import read

    (folder / directory.SUMMARY).write_bytes(data)
    summary = directory.read_summary(str(folder))
    if summary is None:
        return "none"
    json.dumps(directory.finite(summary))
    failed = []

    def attempt(name: str, compute: Callable[[], object]) -> None:
        try:
            compute()
        except RecursionError:
            raise
        except Exception as exc:  # a report says in one line of each part that it failed
            failed.append(f"{name} {type(exc).__name__}")

    attempt("head", lambda: (command_of(summary), how_it_went(summary)))
    attempt("words", lambda: words(summary))
    attempt("findings", lambda: findings_of(summary, PartFailures()))
    for name in ("train_rate", "wait_share", "loss"):
        read(f"{name}>=1", {"rates", "steps", "loss"}).failure(summary)
    for name, part in parts_of_report().items():
        attempt(name, lambda part=part: list(part(summary)))  # type: ignore[misc]
    return " ".join(sorted(set(failed))[:4]) or "shown"


def read_report(data: bytes, folder: Path) -> str:
    """The commands that read a run directory with such a manifest and summary: a terminal, Markdown, the last picture."""
    from voirkit.cli import main
    from voirkit.runs import directory

    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    for name in (directory.MANIFEST, directory.SUMMARY):
        known = isinstance(document, dict) and name in document
        (folder / name).write_bytes(json.dumps(document[name]).encode() if known else data)
    codes = []
    for words in (["report"], ["report", "--markdown"], ["watch", "--once"]):
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            codes.append(main([*words, str(folder)]))
        assert "\x1b" not in said.getvalue(), "an escape sequence reaches the terminal"
    return f"{codes} {min(said.getvalue().count('left out of the report'), 3)}"


def _manifest() -> dict[str, Any]:
    return {
        "schema": 1, "voirkit": "0.1.0", "command": ["train.py"], "voirkit_options": [], "cwd": "/", "host": "node", "pid": 7, "rank": 0, "world_size": 1,
        "job": "a", "restart": 0, "started": "2026-11-24T13:07:11Z", "clocks": {"perf_counter_ns": 10**9, "time_ns": 10**18}, "ended": "normal",
        "moments": {"begun_ns": 1, "script_ns": 2, "script_ended_ns": 3, "imports_ns": 4}, "exit_code": 0, "packages": {"numpy": "2"},
    }  # fmt: skip


SUMMARY = json.dumps(_summary()).encode()
_JSON_WORDS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"NaN",
    b"1e308",
    b'""',
    b"{}",
    b"[]",
    b"\\u001b]52;",
    b"0.5",
    b'"x"',
]
TARGETS: Mapping[str, Target] = {
    "segment": Target(
        read_segment, [_names() + BETWEEN + _segment()],
        [BETWEEN, b"\n", b'{"n":', b'{"a":9,"arguments":', b'{"e":', b'{"g":', b'{"t":', b"\xff\xff\xff\xff", b"voirseg1", b"\0" * 32, *_JSON_WORDS],
    ),
    "strace": Target(
        read_strace, [STRACE, *(line + b"\n" for line in STRACE.splitlines())],
        [b") = ", b"<", b">", b" <unfinished ...>", b"<... ", b" resumed>", b"+++ ", b"--- ", b" (", b" /* */", b"-1 ENOENT", b"[pid 7] ", b"\n",
         b"12:00:00.5 ", b"0x", b"?", b"read(", b"99999999999", b'"', b"\\"],
    ),
    "selector": Target(
        read_selector,
        [b"//train_epoch > loss", b"//f(x as y, z=1) > #endloop_i as step", b"f > g > x:@T", b"/a.b/C.f(!#enter) > $x:tag", b"f(x, *y) > z[1]",
         b"f{x, !y} >> g{#value as v}", b"/pkg.mod/Class/method > #loop_x", b"f() as r", b"$f:@Model($x:Int) > y=3.5"],
        [b"//", b" > ", b" >> ", b"(", b")", b"{", b"}", b"[", b"]", b" as ", b"=", b":", b"@", b"#", b"$", b"!", b"!!", b"*", b",", b".", b"~", b"'",
         b'"', b"#enter", b"#value", b"#endloop_x", b"1e9"],
    ),
    "configuration": Target(
        read_configuration, [b"\0" + TOML, b"\1" + YAML, b"\2" + JSON],
        [b"= ", b": ", b"- ", b"\n", b"[", b"]", b"{", b"}", b"'", b'"', b"#", b"&a", b"*a", b"!!python/object/apply:os.system", b"<<", b"true", b"1e9",
         b"stop", b"loader", b"config", b"trust", b"calls", b"monitor", b"---\n", b"null", b"\t", b"0x10", b"2026-01-01"],
    ),
    "summary": Target(read_summary, [SUMMARY], _JSON_WORDS),
    "report": Target(read_report, [json.dumps({"run.json": _manifest(), "summary.json": _summary()}).encode()], _JSON_WORDS),
}  # fmt: skip


def outcome(target: Target, data: bytes, folder: Path) -> str:
    """What came of an input.

    Raises:
        Exception: Whatever is a defect.
    """
    os.makedirs(folder, exist_ok=True)
    try:
        return target.read(data, folder)
    except VoirkitError as exc:
        return refused(exc)
