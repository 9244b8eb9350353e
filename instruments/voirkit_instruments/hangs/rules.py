"""Findings about hangs and about ranks that ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit.findings import Finding
from voirkit_instruments.hangs.analyse import (
    capitalized,
    end_lines,
    is_consequence,
    lasted_s,
    line_of,
    longest,
)

Document = Mapping[str, Any]

_CALL_ALIKE = (
    "Have all ranks make the same collective calls in the same order: a branch around one is taken"
    " by all ranks or by none"
)
_IS_GONE = ("died", "ended", "unknown")  # states of a rank that has no stacks to look at
_NEXT_BY_WAY = {
    "died": (
        "Look at the system's log: the kernel kills what takes too much memory (dmesg), a scheduler"
        " what takes too long"
    ),
    "exception": "Fix that error, whose traceback is in the output",
    "exit": "Look at why sys.exit() or os._exit() is called",
}


def findings(summary: Document) -> Iterator[Finding]:
    """Yield findings on the longest hang, and on the rank that ended by itself."""
    part = summary.get("hangs") or {}
    if part.get("hangs"):
        yield _hang(longest(part["hangs"]))
    yield from _rank_ended(part.get("ends") or ())


def _hang(hang: Document) -> Finding:
    rows = hang.get("ranks") or ()
    different = hang.get("different") or ()
    waiting = [row for row in rows if row.get("waits")]
    not_waiting = [row for row in rows if not row.get("waits")]
    row: Document = next(iter([*not_waiting, *rows]), {})
    line = " ".join([line_of(hang), *different])
    words = {
        "line_words": capitalized(line.removesuffix(".")),
        "look_words": _CALL_ALIKE if different else _look_at(row, bool(waiting)),
    }
    place = str(row.get("where") or "").rpartition(", ")[2]
    figures = {"seconds": lasted_s(hang), "rank": row.get("rank"), **words}
    return Finding.of("hang", figures, where=place)


def _look_at(row: Document, others_wait: bool) -> str:
    """Return advice on where to look.

    Args:
        row: The row of the first rank that does not wait for others; if all wait, of the first
            rank.
        others_wait: True if any rank waits for others.
    """
    rank = row.get("rank")
    if rank is None:
        where = row.get("where") or "the program"
        verb = "does" if row.get("doing") == "computing" else "waits for"
        return f"Look at what {where} {verb}"
    if row.get("state") in _IS_GONE:
        return f"Look at why rank {rank} is not there: the others wait for it"
    if row.get("waits"):
        return (
            "Look at why that collective does not end: the network between the ranks, or a rank of"
            " another group"
        )
    reason = ": the others wait for it" if others_wait else ""
    return f"Look at what rank {rank} does there{reason}"


def _rank_ended(ends: Sequence[Document]) -> Iterator[Finding]:
    by_itself = [end for end in ends if _is_by_itself(end)]
    with_exit_code = [end for end in by_itself if end["exit_code"] is not None]
    candidates = with_exit_code or by_itself
    if not candidates:
        return
    first = candidates[0]
    alike = [end for end in ends if end["what"] == first["what"]]
    advice = _NEXT_BY_WAY.get(first["how"], _NEXT_BY_WAY["exit"])
    if len(alike) == 1 and len(ends) > 1:
        advice += ": the other ranks ended because it was gone"
    figures = {key: first[key] for key in ("rank", "how", "exit_code")}
    figures["ranks"] = len(alike)
    figures["line_words"] = capitalized(end_lines(alike)[0])
    figures["look_words"] = advice
    yield Finding.of("rank-ended", figures)


def _is_by_itself(end: Document) -> bool:
    return end["exit_code"] != 0 and end["how"] != "signal" and not is_consequence(end)
