"""The finding of ``--what-if``: a change that wins, with its measured gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from voirkit.findings import Finding
from voirkit.units import duration, figure
from voirkit_instruments.what_if.show import name_of

# The code with which a script makes each change itself; {argument} is the value of the change.
CODE_BY_CHANGE = {
    "checkpoint-async": (
        "copy the state to memory, and write it in a thread: threading.Thread(target=torch.save,"
        " args=(copy, path))"
    ),
    "checkpoint-no-crc": "torch.serialization.set_crc32_options(False)",
    "read-ahead": (
        "os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED) for the files of the batches to come"
    ),
    "workers": "DataLoader(..., num_workers={argument})",
    "num-threads": "torch.set_num_threads({argument})",
    "pin-memory": "DataLoader(..., pin_memory=True)",
    "non-blocking": "x.to(device, non_blocking=True)",
    "gc-freeze": "gc.collect(); gc.freeze() behind the first step of the optimizer",
    "gc-every": "gc.disable() before the loop, and gc.collect(1) after every {argument} steps",
}


def findings(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for the change if it wins and the results are not known to differ."""
    outcome = summary.get("what_if") or {}
    equal = outcome.get("equal") or {}
    differs = False in (equal.get("losses"), equal.get("checkpoints"))
    if outcome.get("verdict") != "win" or differs or outcome["name"] not in CODE_BY_CHANGE:
        return
    figures = {
        "ratio": outcome["median"],
        "low": outcome["low"],
        "high": outcome["high"],
        "pairs": len(outcome["pairs"]),
    }
    write = CODE_BY_CHANGE[outcome["name"]].replace("{argument}", str(outcome.get("argument")))
    once_s = outcome.get("once_s") or 0.0
    words = {
        "name_words": name_of(outcome),
        "write_words": write,
        "ratio_words": figure(outcome["median"]),
        "interval_words": f"{figure(outcome['low'])} .. {figure(outcome['high'])}",
        "once_words": f"; the change itself takes {duration(once_s)} once" if once_s else "",
    }
    yield Finding.of("measured-change", {**figures, **words}, gain=_gain(outcome, summary, once_s))


def _gain(outcome: Mapping[str, Any], summary: Mapping[str, Any], once_s: float) -> float | None:
    """Return the gain as a share of the whole run, including imports and set-up, which the times of
    pairs leave out; None if the run's total time is unknown."""
    whole_s = (summary.get("wall") or {}).get("total_s")
    if not whole_s:
        return None
    work_s = median(pair["plain_s"] for pair in outcome["pairs"])
    return float(min(max((1 - outcome["median"]) * work_s - once_s, 0.0) / whole_s, 1.0))
