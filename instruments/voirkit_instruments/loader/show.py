"""The report's section on the input pipeline: operations, batches, workers, the queue, and the
rates that other numbers of workers would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

_MANY = 24  # maximum number of operations shown in a terminal
# operations with a smaller share of the time spent on batches are listed in a second table, if
# there are 8 operations or more
_SMALL = 0.001
_SLOW = 3  # maximum number of slow samples that are listed
_OTHER_WAIT = 0.2  # share of the wait below which starting workers, queues and pinning is not shown
_LEAST_DRIFT = 0.1  # a smaller relative change of a batch's time is not shown
_BINS = 160
_WORKERS = 32
_HEADS: Sequence[Column] = (
    Column("operation", left=True, cut=True),
    Column("", left=True, narrowest=88),
    Column("work", narrowest=30),
    Column("wait", narrowest=40),
    Column("n", narrowest=76),
    Column("mean", narrowest=88),
    Column("median", narrowest=50),
    Column("p90", narrowest=58),
    Column("total", narrowest=120),
    Column("longest", narrowest=120),
)

Loader = Mapping[str, Any]
Row = Mapping[str, Any]


def sections(loader: Loader, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on the input pipeline (``voirkit.instrument.Instrument``)."""
    rows = loader.get("operations")
    if not rows:
        return
    blocks = [*_operations(rows), *facts(loader), OnPage(_busy)]
    for part in (_queue, _predicted, _epochs, _other_loaders):
        blocks += part(loader)
    total_s = {name: row["total_s"] for name, row in rows.items()}
    blocks.append(Amounts("time of operations", total_s, "s"))
    note = (
        f"{loader['dataset']}, {loader['workers']} workers, {loader['batches']:,} batches of"
        f" {loader['batch_size']}. Work is the share of the time of making batches, wait that of"
        " the wait for them."
    )
    yield Section("loader", "Input pipeline", blocks, note, least=10)


def _operations(rows: Mapping[str, Row]) -> Iterator[Block]:
    """Yield the table of operations, most time first; below each operation, indented, those that
    run in it."""
    inner: dict[str, list[str]] = {}
    for name, row in rows.items():
        inner.setdefault(row.get("inside", ""), []).append(name)

    def below(outer: str, indent: int) -> Iterator[tuple[str, int]]:
        for name in inner.pop(outer, ()):
            yield name, indent
            yield from below(name, 1)

    large: list[list[str | Cell | Bar]] = []
    small: list[list[str | Cell | Bar]] = []
    for name, indent in below("", 0):
        is_small = rows[name]["share"] < _SMALL and len(rows) >= 8
        cells = _cells(name, rows[name], indent)
        if is_small:
            small.append(cells)
        else:
            large.append(cells)
    yield Table(_HEADS, large, most=_MANY)
    if small:
        title = f"{len(small)} operations of less than {_SMALL:.1%} of the work"
        yield Details(title, [Table(_HEADS, small)])


def _other_loaders(loader: Loader) -> Iterator[Block]:
    """Yield the operations of the other loaders, such as that of the evaluation."""
    for other in loader.get("loaders") or ():
        rows = other.get("operations")
        if not rows:
            continue
        preprocess, wait = other["preprocess"], other["wait"]
        parts = [str(other["dataset"])]
        if other.get("trains") is False:
            parts.append("not trained on")
        parts.append(f"{other['workers']} workers")
        parts.append(f"{other['batches']:,} batches of {other['batch_size']}")
        if preprocess["n"]:
            parts.append(f"made in {duration(preprocess['mean_s'])}")
        if wait["n"]:
            parts.append(f"waited {duration(wait['mean_s'])} each")
        yield _line(f"loader {other['loader']}", parts)
        yield from _operations(rows)


def _cells(name: str, row: Row, indent: int) -> list[str | Cell | Bar]:
    wait = row["wait_share"]
    # unit "batches": each call of this operation reads a whole batch
    unit = " batches" if row.get("unit") == "batches" else ""
    share = row["share"]
    operation = Cell(name, "dim" if indent else "", indent)
    of_wait = "" if wait is None else f"{wait:.1%}"
    times = [duration(row[f"{key}_s"]) for key in ("mean", "median", "p90", "total", "max")]
    return [operation, Bar(share, "wait"), f"{share:.1%}", of_wait, f"{row['n']:,}{unit}", *times]


