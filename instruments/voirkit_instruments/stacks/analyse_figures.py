"""From counted stacks to the figures of a summary, and to the files that other tools read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit_instruments.stacks.analyse_frames import MAIN, Frame, label, place
from voirkit_instruments.stacks.analyse_join import Clock

SPEEDSCOPE, COLLAPSED = "speedscope.json", "collapsed.txt"
_MOST = 8  # functions, and lines, of a phase in a summary
_KINDS = ("main", "worker", "child")
_NO_PYTHON = "(no Python)"

Counts = Mapping[str, Any]


def clock_agreement(clocks: Sequence[Clock]) -> dict[str, Any]:
    """How well the two clocks are known to agree: of stacks that say a phase, how many were seen in it."""
    compared = sum(clock.compared for clock in clocks)
    return {
        "compared": compared,
        "agreement": sum(clock.same for clock in clocks) / compared if compared else None,
        "within_s": max((clock.within_ns for clock in clocks), default=0) / 1e9,
    }


def tool_cost(record: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What it cost: time on a processor beside the program, and as a share of the time that it was there."""
    took_s = record.get("took_s") or max((note["took_s"] for note in notes), default=None)
    until = record.get("ended_ns") or max((note["ended_ns"] for note in notes), default=None)
    lasted_s = (until - record["began_ns"]) / 1e9 if until else None
    return {"tool_s": took_s, "of_a_processor": took_s / lasted_s if took_s and lasted_s else None}


def figures(counts: Sequence[Counts]) -> dict[str, Any]:
    """The key ``flame`` of a summary.

    Args:
        counts: Of each rank.

    Shares of phases are those of the threads that train among each other, and those of the loader workers' own.
    """
    phases: dict[str, Counter[str]] = {}
    lines: dict[str, Counter[str]] = {}
    kinds: Counter[str] = Counter()
    kind_of: dict[str, str] = {}
    others = 0
    for _, (phase, process, thread, _, n), frames in rows(counts):
        if thread != MAIN:
            others += n
            continue
        kind_of[phase] = kind = process.partition(" ")[0]
        kinds[kind] += n
        phases.setdefault(phase, Counter())[label(frames[-1], False) if frames else _NO_PYTHON] += n
        at = next((frame for frame in reversed(frames) if frame.line), None)
        if at is not None:
            lines.setdefault(phase, Counter())[place(at.file, at.line)] += n
    first = counts[0]
    texts = {at: text for one in counts for at, text in (one.get("text") or {}).items()}
    compared = sum(one["clock"]["compared"] for one in counts)
    same = sum(one["clock"]["compared"] * (one["clock"]["agreement"] or 0.0) for one in counts)
    return {
        **{key: first.get(key) for key in ("tool", "version", "rate_hz", "gil", "native", "by_clock", "cut")},
        "samples": kinds.total() + others, "other_threads": others, "lost": sum(one["lost"] for one in counts),
        "phases": {
            phase: {
                "samples": functions.total(), "share": functions.total() / kinds[kind_of[phase]], "of": kind_of[phase],
                "functions": _shares(functions, functions.total()), "lines": _shares(lines.get(phase, Counter()), functions.total()),
                "text": {at: texts[at] for at, _ in lines.get(phase, Counter()).most_common(_MOST) if at in texts},
            }
            for phase, functions in sorted(phases.items(), key=lambda pair: (_KINDS.index(kind_of[pair[0]]), -pair[1].total()))
        },
        "processes": [process for one in counts for process in one["processes"]],
        "clock": {
            "compared": compared, "agreement": same / compared if compared else None,
            "within_s": max(one["clock"]["within_s"] for one in counts),
        },
        "files": {"speedscope": f"flame/{SPEEDSCOPE}", "collapsed": f"flame/{COLLAPSED}"},
        "cost": {
            key: sum(one["cost"][key] or 0.0 for one in counts) for key in ("tool_s", "of_a_processor")
        },
    }  # fmt: skip


def _shares(counts: Counter[str], total: int) -> dict[str, float]:
    """Those that were seen most often."""
    return {name: n / total for name, n in counts.most_common(_MOST)}


def rows(counts: Sequence[Counts]) -> Iterator[tuple[int, tuple[str, str, str, int, int], list[Frame]]]:
    """(which rank's, (phase, process, thread, stack, n), the frames from the outermost) of each row."""
    for at, one in enumerate(counts):
        frames = [Frame(*frame) for frame in one["frames"]]
        stacks = [[frames[number] for number in stack] for stack in one["stacks"]]
        for phase, process, thread, stack, n in one["rows"]:
            yield at, (phase, process, thread, stack, n), stacks[stack]


def process_name(one: Counts, process: str, several: bool) -> str:
    """What a process is called among those of all ranks."""
    return f"rank {one['rank']} {process}" if several else process


def write_files(folder: str, counts: Sequence[Counts]) -> None:
    """Write the files for other tools.

    Raises:
        OSError: The disk is full, for instance.
    """
    for name, parts in ((COLLAPSED, collapsed(counts)), (SPEEDSCOPE, iter((json.dumps(speedscope(counts)), "\n")))):
        path = os.path.join(folder, name)
        with open(f"{path}.tmp", "w", encoding="utf-8", errors="replace") as file:
            file.writelines(parts)
        os.replace(f"{path}.tmp", path)


def collapsed(counts: Sequence[Counts]) -> Iterator[str]:
    """Lines of ``phase;process;[thread;]frames n``, as flame graph tools read them."""
    several = len(counts) > 1
    for at, (phase, process, thread, _, n), frames in rows(counts):
        parts = [phase, process_name(counts[at], process, several), *([f"thread {thread}"] if thread else []), *map(label, frames)]
        yield ";".join(part.replace(";", ",").replace("\n", " ") for part in parts) + f" {n}\n"


def speedscope(counts: Sequence[Counts]) -> dict[str, Any]:
    """A document of https://www.speedscope.app/file-format-schema.json: a profile for each thread, its phases as outermost frames.

    Stacks are in the order of phases, not of time: each stands once, with all the time that it was seen.
    """
    several = len(counts) > 1
    frames: dict[Frame, int] = {}
    profiles: dict[str, tuple[list[list[int]], list[float]]] = {}
    for at, (phase, process, thread, _, n), path in rows(counts):
        name = process_name(counts[at], process, several) + (f", thread {thread}" if thread else "")
        samples, weights = profiles.setdefault(name, ([], []))
        samples.append([frames.setdefault(frame, len(frames)) for frame in (Frame(phase, ""), *path)])
        weights.append(n / counts[at]["rate_hz"])
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{key: value for key, value in frame._asdict().items() if value or key == "name"} for frame in frames]},
        "profiles": [
            {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": sum(weights), "samples": samples,
             "weights": weights}
            for name, (samples, weights) in sorted(profiles.items(), key=lambda pair: (pair[0] != "main", pair[0]))
        ],
        "name": "voirkit --flame", "exporter": "voirkit", "activeProfileIndex": 0,
    }  # fmt: skip
