"""The input pipeline in reports: its operations, how batches, workers and the queue did, what other numbers of workers would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report import duration, figure
from voirkit.report.sections import (
    Amounts,
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Details,
    OnPage,
    Section,
    Series,
    Table,
    Text,
    Timeline,
    begin_ns,
)

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_MANY = 24  # operations that a terminal shows
_SMALL = 0.001  # of the work: apart from the others, where there are several
_SLOW = 3  # samples that are named
_REST = 0.2  # of the wait: worth a word
_BINS = 160
_WORKERS = 32

Loader = Mapping[str, Any]
Row = Mapping[str, Any]


def sections(loader: Loader, summary: Mapping[str, Any]) -> Iterator[Section]:
    """See ``voirkit.instrument.Instrument``."""
    rows = loader.get("operations")
    if rows:
        blocks = [
            *_operations(rows), *facts(loader), OnPage(_busy), *_queue(loader), *_predicted(loader), *_epochs(loader), *_others(loader),
        ]  # fmt: skip
        blocks.append(Amounts("time of operations", {name: row["total_s"] for name, row in rows.items()}, "s"))
        note = f"{loader['dataset']}, {loader['workers']} workers, {loader['batches']:,} batches of {loader['batch_size']}."
        note += " Work is the share of the time of making batches, wait that of the wait for them."
        yield Section("loader", "Input pipeline", blocks, note, least=10)


def _operations(rows: Mapping[str, Row]) -> Iterator[Block]:
    """The operations, most work first; below each those that run in it."""
    inner: dict[str, list[str]] = {}
    for name, row in rows.items():
        inner.setdefault(row.get("inside", ""), []).append(name)

    def below(name: str, indent: int) -> Iterator[tuple[str, int]]:
        for one in inner.pop(name, ()):
            yield one, indent
            yield from below(one, 1)

    in_order = list(below("", 0))
    small = {name for name, row in rows.items() if row["share"] < _SMALL and len(rows) >= 8}
    heads = [
        Column("operation", left=True, cut=True), Column("", left=True, narrowest=88), Column("work", narrowest=30),
        Column("wait", narrowest=40), Column("n", narrowest=76), Column("mean", narrowest=88), Column("median", narrowest=50),
        Column("p90", narrowest=58), Column("total", narrowest=120), Column("longest", narrowest=120),
    ]  # fmt: skip
    shown, folded = ([_cells(name, rows[name], indent) for name, indent in in_order if (name in small) is of] for of in (False, True))
    yield Table(heads, shown, most=_MANY)
    if folded:
        yield Details(f"{len(folded)} operations of less than {_SMALL:.1%} of the work", [Table(heads, folded)])


def _others(loader: Loader) -> Iterator[Block]:
    """The operations of the loaders that are not the one at the top, such as that of the evaluation."""
    for other in loader.get("loaders") or ():
        rows = other.get("operations")
        if not rows:
            continue
        parts = [
            str(other["dataset"]),
            "not trained on" if other.get("trains") is False else "",
            f"{other['workers']} workers",
            f"{other['batches']:,} batches of {other['batch_size']}",
            f"made in {duration(other['preprocess']['mean_s'])}" if other["preprocess"]["n"] else "",
            f"waited {duration(other['wait']['mean_s'])} each" if other["wait"]["n"] else "",
        ]
        yield _line(f"loader {other['loader']}", parts)
        yield from _operations(rows)


def _cells(name: str, row: Row, indent: int) -> list[str | Cell | Bar]:
    wait = row["wait_share"]
    return [
        Cell(name, "dim" if indent else "", indent),
        Bar(row["share"], "wait"),
        f"{row['share']:.1%}",
        "" if wait is None else f"{wait:.1%}",
        f"{row['n']:,} batches" if row.get("unit") == "batches" else f"{row['n']:,}",  # one run reads a whole batch
        *(duration(row[f"{key}_s"]) for key in ("mean", "median", "p90", "total", "max")),
    ]


def facts(loader: Loader) -> Iterator[Text]:
    """Batches, workers, what other numbers of workers would give, slow samples; a line each."""
    if loader.get("stretched_by"):
        tracer = loader["stretched_by"]
        yield Text(f"{tracer} stops each system call: the loader's times are far too long, and no operation is to blame", "times")
    made, wait, drift = loader["preprocess"], loader["wait"], loader.get("drift") or {}
    if made["n"]:
        parts = [f"made in {duration(made['median_s'])}, std {made['std_s'] / made['mean_s']:.0%}" if made["mean_s"] else ""]
        if loader["workers"] and loader["ready_share"] is not None:
            parts.append(f"{loader['ready_share']:.0%} ready when asked for")
        parts.append(f"waited {duration(wait['mean_s'])} each")
        if loader.get("delay") and loader["workers"]:
            parts.append(f"{duration(loader['delay']['median_s'])} from made to consumed")
        if loader["out_of_order"]:
            parts.append(f"{loader['out_of_order']:,} out of order")
        if loader["failed"]:
            parts.append(f"{loader['failed']:,} raised an exception")
        rest = (wait.get("by") or {}).get("rest", 0.0)
        if rest >= _REST:
            parts.append(f"{rest:.0%} of the wait is starting workers, queues and pinning")
        yield _line("batches", parts)
    if loader.get("utilisation"):
        used, queue, cost = loader["utilisation"], loader.get("queue"), loader["cost"]
        computing = f" ({cost['cpu_s'] / cost['batch_s']:.0%} of it computing)" if cost["cpu_s"] is not None and cost["batch_s"] else ""
        parts = [f"{used['busy']:.0%} busy{computing}", f"the busiest {used['imbalance']:.0%} above the mean"]
        if queue:
            parts.append(f"{figure(queue['mean'])} batches ready in the queue, which is empty {queue['empty_share']:.0%} of the time")
        yield _line("workers", parts)
    yield from _rates(loader)
    if drift.get("preprocess") and abs(drift["preprocess"]) >= 0.1:
        which = f"; most of it {drift['operation']} ({drift['operation_change']:+.0%})" if drift.get("operation") else ""
        yield Text(f"a batch takes {drift['preprocess']:+.0%} at the end of the run{which}", "drift")
    yield from _slowest(loader)


def _rates(loader: Loader) -> Iterator[Text]:
    """What other numbers of workers would load, up to the one that is enough or the best."""
    rows = {row["workers"]: row for row in loader.get("predicted") or ()}
    now, best = loader["workers"], loader.get("enough_workers") or loader.get("best_workers")
    if now not in rows:
        return
    numbers = {now, *(n for n in (1, 2, 4, 8, 16, 32) if now < n < (best or 0) and n in rows)}
    if best and best > now and best in rows:
        numbers.add(best)
    parts = [f"{n}{' (now)' if n == now else ''} {figure(_makes(rows[n]))}" for n in sorted(numbers)]
    if rows[max(numbers)]["limited_by"] == "processors":
        parts[-1] += " (the processors' limit)"
    if loader["cost"]["pause_s"]:
        parts.append(f"the training takes up to {figure(loader['cost']['items'] / loader['cost']['pause_s'])}")
    yield _line(f"{loader.get('units', 'items/s')} that workers can make, at best", parts)


def _makes(row: Mapping[str, Any]) -> float:
    """Items per second that so many workers make: what they can; where the processors do not suffice for them and the training, that."""
    return float(row["rate"] if row["limited_by"] == "processors" else row["loading_rate"])


def _slowest(loader: Loader) -> Iterator[Text]:
    items = loader["items"]
    usual = sum(row["total_s"] for row in loader["operations"].values() if "inside" not in row) / items if items else 0.0
    slow = [row for row in loader.get("slowest") or () if row["median_s"] > 2 * usual][:_SLOW]
    if slow:
        parts = [f"{row['index']} ({duration(row['median_s'])}{', ' + row['operation'] if row['operation'] else ''})" for row in slow]
        yield _line("slowest samples, by index", parts)


def _line(label: str, parts: list[str]) -> Text:
    return Text(" · ".join(part for part in parts if part), label)


def _busy(run: Run) -> Iterator[Block]:
    """How busy each worker was with making batches."""
    from voirkit.export.spans import LOADER, workers

    where = f"kind = '{LOADER}' AND category = 'data' AND name = 'preprocess'"
    connection = run.connection()
    first, last = connection.execute(f"SELECT min(start_ns), max(start_ns + duration_ns) FROM spans WHERE {where}").fetchall()[0]
    if first is None or last <= first:
        return
    bin_ns = max(-(-(last - first) // _BINS), 1)
    # Each span in all the bins that it reaches into, with what of it lies there.
    rows = connection.execute(
        f"""WITH made AS (SELECT host, rank, pid, start_ns - {first} AS a, start_ns + duration_ns - {first} AS b FROM spans WHERE {where}),
        cut AS (SELECT *, unnest(range(a // {bin_ns}, b // {bin_ns} + 1)) AS bin FROM made)
        SELECT host, rank, pid, bin, sum(least(b, (bin + 1) * {bin_ns}) - greatest(a, bin * {bin_ns})) FROM cut GROUP BY ALL"""
    ).fetchall()
    names = workers(run)
    several = len({rank for _, rank, *_ in rows}) > 1
    busy: dict[str, list[float]] = {}
    for host, rank, pid, place, lasted in rows:
        name = (f"rank {rank}, " if several else "") + names.get((host, rank, pid), "the program itself").removesuffix(" of the loader")
        shares = busy.setdefault(name, [0.0] * _BINS)
        shares[min(place, _BINS - 1)] += lasted / bin_ns
    begin_s = (first - begin_ns(run, first)) / 1e9
    if begin_s < 0 or len({host for host, *_ in rows}) > 1:  # clocks of several hosts
        begin_s = 0.0
    caption = "share of the time in which a worker makes batches"
    yield Timeline(sorted(busy.items())[:_WORKERS], begin_s, bin_ns / 1e9, "share", caption, whole=1.0, mean=True)


def _queue(loader: Loader) -> Iterator[Block]:
    queue = loader.get("queue") or {}
    depth, every_s = queue.get("depth") or [], queue.get("every_s") or 0.0
    if len(depth) > 1:
        caption = f"batches ready in the queue: mean {figure(queue['mean'])}, empty {queue['empty_share']:.0%} of the time"
        points = [(at * every_s, value) for at, value in enumerate(depth)]
        yield OnPage([Series({"batches": points}, f"{caption}, since the first batch", axis="s since the first batch")])


def _predicted(loader: Loader) -> Iterator[Block]:
    rows = loader.get("predicted") or []
    if rows:
        bars = [
            (f"{row['workers']} workers{' (now)' if row['workers'] == loader['workers'] else ''}", _makes(row),
             f"{figure(_makes(row))} {loader.get('units', 'items/s')}, limited by the {row['limited_by']}")
            for row in rows[:12]
        ]  # fmt: skip
        yield Details("what other numbers of workers could make, at best", [Bars(bars)])


def _epochs(loader: Loader) -> Iterator[Block]:
    rows = loader.get("epochs") or []
    if len(rows) > 1:
        cells = [
            (
                str(row["epoch"]) if row["epochs"] == 1 else f"{row['epoch']} to {row['epoch'] + row['epochs'] - 1}", f"{row['batches']:,}",
                *("" if row[key] is None else duration(row[key]) for key in ("time_s", "wait_s", "preprocess_mean_s")),
            )
            for row in rows
        ]  # fmt: skip
        yield Details("epochs", [Table(("epoch", "batches", "time", "waited", "a batch made in"), cells)])