def facts(loader: Loader) -> Iterator[Text]:
    """Yield a line on each of: batches, workers, the rates that other numbers of workers would
    give, drift, slow samples."""
    if loader.get("stretched_by"):
        tracer = loader["stretched_by"]
        yield Text(
            f"{tracer} stops each system call: the loader's times are far too long, and no"
            " operation is to blame",
            "times",
        )
    if loader["preprocess"]["n"]:
        yield _batch_facts(loader)
    if loader.get("utilisation"):
        yield _worker_facts(loader)
    yield from _rates(loader)
    yield from _drift(loader.get("drift") or {})
    yield from _slowest(loader)


def _batch_facts(loader: Loader) -> Text:
    making, wait = loader["preprocess"], loader["wait"]
    parts = []
    if making["mean_s"]:
        spread = making["std_s"] / making["mean_s"]
        parts.append(f"made in {duration(making['median_s'])}, std {spread:.0%}")
    if loader["workers"] and loader["ready_share"] is not None:
        parts.append(f"{loader['ready_share']:.0%} ready when asked for")
    parts.append(f"waited {duration(wait['mean_s'])} each")
    if loader.get("delay") and loader["workers"]:
        parts.append(f"{duration(loader['delay']['median_s'])} from made to consumed")
    if loader["out_of_order"]:
        parts.append(f"{loader['out_of_order']:,} out of order")
    if loader["failed"]:
        parts.append(f"{loader['failed']:,} raised an exception")
    other_share = (wait.get("by") or {}).get("rest", 0.0)
    if other_share >= _OTHER_WAIT:
        parts.append(f"{other_share:.0%} of the wait is starting workers, queues and pinning")
    return _line("batches", parts)


def _worker_facts(loader: Loader) -> Text:
    utilisation, queue, cost = loader["utilisation"], loader.get("queue"), loader["cost"]
    computing = ""
    if cost["cpu_s"] is not None and cost["batch_s"]:
        computing = f" ({cost['cpu_s'] / cost['batch_s']:.0%} of it computing)"
    parts = [
        f"{utilisation['busy']:.0%} busy{computing}",
        f"the busiest {utilisation['imbalance']:.0%} above the mean",
    ]
    if queue:
        parts.append(
            f"{figure(queue['mean'])} batches ready in the queue, which is empty"
            f" {queue['empty_share']:.0%} of the time"
        )
    return _line("workers", parts)


def _drift(drift: Mapping[str, Any]) -> Iterator[Text]:
    change = drift.get("preprocess")
    if not change or abs(change) < _LEAST_DRIFT:
        return
    words = f"a batch takes {change:+.0%} at the end of the run"
    if drift.get("operation"):
        words += f"; most of it {drift['operation']} ({drift['operation_change']:+.0%})"
    yield Text(words, "drift")


def _rates(loader: Loader) -> Iterator[Text]:
    """Yield a line with the rates that other numbers of workers can reach, up to the number that is
    enough; or, if none is enough, up to the best number."""
    rows = {row["workers"]: row for row in loader.get("predicted") or ()}
    now, best = loader["workers"], loader.get("enough_workers") or loader.get("best_workers") or 0
    if now not in rows:
        return
    candidates = {now, max(now, best), *(n for n in (1, 2, 4, 8, 16, 32) if now < n < best)}
    numbers = sorted(n for n in candidates if n in rows)
    parts = []
    for n in numbers:
        present = " (now)" if n == now else ""
        parts.append(f"{n}{present} {figure(_loading_rate(rows[n]))}")
    if rows[numbers[-1]]["limited_by"] == "processors":
        parts[-1] += " (the processors' limit)"
    cost = loader["cost"]
    if cost["pause_s"]:
        parts.append(f"the training takes up to {figure(cost['items'] / cost['pause_s'])}")
    yield _line(f"{loader.get('units', 'items/s')} that workers can make, at best", parts)


def _loading_rate(row: Mapping[str, Any]) -> float:
    """Return the items per second that this number of workers can load, limited by the processors
    that workers and training share."""
    return float(row["rate"] if row["limited_by"] == "processors" else row["loading_rate"])


