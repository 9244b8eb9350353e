"""What viewers draw of the trace-event export: a thread is one stack for them, and times are floating-point numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recorded import record

from voirkit.export.trace_events import CHROME
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING


def export(folder: Path, body: str) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """(the spans, the names of threads)."""
    with open_run(record(folder / "run", body)) as run:
        (path,) = CHROME.write(run, EVERYTHING, str(folder / "trace.json"))
    found = json.loads(Path(path).read_text())["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in found if one["name"] == "thread_name"}
    return [one for one in found if one["ph"] == "X"], names


def test_spans_that_overlap_are_drawn_beside_their_thread(tmp_path: Path) -> None:
    spans, names = export(
        tmp_path,
        """
        span("c", "all", NOW, NOW + 900 * US)
        span("c", "one", NOW, NOW + 100 * US)
        span("c", "two", NOW + 50 * US, NOW + 150 * US)
        span("c", "in two", NOW + 110 * US, NOW + 120 * US)
        span("c", "three", NOW + 60 * US, NOW + 160 * US)
        """,
    )
    assert {one["name"]: names[one["tid"]] for one in spans} == {
        "all": "MainThread",
        "one": "MainThread",
        "two": "MainThread: overlapping 1",
        "in two": "MainThread",
        "three": "MainThread: overlapping 2",
    }


def test_work_of_a_device_is_drawn_beside_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    spans, names = export(
        tmp_path,
        """
        span("compute", "forward", NOW, NOW + 100 * US)
        span("compute", "forward", NOW + 50 * US, NOW + 80 * US, kind="device")
        span("compute", "backward", NOW + 70 * US, NOW + 150 * US, kind="device")
        """,
    )
    assert [names[one["tid"]] for one in spans] == [
        "MainThread",
        "MainThread: device",
        "MainThread: device overlapping 1",
    ]


def test_spans_that_share_their_times_are_each_drawn_once(tmp_path: Path) -> None:
    spans, names = export(
        tmp_path,
        """
        span("c", "first", NOW, NOW + 100)
        for name in ("a", "b", "b"):
            span("c", name, NOW + 50, NOW + 150)
        """,
    )
    assert sorted(one["name"] for one in spans) == ["a", "b", "b", "first"]
    assert len({one["tid"] for one in spans if one["name"] != "first"}) == 1
    assert len(names) == 2


def test_a_span_that_ends_as_the_next_begins_does_so_in_floating_point_numbers_too(
    tmp_path: Path,
) -> None:
    spans, names = export(
        tmp_path,
        """
        span("c", "outer", NOW, NOW + 10_000_019)
        t = NOW + 7
        for i in range(2000):
            end = t + 1 + i * 1237 % 9973
            span("c", "step", t, end)
            t = end
        """,
    )
    open_ends: list[float] = []
    for one in spans:  # as a viewer stacks them
        while open_ends and open_ends[-1] <= one["ts"]:
            open_ends.pop()
        end = one["ts"] + one["dur"]
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)
        assert len(open_ends) <= 2
    assert names == {spans[0]["tid"]: "MainThread"}


def test_durations_are_exact_when_they_are_rounded_to_nanoseconds(tmp_path: Path) -> None:
    spans, _ = export(
        tmp_path,
        "\n".join(
            f"span('c', 'n', NOW + {i * i * 7919}, NOW + {i * i * 7919 + i})" for i in range(1, 500)
        ),
    )
    assert [round(one["dur"] * 1000) for one in spans] == list(range(1, 500))
