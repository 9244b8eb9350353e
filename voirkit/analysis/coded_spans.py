"""Records of a run's tables as columns of numbers: what they are of, their arguments and whose they are become indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from voirkit.analysis.nesting import Array
    from voirkit.runs.opened import Run


class CodedSpans:
    """Some records of a run; how many are read at once is chosen by who reads them.

    Args:
        run: The opened run.
        view: What queries call these records. The tables ``VIEW_names``, ``VIEW_arguments`` and ``VIEW_owners`` have the codes.
        query: For them, of ``spans``.
        owner: The columns that say whose a record is.

    Attributes:
        names: (category, name) by code, ascending; as are those below.
        arguments: As JSON.
        owners: The values of ``owner``.
    """

    def __init__(self, run: Run, view: str, query: str, owner: str = "host, pid, tid") -> None:
        self._connection, self._view, self._owner = run.connection(), view, owner
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
        self.names: list[tuple[str, str]] = self._coded("names", "category, name")
        self.arguments = [text for (text,) in self._coded("arguments", "text", f"(SELECT coalesce(args, '{{}}') AS text FROM {view})")]
        self.owners: list[Any] = self._coded("owners", owner)

    def _coded(self, what: str, columns: str, source: str = "") -> list[Any]:
        table = f"{self._view}_{what}"
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT *, row_number() OVER (ORDER BY {columns}) - 1 AS code "
            f"FROM (SELECT DISTINCT {columns} FROM {source or self._view})"
        )
        return self.rows(f"SELECT {columns} FROM {table} ORDER BY code")

    def rows(self, query: str) -> list[Any]:
        """The rows of a query, which may name the view and its tables."""
        return self._connection.execute(query).fetchall()

    def fetch(self, columns: str, where: str = "true") -> dict[str, Array]:
        """Columns of the records for which something holds, of int64, each of shape (n,), in no order.

        Args:
            columns: Of the records; ``n.code``, ``a.code`` and ``o.code`` are the codes of name, arguments and owner.
            where: In SQL.
        """
        view = self._view
        found = self._connection.execute(
            f"SELECT {columns} FROM (SELECT * FROM {view} WHERE {where}) s JOIN {view}_names n USING (category, name) "
            f"JOIN {view}_arguments a ON a.text = coalesce(s.args, '{{}}') JOIN {view}_owners o USING ({self._owner})"
        ).fetchnumpy()
        return {key: np.asarray(values).astype(np.int64, copy=False) for key, values in found.items()}

    def ranges(self, most: int, where: str = "true") -> list[tuple[int | None, int | None]]:
        """Ranges of ``start_ns``, ascending, each with about so many records at most; None: no bound."""
        ((n,),) = self.rows(f"SELECT count(*) FROM {self._view} WHERE {where}")
        edges: list[int] = []
        if n > most:
            parts = -(-n // most)
            shares = ", ".join(str(i / parts) for i in range(1, parts))
            ((times,),) = self.rows(f"SELECT approx_quantile(start_ns, [{shares}]) FROM {self._view} WHERE {where}")
            edges = sorted({int(time) for time in times})
        return list(zip([None, *edges], [*edges, None], strict=True))


def within(low: int | None, high: int | None) -> str:
    """In SQL, whether a record began in a range of ``ranges``."""
    return " AND ".join([f"start_ns >= {low}"] * (low is not None) + [f"start_ns < {high}"] * (high is not None)) or "true"
