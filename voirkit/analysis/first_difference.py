"""Finds the first loss and the first batch in which two runs differ.

Losses come from the records of backward passes, batches from the records of the indices that
samplers return (``losses_of``, ``batches_of``). The comparisons are pure functions. A loss on a
device is not recorded, since voirkit does not wait for devices while the script runs. For such runs
the loss curves of the summaries are compared (``curves_differ``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE as NO_STEP
from voirkit.analysis.nesting import Array
from voirkit.analysis.phases import KIND
from voirkit.analysis.run_steps import read_columns, read_steps
from voirkit.trace.layout import BATCH_KIND, LOSS

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

MOST_RANKS = 64  # more ranks are not compared: ranks that train in step differ at the same time


@dataclass(frozen=True)
class Observations:
    """Losses of backward passes, or digests of batches, of one rank of a run, in order; arrays of
    shape (n,)."""

    value: Array  # losses in float64, digests in int64
    is_known: Array  # True for each value that was recorded
    step: Array  # the step of each value, counted from 0; ``NO_STEP`` for a value in no step

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class FirstDifference:
    """The result of comparing two sequences of observations."""

    lengths: tuple[int, int]  # number of observations of each run
    compared: int  # number of indices at which both values are known
    index: int | None = None  # the first index at which values differ; None if none differ
    step: int | None = None  # the step of the first run at this index; None if it is in no step
    values: tuple[Any, Any] | None = None  # the values of both runs at this index
    differing: int = 0  # number of indices at which values differ

    def as_json(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        return {
            "equal": None if not self.compared else self.index is None,
            "lengths": list(self.lengths),
            "compared": self.compared,
            "index": self.index,
            "step": self.step,
            "values": None if self.values is None else list(self.values),
            "differing": self.differing,
        }


@dataclass(frozen=True)
class RankDifference:
    """The differences of one rank's losses and batches between two runs. ``losses`` or ``batches``
    is None if neither run has recorded any."""

    rank: int
    losses: FirstDifference | None
    batches: FirstDifference | None


def rank_as_json(difference: RankDifference) -> dict[str, Any]:
    """Return the difference as a dictionary for JSON: ``rank``, ``losses`` and ``batches``."""
    parts = {"losses": difference.losses, "batches": difference.batches}
    return {
        "rank": difference.rank,
        **{name: None if part is None else part.as_json() for name, part in parts.items()},
    }


def first_difference(first: Observations, second: Observations) -> FirstDifference | None:
    """Compare the observations of two runs, and return their first difference; None if neither run
    has any observations. Two NaN losses are equal."""
    lengths = len(first), len(second)
    if not any(lengths):
        return None
    n = min(lengths)
    a, b = first.value[:n], second.value[:n]
    is_known = first.is_known[:n] & second.is_known[:n]
    differs = is_known & (a != b) & ~((a != a) & (b != b))
    places = np.flatnonzero(differs)
    compared = int(is_known.sum())
    if not len(places):
        return FirstDifference(lengths, compared)
    index = int(places[0])
    step = int(first.step[index])
    values = a[index].item(), b[index].item()
    return FirstDifference(
        lengths, compared, index, None if step == NO_STEP else step, values, len(places)
    )


def first_differences(first: Sequence[Run], second: Sequence[Run]) -> list[RankDifference]:
    """Compare the ranks that both runs have, ascending by number. Each run is given by all its run
    directories, which hold its ranks."""
    sides = [_ranks(runs) for runs in (first, second)]
    both = sorted(set(sides[0]) & set(sides[1]))[:MOST_RANKS]
    differences = []
    for number in both:
        pairs = [side[number] for side in sides]
        losses = first_difference(*(losses_of(run, rank) for run, rank in pairs))
        batches = first_difference(*(batches_of(run, rank) for run, rank in pairs))
        differences.append(RankDifference(number, losses, batches))
    return differences


def _ranks(runs: Sequence[Run]) -> dict[int, tuple[Run, Rank]]:
    """Return a dict from number to each rank of a run that trained, with the run directory that
    holds it. Of processes that train alone and have the same number, it returns the first."""
    trained: dict[int, tuple[Run, Rank]] = {}
    for run in runs:
        for rank in read_steps(run):
            if len(rank.steps.train):
                trained.setdefault(rank.rank, (run, rank))
    return trained


# reading the losses of a run


def losses_of(run: Run, rank: Rank) -> Observations:
    """Return the losses on which a rank called ``backward``, in the order of the calls."""
    columns = _fetch(
        run,
        rank,
        f"kind = '{KIND}' AND category = 'compute' AND name = 'backward'",
        f"start_ns, coalesce(number, 0) AS loss, coalesce(value_key = '{LOSS}', false) AS is_known",
    )
    step = rank.steps.training_steps_at(columns["start_ns"])
    return Observations(columns["loss"], columns["is_known"].astype(bool), step)


def _fetch(run: Run, rank: Rank, condition: str, columns: str) -> dict[str, Array]:
    """Return columns of the records of a rank's training thread, ascending by start."""
    from voirkit.runs.parquet import quoted

    processes = ", ".join(f"({quoted(host)}, {pid})" for host, pid in rank.processes)
    of_rank = f"(host, pid) IN ({processes})" if processes else f"rank = {rank.rank}"
    query = (
        f"SELECT {columns}, pid, tid FROM spans WHERE ({condition}) AND {of_rank} ORDER BY start_ns,"
        " duration_ns DESC"
    )
    arrays = read_columns(run.connection(), query)
    rows = leading_thread(arrays["pid"], arrays["tid"])
    return {name: values[rows] for name, values in arrays.items()}


