"""The records of ``--loader`` of one rank as columns of numbers: those of batches at once, those of samples in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.of_run import numbered
from voirkit.runs.tables.parquet import quoted

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

KIND = "loader"
CHUNK = 500_000  # records at a time: 50 MB with what is made of them
_OF_BATCHES = "(category IN ('batch', 'worker') OR (category = 'data' AND name IN ('preprocess', 'collate', 'cpu')))"
_OF_COSTS = "category = 'cost'"
_FETCHED = "kind = 'phase' AND category = 'dataloader' AND name = 'fetch'"
_OF_SAMPLES = "(category = 'operation' OR (category = 'data' AND name <> 'cpu'))"


@dataclass(frozen=True)
class Columns:
    """Some records; arrays of shape (n,): times in nanoseconds of the host's clock, the rest indices of ``Recorded``'s tables, but for
    ``value``, which is the record's own number (-1: it has none)."""

    start_ns: Array
    duration_ns: Array
    name: Array
    args: Array
    thread: Array
    value: Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Array:
        return self.start_ns + self.duration_ns

    def take(self, chosen: Array) -> Columns:
        """Those of these indices, or where a mask is true."""
        return Columns(*(getattr(self, key)[chosen] for key in FIELDS))

    def followed_by(self, other: Columns) -> Columns:
        """Both, this one first."""
        return Columns(*(np.concatenate([getattr(self, key), getattr(other, key)]) for key in FIELDS))


FIELDS = ("start_ns", "duration_ns", "name", "args", "thread", "value")
EMPTY = Columns(*(np.zeros(0, np.int64) for _ in FIELDS))


