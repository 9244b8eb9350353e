"""The input pipeline as a person reads it: its operations, and how batches, workers and the queue did. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration, figure

_MANY = 24  # operations
_SMALL = 0.001  # of the work: not shown, but counted, where there are several
_SLOW = 3  # samples that are named
_REST = 0.2  # of the wait: worth a word

Loader = Mapping[str, Any]


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    loader = summary.get("loader")
    if loader and loader.get("operations"):
        yield 6, operations(loader, width)
        yield 4, Group(*facts(loader))


def operations(loader: Loader, width: int) -> RenderableType:
    """The operations, most work first, with as many columns as there is room for."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    bar = 20 if width >= 110 else 10
    columns = [
        ("operation", True), ("bar", width >= 88), ("work", width >= 30), ("wait", width >= 40), ("n", width >= 76), ("mean", width >= 88),
        ("median", width >= 50), ("p90", width >= 58),
    ]  # fmt: skip
    shown = [at for at, (_, fits) in enumerate(columns) if fits]
    for at in shown:
        name = columns[at][0]
        if name == "operation":
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=max(width - 9 * (len(shown) - 1) - bar, 16))
        elif name == "bar":
            table.add_column("", no_wrap=True, width=bar)
        else:
            table.add_column(name, no_wrap=True, justify="right", min_width=6 if name in ("work", "wait", "n") else 7)
    rows = list(_with_inner(loader["operations"]))
    for name, row, is_inner in rows[:_MANY]:
        wait = row["wait_share"]
        cells: list[str | Text] = [
            Text(f"  {name}", style="dim") if is_inner else name,
            Text("█" * round(row["share"] * bar), style="dim red" if is_inner else "red"),
            f"{row['share']:.1%}",
            "" if wait is None else f"{wait:.1%}",
            counted(row),
            *(duration(row[f"{key}_s"]) for key in ("mean", "median", "p90")),
        ]
        table.add_row(*(cells[at] for at in shown))
    if len(rows) <= _MANY:
        return table
    return Group(table, Text(f" {len(rows) - _MANY} more operations: voirkit report --json", style="dim"))


def _with_inner(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Each operation, and below it those that run in it."""
    inner: dict[str, list[str]] = {}
    for name, row in rows.items():
        inner.setdefault(row.get("inside", ""), []).append(name)

    def below(name: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
        for one in inner.pop(name, ()):
            yield one, rows[one], bool(name)
            yield from below(one)

    few = {name: row for name, row in rows.items() if row["share"] >= _SMALL or len(rows) < 8}
    for name, row, is_inner in below(""):
        if name in few:
            yield name, row, is_inner


def counted(row: Mapping[str, Any]) -> str:
    """How often an operation ran; where one run reads a whole batch it says so."""
    return f"{row['n']:,} batches" if row.get("unit") == "batches" else f"{row['n']:,}"


def facts(loader: Loader) -> Iterator[Text]:
    """Batches, workers, what other numbers of workers would give, slow samples; a line each."""
    if loader.get("stretched_by"):
        yield _line(
            "times", f"{loader['stretched_by']} stops each system call: the loader's times are far too long, and no operation is to blame"
        )
    made, wait = loader["preprocess"], loader["wait"]
    if made["n"]:
        said = [f"made in {duration(made['median_s'])}, std {made['std_s'] / made['mean_s']:.0%}" if made["mean_s"] else ""]
        if loader["workers"] and loader["ready_share"] is not None:
            said.append(f"{loader['ready_share']:.0%} ready when asked for")
        said.append(f"waited {duration(wait['mean_s'])} each")
        if loader.get("delay") and loader["workers"]:
            said.append(f"{duration(loader['delay']['median_s'])} from made to consumed")
        if loader["out_of_order"]:
            said.append(f"{loader['out_of_order']:,} out of order")
        if loader["failed"]:
            said.append(f"{loader['failed']:,} raised an exception")
        rest = (wait.get("by") or {}).get("rest", 0.0)
        if rest >= _REST:
            said.append(f"{rest:.0%} of the wait is starting workers, queues and pinning")
        yield _line("batches", *said)
    if loader.get("utilisation"):
        used, queue = loader["utilisation"], loader.get("queue")
        cost = loader["cost"]
        computing = f" ({cost['cpu_s'] / cost['batch_s']:.0%} of it computing)" if cost["cpu_s"] is not None and cost["batch_s"] else ""
        said = [f"{used['busy']:.0%} busy{computing}", f"the busiest {used['imbalance']:.0%} above the mean"]
        if queue:
            said.append(f"{figure(queue['mean'])} batches in store, none {queue['empty_share']:.0%} of the time")
        yield _line("workers", *said)
    yield from _predicted(loader)
    drift = loader.get("drift") or {}
    if drift.get("preprocess") and abs(drift["preprocess"]) >= 0.1:
        who = f"; most of it {drift['operation']} ({drift['operation_change']:+.0%})" if drift.get("operation") else ""
        yield _line("drift", f"a batch takes {drift['preprocess']:+.0%} at the end of the run{who}")
    yield from _slowest(loader)


def _predicted(loader: Loader) -> Iterator[Text]:
    """What other numbers of workers would load, up to the one that is enough or the best."""
    rows = {row["workers"]: row for row in loader.get("predicted") or ()}
    now, wanted = loader["workers"], loader.get("enough_workers") or loader.get("best_workers")
    if now not in rows:
        return
    upto = {now, *(n for n in (1, 2, 4, 8, 16, 32) if now < n < (wanted or 0) and n in rows)}
    if wanted and wanted > now and wanted in rows:
        upto.add(wanted)
    said = [f"{n}{' (now)' if n == now else ''} {figure(rows[n]['loading_rate'])}" for n in sorted(upto)]
    last = rows[max(upto)]
    if last["limited_by"] == "processors":
        said[-1] += " (the processors' limit)"
    if loader["cost"]["pause_s"]:
        said.append(f"the training takes up to {figure(loader['cost']['items'] / loader['cost']['pause_s'])}")
    yield _line(f"{loader.get('units', 'items/s')} that workers can make, at best", *said)


def _slowest(loader: Loader) -> Iterator[Text]:
    items = loader["items"]
    slow = loader.get("slowest") or []
    usual = sum(row["total_s"] for row in loader["operations"].values() if "inside" not in row) / items if items else 0.0
    named = [row for row in slow if row["median_s"] > 2 * usual][:_SLOW]
    if named:
        said = (f"{row['index']} ({duration(row['median_s'])}{', ' + row['operation'] if row['operation'] else ''})" for row in named)
        yield _line("slowest samples, by index", *said)


def _line(name: str, *said: str) -> Text:
    return Text.assemble((f"{name}  ", "dim"), " · ".join(one for one in said if one))
