"""Which parameters an optimizer holds, by the id of the object: records of parameters know optimizers by a number of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_NUMBER = "CAST(json_extract_string({}, '$.optimizer') AS BIGINT) AS number"
# A step of the one and a call of the other that overlap are the same step. A wrapper's own `step` may lie around it, so that calls that
# name the class go first, and then the shortest.
_MET = """
WITH m AS (
    SELECT category AS what, tid, start_ns, start_ns + duration_ns AS end_ns, args
    FROM ({parameters}) WHERE category IN ('step', 'zero_grad')
), c AS (
    SELECT string_split(name, '.')[-1] AS what, string_split(name, '.')[-2] AS class, value, tid, start_ns, start_ns + duration_ns AS end_ns
    FROM ({calls}) WHERE value <> 0 AND string_split(name, '.')[-1] IN ('step', 'zero_grad')
)
SELECT {number}, value, bool_or(class IN ('Optimizer', json_extract_string(m.args, '$.class'))) AS is_named,
    min(c.end_ns - c.start_ns) AS shortest
FROM c ASOF JOIN m ON c.what = m.what AND c.tid = m.tid AND c.end_ns > m.start_ns
WHERE m.end_ns > c.start_ns GROUP BY number, value ORDER BY number, is_named DESC, shortest
"""


def held(run: Run, calls: str, parameters: str) -> dict[int, Sequence[str]]:
    """Names of parameters by the id of the optimizer that holds them.

    Args:
        run: The opened run.
        calls: A query for the calls of one process.
        parameters: One for what it recorded of parameters.
    """
    names: dict[int, list[str]] = {}
    seen = f"SELECT DISTINCT {_NUMBER.format('args')}, name FROM ({parameters}) WHERE category = 'seen' ORDER BY ALL"
    for batch in run.fetch(seen):
        for number, name in batch:
            names.setdefault(number, []).append(name)
    found: dict[int, Sequence[str]] = {}
    known: set[int] = set()
    for batch in run.fetch(_MET.format(calls=calls, parameters=parameters, number=_NUMBER.format("m.args"))):
        for number, which, *_ in batch:
            if number not in known:
                known.add(number)
                found[which] = sorted({*found.get(which, ()), *names.get(number, ())})
    return found