def leading_thread(pid: Array, tid: Array) -> Array:
    """Return a mask of the records that count, of shape (n,). All records count if threads follow
    each other; if several threads are active at once, only those of the busiest thread."""
    _, thread, counts = np.unique(
        np.stack([pid, tid]), axis=1, return_inverse=True, return_counts=True
    )
    thread = thread.reshape(-1)
    turns = int(np.count_nonzero(np.diff(thread))) + 1
    if len(counts) < 2 or turns == len(counts):
        return np.ones(len(pid), bool)
    is_busiest: Array = thread == np.argmax(counts)
    return is_busiest


# reading the batches of a run


def batches_of(run: Run, rank: Rank) -> Observations:
    """Return digests of the sample indices of the batches that a rank trained on, in the order in
    which it got the batches."""
    requests = f"kind = '{KIND}' AND category = 'dataloader' AND name IN ('iter', 'fetch', 'end')"
    columns = _fetch(
        run,
        rank,
        f"kind = '{BATCH_KIND}' OR ({requests})",
        f"start_ns, start_ns + duration_ns AS end_ns, kind = '{BATCH_KIND}' AS is_draw, name ="
        " 'fetch' AS is_fetch, coalesce(value, 0) AS digest,"
        " coalesce(TRY_CAST(json_extract_string(args, '$.episode') AS BIGINT), -1) AS episode",
    )
    is_draw = columns["is_draw"].astype(bool)
    draws = {name: values[is_draw] for name, values in columns.items()}
    asks = {name: values[~is_draw] for name, values in columns.items()}
    start_ns, episode = asks["start_ns"], asks["episode"]
    drawn_in = episodes_of_draws(draws["start_ns"], start_ns, asks["end_ns"], episode)
    is_fetch = asks["is_fetch"].astype(bool)
    digest, is_known = digests_of_batches(episode[is_fetch], drawn_in, draws["digest"])
    step = rank.steps.training_steps_at(start_ns[is_fetch])
    trained = step != NO_STEP
    return Observations(digest[trained], is_known[trained], step[trained])


def episodes_of_draws(at_ns: Array, start_ns: Array, end_ns: Array, episode: Array) -> Array:
    """Return the episode of the request during which each draw of indices happened; -1 for none.

    Args:
        at_ns: Time of each draw.
        start_ns, end_ns, episode: Requests, ascending by start, without overlap.
    """
    if not len(start_ns):
        return np.full(len(at_ns), -1)
    place = np.searchsorted(start_ns, at_ns, side="right") - 1
    last = np.maximum(place, 0)
    return np.where((place >= 0) & (at_ns <= end_ns[last]), episode[last], -1)


def digests_of_batches(episode: Array, drawn_in: Array, digest: Array) -> tuple[Array, Array]:
    """Return the digest of each batch, and whether it is known. The k-th batch of an episode has
    the indices of the episode's k-th draw.

    Args:
        episode: The episode of each batch, in the order of arrival; shape (n,).
        drawn_in, digest: The episode and the digest of each draw, in order; shape (m,).
    """
    digests, is_known = np.zeros(len(episode), np.int64), np.zeros(len(episode), bool)
    for number in np.unique(episode[episode >= 0]).tolist():
        batches, draws = np.flatnonzero(episode == number), np.flatnonzero(drawn_in == number)
        n = min(len(batches), len(draws))
        digests[batches[:n]] = digest[draws[:n]]
        is_known[batches[:n]] = True
    return digests, is_known


# comparing loss curves, for losses on a device


@dataclass(frozen=True)
class CurveDifference:
    """The result of comparing the loss curves of two summaries."""

    compared: int  # number of losses that both curves have
    losses: int  # number of losses of the shorter run
    # number of the last equal loss before the first different loss; None if no loss before is equal
    last_equal: int | None
    first_different: int | None = None  # number of the first different loss; None if none differs
    values: tuple[float | None, float | None] | None = None  # the two different losses


def curves_differ(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> CurveDifference | None:
    """Compare the loss curves of two summaries, which contain only some of the losses. Returns None
    if a summary has no curve, or the curves have no loss number in common."""
    curves = [dict(map(tuple, (loss or {}).get("curve") or ())) for loss in (first, second)]
    both = sorted(set(curves[0]) & set(curves[1]))
    if first is None or second is None or not both:
        return None
    n = min(first["n"], second["n"])
    last_equal = None
    for number in both:
        values = curves[0][number], curves[1][number]
        if values[0] != values[1]:
            return CurveDifference(len(both), n, last_equal, number, values)
        last_equal = number
    return CurveDifference(len(both), n, last_equal)
