"""From the spans to the key ``json`` of the summary."""

from __future__ import annotations

from voirkit_json import CATEGORY

SLOWEST = 5

QUERY = f"""
SELECT start_ns, duration_ns, value FROM spans WHERE category = '{CATEGORY}' ORDER BY start_ns
"""


def summarise(runs, ranks, summary):
    """``calls``, ``total_s``, ``bytes``, and the ``slowest`` calls: when each began, in seconds of
    the run, and how long it took."""
    calls = []
    for run in runs:
        began_ns = run.manifest["moments"]["begun_ns"]
        for start_ns, duration_ns, size in run.connection().execute(QUERY).fetchall():
            calls.append(
                {
                    "at_s": (start_ns - began_ns) / 1e9,
                    "took_s": duration_ns / 1e9,
                    "bytes": size,
                }
            )
    if not calls:
        return None
    slowest_first = sorted(calls, key=lambda call: -call["took_s"])
    return {
        "json": {
            "calls": len(calls),
            "total_s": sum(call["took_s"] for call in calls),
            "bytes": sum(call["bytes"] for call in calls),
            "slowest": slowest_first[:SLOWEST],
        }
    }
