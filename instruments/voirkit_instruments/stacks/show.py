"""Stacks as people read them: which functions and lines each phase was seen in, a flame graph, and C functions of operations and phases."""

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

_LEAST_SHARE = 0.005  # of the stacks of its kind of process
_OWNERS = ("the program", "torch", "other packages", "Python")
_TRAINING, _LOADING, _REST = "threads that train", "loader workers", "all other threads and processes"
_LONGEST = 72  # characters of a C function's name

Part = Mapping[str, Any]


def flame_sections(part: Part, summary: Mapping[str, Any]) -> Iterator[Section]:
    """``--flame``: a row for each phase, with the lines and functions that were innermost most often, and a flame graph."""
    heads = (
        Column("stacks in", left=True), Column("seen", narrowest=52), Column("share", narrowest=40),
        Column("lines of the program", left=True, narrowest=72), Column("innermost functions", left=True, cut=True),
    )  # fmt: skip
    short, whole = [], []
    for phase, row in part["phases"].items():
        counts = f"{row['samples']:,}", f"{row['share']:.1%}"
        lines, functions = row.get("lines") or {}, row["functions"]
        whole.append((phase, *counts, ", ".join(_shares(lines)), ", ".join(_shares(functions))))
        if row["share"] >= _LEAST_SHARE:
            named_lines = _shares({place.rpartition("/")[2]: share for place, share in lines.items()})[:2]
            named_functions = _shares({name.partition(" (")[0]: share for name, share in functions.items()})
            name = f"workers: {phase}" if row["of"] == "worker" else phase
            short.append((name, *counts, ", ".join(named_lines), ", ".join(named_functions)))
    remarks = list(_flame_remarks(part))
    blocks: list[Block] = [InText([Table(heads, short)] if short else []), InText([Text(line, mood="note") for line in remarks])]
    if part["phases"]:
        blocks += [OnPage(_flame_graph), OnPage([Table(heads, whole)])]
        note = " ".join(f"{line[0].upper()}{line[1:]}." for line in remarks)
        blocks.append(OnPage([Text(note, mood="note")]))
    samples = {phase: row["samples"] / part["rate_hz"] for phase, row in part["phases"].items()}
    yield Section("flame", "Stacks", [*blocks, Amounts("time in which stacks were seen", samples, "s")], measured_by=part["tool"])


def _shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{share:.0%} {name}" for name, share in shares.items() if share >= _LEAST_SHARE]


def _flame_remarks(part: Part) -> Iterator[str]:
    who = f"{part['samples']:,} stacks by {part['tool']}, {part['rate_hz']} times a second"
    who += " of threads that hold the GIL" if part["gil"] else ""
    lost = f", {part['lost']:,} lost" if part["lost"] else ""
    yield f"{who}{lost}; {part['files']['speedscope']} opens in https://www.speedscope.app"
    clock, cost = part["clock"], part["cost"]
    parts = []
    if cost["tool_s"]:
        parts.append(f"cost: {duration(cost['tool_s'])} of a processor beside the program ({cost['of_a_processor']:.1%} of one)")
    if clock["compared"]:
        parts.append(f"of {clock['compared']:,} stacks that name a phase {clock['agreement']:.1%} were seen in it by the clock")
    if parts:
        yield "; ".join(parts)


def _flame_graph(run: Run) -> Iterator[Block]:
    from voirkit_instruments.stacks.analyse import counts_of

    counts = counts_of(run)
    if counts:
        yield FlameGraph(list(_stack_counts(counts)), 1 / counts[0]["rate_hz"], _OWNERS, (_TRAINING, _LOADING, _REST))


def _stack_counts(counts: list[dict[str, Any]]) -> Iterator[StackCount]:
    from voirkit_instruments.stacks.analyse import process_name
    from voirkit_instruments.stacks.analyse_frames import Frame, label

    for one in counts:
        frames = [Frame(*frame) for frame in one["frames"]]
        shown = [StackFrame(label(frame), label(frame, False), owner_of(frame.file)) for frame in frames]
        for phase, process, thread, stack, n in one["rows"]:
            role = _REST if thread else _TRAINING if process == "main" else _LOADING if process.startswith("worker ") else _REST
            name = process_name(one, process, len(counts) > 1) + (f", thread {thread}" if thread else "")
            yield StackCount(phase, name, role, [shown[frame] for frame in one["stacks"][stack]], n)


def owner_of(file: str) -> str:
    """Whose a function is, by its file."""
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
    """``--native``: a row for each operation and phase: time on a processor, how much of what passed, the kernel's share, functions."""
    heads = (
        Column("C code of", left=True), "on CPU", Column("of elapsed", narrowest=66), Column("kernel", narrowest=56),
        Column("hottest functions", left=True, cut=True),
    )  # fmt: skip
    rows = [(name, row) for group in ("operations", "phases") for name, row in part[group].items()]
    rows += [("elsewhere", part["elsewhere"])] if part["elsewhere"] else []
    bars, cells, on_cpu_by_name = [], [], {}
    for name, row in rows:
        on_cpu = None if row["on_cpu_s"] is None else row["on_cpu_s"] + (row["other_threads_s"] or 0.0)
        kernel = row["kernel_share"] or 0.0 if part["kernel_seen"] else 0.0
        if on_cpu:
            on_cpu_by_name[name] = on_cpu
            bars.append((name, {"in the program": on_cpu * (1 - kernel), "in the kernel": on_cpu * kernel}, duration(on_cpu)))
        of_elapsed = f"{row['on_cpu_s'] / row['elapsed_s']:.0%}" if row["elapsed_s"] and row["on_cpu_s"] is not None else ""
        functions = Lines([f"{share:.0%} {_function_name(key)}" for key, share in row["functions"].items()])
        cells.append(
            (name, "" if on_cpu is None else duration(on_cpu), of_elapsed, f"{kernel:.0%}" if part["kernel_seen"] else "", functions)
        )
    note = f"{part['samples']:,} samples of {part['event']} by {part['tool']}, {part['frequency_hz']} a second; all in {part['file']}."
    note += "" if part["kernel_seen"] else " Without the kernel."
    note += f" {part['lost']:,} lost." if part["lost"] else ""
    blocks: list[Block] = [OnPage([Stacked(bars, "s", "time on a processor")] if bars else []), Table(heads, cells)]
    yield Section(
        "native", "C functions", [*blocks, Amounts("time on a processor", on_cpu_by_name, "s")], note, least=5, measured_by=part["tool"]
    )


def _function_name(key: str) -> str:
    function, _, library = key.rpartition("|")
    name = f"({function})" if library == "?" else function
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
