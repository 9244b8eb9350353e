"""From the spans to the key ``json`` of the summary."""

from __future__ import annotations

from voirkit_json import CATEGORY

SLOWEST = 5


def summarise(runs, ranks, summary):
    """``calls``, ``total_s``, ``bytes``, and the ``slowest`` calls (when they began, seconds of the run; how long they took)."""
    found = []
    for run in runs:
        rows = run.connection().execute(f"SELECT start_ns, duration_ns, value FROM spans WHERE category = '{CATEGORY}' ORDER BY start_ns")
        found += [(start - run.manifest["moments"]["begun_ns"], took, size) for start, took, size in rows.fetchall()]
    if not found:
        return None
    slowest = sorted(found, key=lambda one: -one[1])[:SLOWEST]
    return {
        "json": {
            "calls": len(found),
            "total_s": sum(took for _, took, _ in found) / 1e9,
            "bytes": sum(size for _, _, size in found),
            "slowest": [{"at_s": at / 1e9, "took_s": took / 1e9, "bytes": size} for at, took, size in slowest],
        }
    }
