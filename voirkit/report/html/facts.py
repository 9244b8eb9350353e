"""The end of a report: where and how the run was made, what voirkit cost it and could not keep, what was probed and given."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html.components import Html, folded, section, table

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 200


def facts(run: Run, summary: Mapping[str, Any]) -> Html:
    """Always there."""
    parts = [table(("", ""), list(_machine(run, summary)), left=(0, 1))]
    packages = run.manifest.get("packages") or {}
    if packages:
        parts.append(folded(f"{len(packages)} packages", table(("package", "version"), list(packages.items())[:_ROWS], left=(0, 1))))
    dropped = summary.get("dropped") or {}
    if dropped:
        parts.append(table(("dropped", "records"), [(name, f"{n:,}") for name, n in list(dropped.items())[:_ROWS]]))
    probes = summary.get("probes") or []
    if probes:
        rows = [(one["selector"], one["where"], f"{one['events']:,}") for one in probes[:_ROWS]]
        parts.append(folded(f"{len(probes)} probes", table(("probe", "where", "events"), rows, left=(0, 1))))
    given = summary.get("given") or {}
    if given:
        parts.append(
            folded(f"{len(given)} names given", table(("name", "times"), [(key, f"{n:,}") for key, n in list(given.items())[:_ROWS]]))
        )
    return section("machine", "Machine and cost", *parts)


def _machine(run: Run, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    manifest = run.manifest
    yield "command", shlex.join(map(str, summary.get("command") or []))
    for key, name in (("voirkit_options", "voirkit's options"), ("voirkit", "voirkit"), ("started", "started"), ("cwd", "folder"),
                      ("git_revision", "git revision"), ("host", "host"), ("platform", "platform"), ("cpus", "processors"),
                      ("world_size", "ranks")):  # fmt: skip
        value = manifest.get(key)
        if value:
            yield name, shlex.join(map(str, value)) if isinstance(value, list) else str(value)
    python = manifest.get("python")
    if isinstance(python, dict):
        yield "python", " ".join(str(python[key]) for key in ("version", "executable") if python.get(key))
    overhead = summary.get("overhead")
    if overhead:
        after = f"; {duration(overhead['completing_s'])} of a processor after it" if overhead.get("completing_s") is not None else ""
        cost = f"{overhead['share']:.2%} of the run: {duration(overhead['seconds'])} for {overhead['events']:,} records{after}"
        yield "overhead", cost
        for name, part in (overhead.get("parts") or {}).items():
            yield f"of it {name}", f"{duration(part['seconds'])}{', estimated' if part.get('estimated') else ''}"
    yield "dropped records", f"{sum((summary.get('dropped') or {}).values()):,}"
    processors = summary.get("processors") or {}
    if processors.get("others_share") is not None:
        yield "other programs", f"{processors['others_share']:.0%} of the processors"
    yield "run directory", run.path
