"""The input pipeline in a report: its operations, its workers and queue over time, and what other numbers of workers would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration, figure
from voirkit.report.html.components import Html, bars, folded, said, section, table
from voirkit.report.html.differences import Pair, compared_by_name
from voirkit.report.html.plots import heat_map, lines, seconds
from voirkit.report.html.steps import begin_ns
from voirkit.report.loader_rows import KIND, workers
from voirkit_instruments.loader import show as operations

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_MOST = 40  # operations
_BINS = 160
_WORKERS = 32

Loader = Mapping[str, Any]


def loader(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --loader."""
    found = summary.get("loader")
    if not found or not found.get("operations"):
        return None
    facts = [said(line) for line in operations.facts(found)]
    parts = [_operations(found), *facts, _over_time(run), *_queue(found), *_predicted(found), *_epochs(found)]
    note = f"{found['dataset']}, {found['workers']} workers, {found['batches']:,} batches of {found['batch_size']}."
    return section("loader", "Input pipeline", *parts, note=note)


def _operations(found: Loader) -> Html:
    rows = list(found["operations"].items())[:_MOST]
    drawn = bars(
        [(_name(name, row), row["share"], f"{row['share']:.1%}") for name, row in rows], caption="share of the work of making batches"
    )
    cells = [
        (
            _name(name, row), f"{row['share']:.1%}",
            "" if row.get("wait_share") is None else f"{row['wait_share']:.1%}", operations.counted(row),
            *(duration(row[f"{key}_s"]) for key in ("total", "mean", "median", "p90", "max")),
        )
        for name, row in rows
    ]  # fmt: skip
    more = len(found["operations"]) - len(rows)
    said = [f"{more} more: voirkit report --json"] if more > 0 else []
    heads = ("operation", "work", "wait", "n", "total", "mean", "median", "p90", "longest")
    return Html(drawn + folded("the same as a table", table(heads, cells), *said))


def _name(name: str, row: Mapping[str, Any]) -> str:
    return f"· {name}" if row.get("inside") else name


def _over_time(run: Run) -> Html:
    """How busy each worker was with making batches."""
    where = f"kind = '{KIND}' AND category = 'data' AND name = 'preprocess'"
    connection = run.connection()
    first, last = connection.execute(f"SELECT min(start_ns), max(start_ns + duration_ns) FROM spans WHERE {where}").fetchall()[0]
    if first is None or last <= first:
        return Html("")
    bin_ns = max(-(-(last - first) // _BINS), 1)
    # Each span in all the bins that it reaches into, with what of it lies there.
    rows = connection.execute(
        f"""WITH made AS (SELECT host, rank, pid, start_ns - {first} AS a, start_ns + duration_ns - {first} AS b FROM spans WHERE {where}),
        cut AS (SELECT *, unnest(range(a // {bin_ns}, b // {bin_ns} + 1)) AS bin FROM made)
        SELECT host, rank, pid, bin, sum(least(b, (bin + 1) * {bin_ns}) - greatest(a, bin * {bin_ns})) FROM cut GROUP BY ALL"""
    ).fetchall()
    named = workers(run)
    several = len({rank for _, rank, *_ in rows}) > 1
    busy: dict[str, list[float]] = {}
    for host, rank, pid, at, lasted in rows:
        name = named.get((host, rank, pid), "the program itself") + (f", rank {rank}" if several else "")
        shares = busy.setdefault(name, [0.0] * _BINS)
        shares[min(at, _BINS - 1)] += lasted / bin_ns
    chosen = sorted(busy.items())[:_WORKERS]
    begin = (first - begin_ns(run, first)) / 1e9
    if begin < 0 or len({host for host, *_ in rows}) > 1:  # clocks of several hosts
        begin = 0.0
    caption = "share of the time in which a worker makes batches"
    return heat_map(chosen, begin, bin_ns / 1e9, lambda share: f"{share:.0%}", caption=caption, whole=1.0, sums=False)


def _queue(found: Loader) -> Iterator[Html]:
    queue = found.get("queue") or {}
    depth, every_s = queue.get("depth") or [], queue.get("every_s") or 0.0
    if len(depth) > 1:
        caption = f"batches ready in the queue: mean {figure(queue['mean'])}, none {queue['empty_share']:.0%} of the time"
        points = [(at * every_s, value) for at, value in enumerate(depth)]
        yield lines({"batches": points}, caption=caption, axis=seconds)


def _predicted(found: Loader) -> Iterator[Html]:
    rows = found.get("predicted") or []
    if rows:
        made = [
            (f"{row['workers']} workers{' (now)' if row['workers'] == found['workers'] else ''}", row["loading_rate"],
             f"{figure(row['loading_rate'])} {found.get('units', 'items/s')}, limited by the {row['limited_by']}")
            for row in rows[:12]
        ]  # fmt: skip
        yield folded("what other numbers of workers could make, at best", bars(made))


def _epochs(found: Loader) -> Iterator[Html]:
    rows = found.get("epochs") or []
    if len(rows) > 1:
        heads = ("epoch", "batches", "time", "waited", "a batch made in")
        cells = [
            (
                str(row["epoch"]) if row["epochs"] == 1 else f"{row['epoch']} to {row['epoch'] + row['epochs'] - 1}", f"{row['batches']:,}",
                *("" if row[key] is None else duration(row[key]) for key in ("time_s", "wait_s", "preprocess_mean_s")),
            )
            for row in rows
        ]  # fmt: skip
        yield folded("epochs", table(heads, cells))


def compared(summaries: Pair) -> Html | None:
    """The section of the page of two runs."""
    return compared_by_name(summaries, "loader", "operations", "Loader operations", "total_s", duration, str)
