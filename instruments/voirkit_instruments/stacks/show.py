"""Report sections on stacks: the functions and lines in which each phase was seen, a flame graph,
and the C functions of operations and phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report import duration
from voirkit.report.sections import (
    Amounts,
    Block,
    Column,
    FlameGraph,
    InText,
    Lines,
    OnPage,
    Section,
    StackCount,
    Stacked,
    StackFrame,
    Table,
    Text,
)

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

# phases, functions and lines with a smaller share of the stacks of a kind of process are left out
_LEAST_SHARE = 0.005
_OWNERS = ("the program", "torch", "other packages", "Python")
_TRAINING = "threads that train"
_LOADING = "loader workers"
_OTHER_THREADS = "all other threads and processes"
_LONGEST = 72  # maximum number of characters shown of a C function's name

Part = Mapping[str, Any]


def flame_sections(part: Part, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section of ``--flame``: a row for each phase, with the lines and functions that
    were innermost most often, and a flame graph."""
    heads = (
        Column("stacks in", left=True),
        Column("seen", narrowest=52),
        Column("share", narrowest=40),
        Column("lines of the program", left=True, narrowest=72),
        Column("innermost functions", left=True, cut=True),
    )
    short_rows, whole_rows = [], []
    for phase, row in part["phases"].items():
        counts = f"{row['samples']:,}", f"{row['share']:.1%}"
        lines = row.get("lines") or {}
        functions = row["functions"]
        whole_rows.append(
            (phase, *counts, ", ".join(_shares(lines)), ", ".join(_shares(functions)))
        )
        if row["share"] >= _LEAST_SHARE:
            name = f"workers: {phase}" if row["of"] == "worker" else phase
            short_lines = {place.rpartition("/")[2]: share for place, share in lines.items()}
            short_functions = {name.partition(" (")[0]: share for name, share in functions.items()}
            line_words = ", ".join(_shares(short_lines)[:2])
            short_rows.append((name, *counts, line_words, ", ".join(_shares(short_functions))))
    remarks = list(_flame_remarks(part))
    blocks: list[Block] = [
        InText([Table(heads, short_rows)] if short_rows else []),
        InText([Text(line, mood="note") for line in remarks]),
    ]
    if part["phases"]:
        note = " ".join(f"{line[0].upper()}{line[1:]}." for line in remarks)
        blocks.append(OnPage(_flame_graph))
        blocks.append(OnPage([Table(heads, whole_rows)]))
        blocks.append(OnPage([Text(note, mood="note")]))
    samples = {phase: row["samples"] / part["rate_hz"] for phase, row in part["phases"].items()}
    blocks.append(Amounts("time in which stacks were seen", samples, "s"))
    yield Section("flame", "Stacks", blocks, measured_by=part["tool"])


def _shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{share:.0%} {name}" for name, share in shares.items() if share >= _LEAST_SHARE]


def _flame_remarks(part: Part) -> Iterator[str]:
    line = f"{part['samples']:,} stacks by {part['tool']}, {part['rate_hz']} times a second"
    if part["gil"]:
        line += " of threads that hold the GIL"
    if part["lost"]:
        line += f", {part['lost']:,} lost"
    yield f"{line}; {part['files']['speedscope']} opens in https://www.speedscope.app"
    clock, cost = part["clock"], part["cost"]
    parts = []
    if cost["tool_s"]:
        parts.append(
            f"cost: {duration(cost['tool_s'])} of a processor beside the program"
            f" ({cost['of_a_processor']:.1%} of one)"
        )
    if clock["compared"]:
        parts.append(
            f"of {clock['compared']:,} stacks that name a phase {clock['agreement']:.1%} were seen"
            " in it by the clock"
        )
    if parts:
        yield "; ".join(parts)


def _flame_graph(run: Run) -> Iterator[Block]:
    from voirkit_instruments.stacks.analyse import counts_of

    counts = counts_of(run)
    if counts:
        period_s = 1 / counts[0]["rate_hz"]
        roles = (_TRAINING, _LOADING, _OTHER_THREADS)
        yield FlameGraph(list(_stack_counts(counts)), period_s, _OWNERS, roles)


