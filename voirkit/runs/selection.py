"""Selections of steps and ranks of a run, and the DuckDB query for the selected events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from voirkit.errors import CommandLineError

if TYPE_CHECKING:
    import duckdb


class Selection(NamedTuple):
    """A selection of steps and ranks of a run.

    An event belongs to the step in its argument ``step``. An event without that argument is
    selected if it lies completely within the time of the selected steps of its rank.
    """

    # ``(first, end)``, half-open; either bound may be None for no bound. None selects all steps.
    steps: tuple[int | None, int | None] | None = None
    ranks: frozenset[int] | None = None  # the selected ranks, or None for all


EVERYTHING: Final = Selection()


def selection(steps: str | None = None, ranks: str | None = None) -> Selection:
    """Parse the values of the options ``--steps`` and ``--ranks``; None selects all. Raises
    CommandLineError: a value is malformed."""
    selected_steps = None if steps is None else read_steps(steps)
    selected_ranks = None if ranks is None else read_ranks(ranks)
    return Selection(selected_steps, selected_ranks)


def read_steps(text: str) -> tuple[int | None, int | None]:
    """Parse a range of steps, ``10:20``, ``10:``, ``:20`` or ``10``, into ``(first, end)``,
    half-open. Raises CommandLineError: the text has another form, or the range is empty."""
    first, colon, end = text.strip().partition(":")
    try:
        low = int(first) if first.strip() else None
        high = int(end) if end.strip() else None
    except ValueError:
        raise _no_steps(text) from None
    if not colon:
        if low is None:
            raise _no_steps(text)
        return low, low + 1
    if low is not None and high is not None and high <= low:
        raise CommandLineError(
            "no step lies in it: the second number is the first step left out.",
            where=f"--steps {text}",
            next=_STEPS,
        )
    return low, high


_STEPS = "Steps 10 to 19: --steps 10:20   From step 10 on: --steps 10:   Up to step 19: --steps :20"
_RANKS = "Ranks 0, 2 and 3: --ranks 0,2-3"


def _no_steps(text: str) -> CommandLineError:
    return CommandLineError(f"{text!r} is no range of steps.", where="--steps", next=_STEPS)


def read_ranks(text: str) -> frozenset[int]:
    """Parse a list of ranks such as ``0,2-3``; ranges include both ends. Raises CommandLineError:
    the text has another form."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise CommandLineError(f"{text!r} is no list of ranks.", where="--ranks", next=_RANKS)
        low, high = int(first), int(last or first)
        if high < low or high - low > 1_000_000:
            raise CommandLineError(
                f"{part.strip()!r} is no range of ranks.", where=f"--ranks {text}", next=_RANKS
            )
        ranks.update(range(low, high + 1))
    return frozenset(ranks)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


# SQL that creates a table with the time ranges of the selected steps, per rank.
#
# An event gets its arguments when it ends. So on each thread, events that end one after the other
# with the same step (a ``turn`` in the query) show when this step was current. A step's range ends
# with the step's last event. The range begins at the end of the last event of the previous step, or
# at the start of the step's own first event if that is later. Time between two consecutive selected
# steps belongs to the selection. The ranges of all threads of a rank are merged where they overlap
# (an ``island`` in the query).
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
    """Return the SQL query for the events of a selection, with the columns of ``events``.

    Args:
        connection: The connection of the run, with the view ``events``.
        table: The name of a table to create for the time ranges of selected steps, if needed.

    Raises:
        CommandLineError: The run has no such steps or ranks.
    """
    from voirkit.runs.parquet import within

    events = "SELECT * FROM events"
    if selection.ranks is not None:
        ranks = sorted(selection.ranks)
        there = [
            rank
            for (rank,) in connection.execute(
                "SELECT DISTINCT rank FROM events ORDER BY rank"
            ).fetchall()
        ]
        missing = [rank for rank in ranks if rank not in there]
        if missing:
            raise CommandLineError(
                f"rank {missing[0]} has recorded nothing.",
                where="--ranks",
                next=f"Ranks of this run: {as_ranges(there) or 'none'}.",
            )
        events += f" WHERE rank IN ({', '.join(map(str, ranks))})"
    if selection.steps is None:
        return events
    steps = within(*selection.steps, column="step")
    _check_steps(connection, events, steps, selection.steps)
    connection.execute(_TIMES.format(table=table, events=events, steps=steps))
    is_inside = "t.first_ns IS NOT NULL AND e.start_ns + e.duration_ns <= t.last_ns"
    return (
        f"SELECT e.* FROM ({events}) e ASOF LEFT JOIN {table} t "
        "ON e.host = t.host AND e.rank = t.rank AND e.start_ns >= t.first_ns "
        f"WHERE CASE WHEN e.step IS NULL THEN {is_inside} ELSE {steps.replace('step', 'e.step')} END"
    )


def _check_steps(
    connection: duckdb.DuckDBPyConnection,
    events: str,
    condition: str,
    steps: tuple[int | None, int | None],
) -> None:
    ((first, last, count),) = connection.execute(
        f"SELECT min(step), max(step), count(*) FILTER (WHERE {condition}) FROM ({events}) WHERE step"
        " IS NOT NULL"
    ).fetchall()
    low, high = ("" if bound is None else bound for bound in steps)
    where = f"--steps {low}:{high}"
    if first is None:
        hint = "An event belongs to a step by its argument `step`: ai.update(step=...) sets it."
        raise CommandLineError(
            "no event of this run says to which step it belongs.", where=where, next=hint
        )
    if not count:
        raise CommandLineError(
            "this run has no such steps.", where=where, next=f"It has steps {first} to {last}."
        )


def as_ranges(numbers: list[int]) -> str:
    """Format ascending integers as ranges: ``[0, 1, 2, 5]`` becomes ``0-2, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    ends = [dict.fromkeys((part[0], part[-1])) for part in parts]
    return ", ".join("-".join(map(str, pair)) for pair in ends)
