"""Runs inside the script: each call of ``json.dumps`` that takes long enough becomes a span of the trace."""

from __future__ import annotations

import json
from functools import wraps
from time import perf_counter_ns

from voirkit.intercept import Patches
from voirkit_json import CATEGORY, NAME


def record(ov, options):
    """Stand around ``json.dumps`` while the script runs."""
    from voirkit.trace import recorder

    least_ns = int(options["json_time"] * 1e6)
    span = recorder.name(CATEGORY, NAME, kind="json", value="bytes")
    plain = json.dumps

    @wraps(plain)
    def dumps(*args, **kwargs):
        began = perf_counter_ns()
        text = plain(*args, **kwargs)
        ended = perf_counter_ns()
        if ended - began >= least_ns:
            recorder.span(span, began, ended, 0, len(text))
        return text

    patches = Patches()
    patches.put(json, "dumps", dumps)
    try:
        yield ov.phases.run_script
    finally:
        patches.remove()