def _stack_counts(counts: list[dict[str, Any]]) -> Iterator[StackCount]:
    from voirkit_instruments.stacks.analyse import process_name
    from voirkit_instruments.stacks.analyse_frames import Frame, label

    several = len(counts) > 1
    for of_rank in counts:
        frames = []
        for fields in of_rank["frames"]:
            frame = Frame(*fields)
            frames.append(StackFrame(label(frame), label(frame, False), owner_of(frame.file)))
        stacks = of_rank["stacks"]
        for phase, process, thread, stack, n in of_rank["rows"]:
            name = process_name(of_rank, process, several)
            if thread:
                name += f", thread {thread}"
            role = _role(process, thread)
            yield StackCount(phase, name, role, [frames[number] for number in stacks[stack]], n)


def _role(process: str, thread: str) -> str:
    if process == "main" and not thread:
        return _TRAINING
    if process.startswith("worker ") and not thread:
        return _LOADING
    return _OTHER_THREADS


def owner_of(file: str) -> str:
    """Return the owner of a function, by its file."""
    from voirkit_instruments.places import Owner, file_owner
    from voirkit_instruments.stacks.analyse_frames import is_program

    program, torch, packages, python = _OWNERS
    if is_program(file):
        return program
    owner = file_owner(file)
    if owner is Owner.TORCH or "/torchvision/" in file:
        return torch
    is_source = file.endswith(".py") or file.startswith("<")  # <frozen importlib._bootstrap>
    return python if owner is Owner.PYTHON and is_source else packages


def native_sections(part: Part, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section of ``--native``: for each operation and phase its CPU time, that time's
    share of the elapsed time, the kernel's share, and the functions."""
    heads = (
        Column("C code of", left=True),
        "on CPU",
        Column("of elapsed", narrowest=66),
        Column("kernel", narrowest=56),
        Column("hottest functions", left=True, cut=True),
    )
    rows = [*part["operations"].items(), *part["phases"].items()]
    if part["elsewhere"]:
        rows.append(("elsewhere", part["elsewhere"]))
    cells = [_native_row(name, row, part) for name, row in rows]
    bars, on_cpu_by_name = [], {}
    for name, row in rows:
        on_cpu_s = _on_cpu_s(row)
        if on_cpu_s:
            on_cpu_by_name[name] = on_cpu_s
            kernel = _kernel_share(row, part)
            parts = {
                "in the program": on_cpu_s * (1 - kernel),
                "in the kernel": on_cpu_s * kernel,
            }
            bars.append((name, parts, duration(on_cpu_s)))
    note = (
        f"{part['samples']:,} samples of {part['event']} by {part['tool']}, {part['frequency_hz']}"
        f" a second; all in {part['file']}."
    )
    if not part["kernel_seen"]:
        note += " Without the kernel."
    if part["lost"]:
        note += f" {part['lost']:,} lost."
    blocks: list[Block] = [
        OnPage([Stacked(bars, "s", "time on a processor")] if bars else []),
        Table(heads, cells),
        Amounts("time on a processor", on_cpu_by_name, "s"),
    ]
    yield Section("native", "C functions", blocks, note, least=5, measured_by=part["tool"])


def _on_cpu_s(row: Mapping[str, Any]) -> float | None:
    """Return the CPU time, including that of other threads of the process; None if not known."""
    if row["on_cpu_s"] is None:
        return None
    on_cpu_s: float = row["on_cpu_s"] + (row["other_threads_s"] or 0.0)
    return on_cpu_s


def _kernel_share(row: Mapping[str, Any], part: Part) -> float:
    return (row["kernel_share"] or 0.0) if part["kernel_seen"] else 0.0


def _native_row(name: str, row: Mapping[str, Any], part: Part) -> tuple[str | Lines, ...]:
    on_cpu_s = _on_cpu_s(row)
    of_elapsed = ""
    if row["elapsed_s"] and row["on_cpu_s"] is not None:
        of_elapsed = f"{row['on_cpu_s'] / row['elapsed_s']:.0%}"
    functions = [f"{share:.0%} {_function_name(key)}" for key, share in row["functions"].items()]
    on_cpu = "" if on_cpu_s is None else duration(on_cpu_s)
    in_kernel = f"{_kernel_share(row, part):.0%}" if part["kernel_seen"] else ""
    return name, on_cpu, of_elapsed, in_kernel, Lines(functions)


def _function_name(key: str) -> str:
    function, _, library = key.rpartition("|")
    name = f"({function})" if library == "?" else function
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