def _slowest(loader: Loader) -> Iterator[Text]:
    outer = [row for row in loader["operations"].values() if "inside" not in row]
    sample_s = sum(row["total_s"] for row in outer) / loader["items"] if loader["items"] else 0.0
    slow = [row for row in loader.get("slowest") or () if row["median_s"] > 2 * sample_s]
    parts = []
    for row in slow[:_SLOW]:
        operation = f", {row['operation']}" if row["operation"] else ""
        parts.append(f"{row['index']} ({duration(row['median_s'])}{operation})")
    if parts:
        yield _line("slowest samples, by index", parts)


def _line(label: str, parts: list[str]) -> Text:
    return Text(" · ".join(part for part in parts if part), label)


def _busy(run: Run) -> Iterator[Block]:
    """Yield the timeline of the share of time in which each worker makes batches."""
    from voirkit.export.spans import LOADER, workers

    where = f"kind = '{LOADER}' AND category = 'data' AND name = 'preprocess'"
    connection = run.connection()
    ((first, last),) = connection.execute(
        f"SELECT min(start_ns), max(start_ns + duration_ns) FROM spans WHERE {where}"
    ).fetchall()
    if first is None or last <= first:
        return
    bin_ns = max(-(-(last - first) // _BINS), 1)  # rounded up
    # Each bin gets the part of each span that lies in it.
    rows = connection.execute(
        "WITH made AS (SELECT host, rank, pid,"
        f" start_ns - {first} AS a, start_ns + duration_ns - {first} AS b"
        f" FROM spans WHERE {where}),"
        f" cut AS (SELECT *, unnest(range(a // {bin_ns}, b // {bin_ns} + 1)) AS bin FROM made)"
        " SELECT host, rank, pid, bin,"
        f" sum(least(b, (bin + 1) * {bin_ns}) - greatest(a, bin * {bin_ns}))"
        " FROM cut GROUP BY ALL"
    ).fetchall()
    names = workers(run)
    has_ranks = len({rank for _, rank, *_ in rows}) > 1
    busy: dict[str, list[float]] = {}
    for host, rank, pid, place, busy_ns in rows:
        name = names.get((host, rank, pid), "the program itself").removesuffix(" of the loader")
        if has_ranks:
            name = f"rank {rank}, {name}"
        shares = busy.setdefault(name, [0.0] * _BINS)
        shares[min(place, _BINS - 1)] += busy_ns / bin_ns
    begin_s = (first - begin_ns(run, first)) / 1e9
    if begin_s < 0 or len({host for host, *_ in rows}) > 1:  # the hosts' clocks differ
        begin_s = 0.0
    yield Timeline(
        sorted(busy.items())[:_WORKERS],
        begin_s,
        bin_ns / 1e9,
        "share",
        "share of the time in which a worker makes batches",
        whole=1.0,
        mean=True,
    )


def _queue(loader: Loader) -> Iterator[Block]:
    queue = loader.get("queue") or {}
    depth, every_s = queue.get("depth") or [], queue.get("every_s") or 0.0
    if len(depth) > 1:
        caption = (
            f"batches ready in the queue: mean {figure(queue['mean'])}, empty"
            f" {queue['empty_share']:.0%} of the time, since the first batch"
        )
        points = [(i * every_s, value) for i, value in enumerate(depth)]
        yield OnPage([Series({"batches": points}, caption, axis="s since the first batch")])


def _predicted(loader: Loader) -> Iterator[Block]:
    rows = loader.get("predicted") or []
    units = loader.get("units", "items/s")
    bars = []
    for row in rows[:12]:
        present = " (now)" if row["workers"] == loader["workers"] else ""
        rate = _loading_rate(row)
        words = f"{figure(rate)} {units}, limited by the {row['limited_by']}"
        bars.append((f"{row['workers']} workers{present}", rate, words))
    if bars:
        yield Details("what other numbers of workers could make, at best", [Bars(bars)])


def _epochs(loader: Loader) -> Iterator[Block]:
    rows = loader.get("epochs") or []
    if len(rows) < 2:
        return
    heads = ("epoch", "batches", "time", "waited", "a batch made in")
    yield Details("epochs", [Table(heads, [_epoch_cells(row) for row in rows])])


def _epoch_cells(row: Row) -> tuple[str, ...]:
    epochs = str(row["epoch"])
    if row["epochs"] != 1:
        epochs += f" to {row['epoch'] + row['epochs'] - 1}"
    times = [row[key] for key in ("time_s", "wait_s", "preprocess_mean_s")]
    return (
        epochs,
        f"{row['batches']:,}",
        *("" if time_s is None else duration(time_s) for time_s in times),
    )
