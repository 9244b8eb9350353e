"""Which events a selection takes, as a query of DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from voirkit.errors import CommandLineError
from voirkit.runs.selection import Selection

if TYPE_CHECKING:
    import duckdb

# An event's arguments are those at its end, so that on each thread the ends of events with a step tell when a step was the current one:
# from the end of the last event of the step before (or where the step's first event began, if that is later) to the end of its own last
# event. What lies between two chosen steps belongs to them. These stretches of all threads of a rank are joined where they overlap.
_TIMES = """
CREATE TABLE {table} AS
WITH ended AS (
    SELECT host, rank, pid, tid, step, start_ns, start_ns + duration_ns AS end_ns,
           coalesce(step IS DISTINCT FROM lag(step) OVER w OR epoch IS DISTINCT FROM lag(epoch) OVER w, true) AS is_new
    FROM ({events}) WHERE step IS NOT NULL WINDOW w AS (PARTITION BY host, rank, pid, tid ORDER BY start_ns + duration_ns, duration_ns)
), numbered AS (
    SELECT *, sum(is_new::INTEGER) OVER (
        PARTITION BY host, rank, pid, tid ORDER BY end_ns, end_ns - start_ns ROWS UNBOUNDED PRECEDING) AS turn FROM ended
), turns AS (
    SELECT host, rank, pid, tid, turn, any_value(step) AS step, min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM numbered GROUP BY ALL
), neighbours AS (
    SELECT *, {steps} AS is_chosen, lag(last_ns) OVER w AS before_ns, coalesce(lag({steps}) OVER w, false) AS follows_chosen
    FROM turns WINDOW w AS (PARTITION BY host, rank, pid, tid ORDER BY turn)
), chosen AS (
    SELECT host, rank, last_ns,
           CASE WHEN follows_chosen THEN before_ns ELSE greatest(first_ns, coalesce(before_ns, first_ns)) END AS first_ns
    FROM neighbours WHERE is_chosen
), joined AS (
    SELECT *, coalesce(first_ns > max(last_ns) OVER (
        PARTITION BY host, rank ORDER BY first_ns, last_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true) AS is_new FROM chosen
), islands AS (
    SELECT *, sum(is_new::INTEGER) OVER (PARTITION BY host, rank ORDER BY first_ns, last_ns ROWS UNBOUNDED PRECEDING) AS island FROM joined
)
SELECT host, rank, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM islands GROUP BY host, rank, island
"""


def chosen_events(connection: duckdb.DuckDBPyConnection, selection: Selection, table: str) -> str:
    """A query for the events of a selection, with the columns of ``events``.

    Args:
        table: The name of a table that may be made for it.

    Raises:
        CommandLineError: The run has no such steps or ranks.
    """
    events = "SELECT * FROM events"
    if selection.ranks is not None:
        ranks = sorted(selection.ranks)
        there = [rank for (rank,) in connection.execute("SELECT DISTINCT rank FROM events ORDER BY rank").fetchall()]
        missing = [rank for rank in ranks if rank not in there]
        if missing:
            raise CommandLineError(
                f"rank {missing[0]} has recorded nothing.", where="--ranks", next=f"Ranks of this run: {as_ranges(there) or 'none'}."
            )
        events += f" WHERE rank IN ({', '.join(map(str, ranks))})"
    if selection.steps is None:
        return events
    steps = _between(selection.steps)
    _check_steps(connection, events, steps, selection.steps)
    connection.execute(_TIMES.format(table=table, events=events, steps=steps))
    within = "t.first_ns IS NOT NULL AND e.start_ns + e.duration_ns <= t.last_ns"
    return (
        f"SELECT e.* FROM ({events}) e ASOF LEFT JOIN {table} t "
        f"ON e.host = t.host AND e.rank = t.rank AND e.start_ns >= t.first_ns "
        f"WHERE CASE WHEN e.step IS NULL THEN {within} ELSE {steps.replace('step', 'e.step')} END"
    )


def _between(steps: tuple[int | None, int | None]) -> str:
    low, high = steps
    return " AND ".join([f"step >= {low}"] * (low is not None) + [f"step < {high}"] * (high is not None)) or "true"


def _check_steps(connection: duckdb.DuckDBPyConnection, events: str, chosen: str, steps: tuple[int | None, int | None]) -> None:
    found: Any = connection.execute(
        f"SELECT min(step), max(step), count(*) FILTER (WHERE {chosen}) FROM ({events}) WHERE step IS NOT NULL"
    ).fetchall()[0]
    first, last, count = found
    where = f"--steps {'' if steps[0] is None else steps[0]}:{'' if steps[1] is None else steps[1]}"
    if first is None:
        hint = "An event belongs to a step by its argument `step`: ai.update(step=...) sets it."
        raise CommandLineError("no event of this run says to which step it belongs.", where=where, next=hint)
    if not count:
        raise CommandLineError("this run has no such steps.", where=where, next=f"It has steps {first} to {last}.")


def as_ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