class Recorded:
    """What one rank has recorded of its loaders.

    Args:
        run: The opened run.
        rank: Which.

    Attributes:
        names: (category, name) by index.
        arguments: Of a record, by index: ``loader, episode, worker`` ...
        threads: (host, pid, tid) by index.
        parents: The process that started one, by its id, as far as it is known.
        made: What is known of loaders whose iterators the steps instrument has seen: (pid, loader) to ``dataset, batch_size`` ...
        cpus: Processors of the host; None if that is not known.
        readers: What reads samples, such as ``Pictures.__getitem__``, by index; empty where that is not recorded.
        reader: By set of arguments, an index into ``readers``.
        of_whole_batches: By set of arguments, whether what reads gives all samples of a batch at once.
        fetched: What the steps instrument has counted: (pid, loader) to (items, batches that they are of, batches).
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._connection = run.connection()
        self._which = f"kind = {quoted(KIND)} AND rank = {rank}"
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW of_loader AS SELECT * FROM spans WHERE {self._which}")
        self.names: Sequence[tuple[str, str]] = self._rows("SELECT DISTINCT category, name FROM of_loader ORDER BY ALL")
        texts = [text for (text,) in self._rows("SELECT DISTINCT coalesce(args, '{}') FROM of_loader ORDER BY ALL")]
        self.arguments: Sequence[Mapping[str, Any]] = [json.loads(text) for text in texts]
        self.threads: Sequence[tuple[str, int, int]] = self._rows("SELECT DISTINCT host, pid, tid FROM of_loader ORDER BY ALL")
        self.parents = {one.pid: one.ppid for one in run.processes() if one.rank == rank}
        self.made = self._made(rank)
        self.cpus: int | None = run.manifest.get("cpus")
        named = [str(a.get("source", "")) for a in self.arguments]
        self.readers = sorted(set(named))
        self.reader = np.array([self.readers.index(name) for name in named], np.int64)
        self.of_whole_batches = np.array([a.get("whole") is True for a in self.arguments], bool)
        self.fetched = self._fetched(rank)
        columns = {
            "loader_names": {"category": [c for c, _ in self.names], "name": [n for _, n in self.names]},
            "loader_arguments": {"text": texts},
            "loader_threads": {key: [one[i] for one in self.threads] for i, key in enumerate(("host", "pid", "tid"))},
        }
        for name, table in columns.items():
            self._connection.register(name, numbered(**table))

    def _rows(self, query: str) -> list[Any]:
        return self._connection.execute(query).fetchall()

    def _made(self, rank: int) -> dict[tuple[int, int], dict[str, Any]]:
        found = self._rows(
            "SELECT DISTINCT pid, args FROM spans WHERE kind = 'phase' AND category = 'dataloader' AND name = 'iter' "
            f"AND rank = {rank} AND args IS NOT NULL"
        )
        made: dict[tuple[int, int], dict[str, Any]] = {}
        for pid, text in found:
            known = json.loads(text)
            if "loader" in known:
                made[pid, known["loader"]] = known
        return made

    def _fetched(self, rank: int) -> dict[tuple[int, int], tuple[int, int, int]]:
        rows = self._rows(
            "SELECT pid, CAST(json_extract(args, '$.loader') AS BIGINT) AS loader, coalesce(sum(value) FILTER (value >= 0), 0)::BIGINT, "
            f"count(*) FILTER (value >= 0), count(*) FROM spans WHERE {_FETCHED} AND rank = {rank} GROUP BY ALL"
        )
        return {(pid, loader): (items, counted, n) for pid, loader, items, counted, n in rows if loader is not None}

    def of_batches(self) -> Columns:
        """All that is recorded once a batch."""
        return self._fetch(_OF_BATCHES)

    def of_costs(self) -> Columns:
        """What a batch costs beside its making; ``value`` is in nanoseconds of a processor's time, bytes, or tensors."""
        return self._fetch(_OF_COSTS)

    def handing(self) -> dict[str, float]:
        """What handing over costs on the machine of the run, by name; empty where it was not measured."""
        rows = self._rows(f"SELECT name, median(value) FROM of_loader WHERE {_OF_COSTS} AND args IS NULL GROUP BY name")
        return dict(rows)

    def of_samples(self, chunk: int = CHUNK) -> Iterator[Columns]:
        """Batches, samples and operations, in chunks by the time at which they began; memory does not grow with the run."""
        (n,) = self._rows(f"SELECT count(*) FROM of_loader WHERE {_OF_SAMPLES}")[0]
        edges: list[int] = []
        if n > chunk:
            parts = -(-n // chunk)
            wanted = ", ".join(str(i / parts) for i in range(1, parts))
            (found,) = self._rows(f"SELECT approx_quantile(start_ns, [{wanted}]) FROM of_loader WHERE {_OF_SAMPLES}")[0]
            edges = sorted({int(edge) for edge in found})
        for low, high in zip([None, *edges], [*edges, None], strict=True):
            between = [f"start_ns >= {low}"] * (low is not None) + [f"start_ns < {high}"] * (high is not None)
            yield self._fetch(" AND ".join([_OF_SAMPLES, *between]))

    def _fetch(self, which: str) -> Columns:
        found = self._connection.execute(
            "SELECT start_ns, duration_ns, n.code AS name, a.code AS args, t.code AS thread, coalesce(value, -1) AS value "
            f"FROM (SELECT * FROM of_loader WHERE {which}) s JOIN loader_names n USING (category, name) "
            "JOIN loader_arguments a ON a.text = coalesce(s.args, '{}') JOIN loader_threads t USING (host, pid, tid)"
        ).fetchnumpy()
        return Columns(**{key: np.asarray(found[key]).astype(np.int64, copy=False) for key in FIELDS})

    # samples by their index

    def slowest(self, source_of_args: Array, source: int, most: int) -> list[tuple[int, int, float, float]]:
        """The samples that take longest, by the median of their times: (index, n, median, longest), in nanoseconds.

        The first sample of each worker is left out: it pays for what is imported and opened once.

        Args:
            source_of_args: The loader of each set of arguments.
            source: Which loader's.
            most: How many.
        """
        if not self._of_source(source_of_args, source):
            return []
        return self._rows(
            "SELECT value, count(*), median(duration_ns), max(duration_ns) FROM ("
            "SELECT value, duration_ns, row_number() OVER (PARTITION BY host, pid, tid ORDER BY start_ns) AS place FROM of_loader "
            "WHERE category = 'data' AND name = 'item' AND value >= 0 AND coalesce(args, '{}') IN (SELECT text FROM of_source)) "
            f"WHERE place > 1 GROUP BY value ORDER BY median(duration_ns) DESC, value LIMIT {most}"
        )

    def operations_on(self, samples: Sequence[int], source_of_args: Array, source: int) -> dict[int, str]:
        """The operation that takes longest on each of these samples."""
        if not samples or not self._of_source(source_of_args, source):
            return {}
        rows = self._rows(
            "SELECT value, arg_max(name, spent) FROM (SELECT value, name, sum(duration_ns) AS spent FROM of_loader WHERE "
            f"category = 'operation' AND value IN ({', '.join(map(str, samples))}) AND coalesce(args, '{{}}') IN "
            "(SELECT text FROM of_source) GROUP BY value, name) GROUP BY value"
        )
        return dict(rows)

    def _of_source(self, source_of_args: Array, source: int) -> bool:
        texts = [code for code in range(len(self.arguments)) if source_of_args[code] == source]
        if texts:
            self._connection.execute(
                f"CREATE OR REPLACE TEMP TABLE of_source AS SELECT text FROM loader_arguments WHERE code IN ({', '.join(map(str, texts))})"
            )
        return bool(texts)
