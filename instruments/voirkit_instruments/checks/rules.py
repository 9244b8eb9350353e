"""The findings of ``--checks``: silent bugs, padding, and embeddings whose rows mostly have no
gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.findings import Finding
from voirkit_instruments.checks.analyse_facts import LEAST_LOOKS

LEAST_PADDING = 0.3  # least share of the tokens that is padding, for a finding
# largest share of an embedding's rows that have a gradient, and smallest share of the embedding in
# all elements of its optimizer, for a finding
MOST_ROWS_WITH_GRADIENT, LEAST_OF_PARAMETERS = 0.05, 0.5
# least share of the optimizer in the step time with which the finding explains that a run is
# compute-bound
LEAST_OPTIMIZER = 0.1

Summary = Mapping[str, Any]


def findings(summary: Summary) -> Iterator[Finding]:
    """Yield all findings of the rules below."""
    yield from _silent_bugs(summary)
    yield from _padding(summary)
    yield from _dense_embedding(summary)


def _silent_bugs(summary: Summary) -> Iterator[Finding]:
    """Yield a finding for each detector that found its bug, in the detector's words."""
    for check in summary.get("checks") or ():
        if check["found"]:
            evidence = {"step": check["step"], **check["evidence"]}
            because = f"{_place(check)}{check['because']}"
            yield Finding(
                check["name"], because, check["next"], check["where"] or "", evidence=evidence
            )


def _place(check: Mapping[str, Any]) -> str:
    places = []
    if check["step"] is not None:
        places.append(f"step {check['step']:,}")
    if check["where"]:
        places.append(check["where"])
    return f"{', '.join(places)}: " if places else ""


def _padding(summary: Summary) -> Iterator[Finding]:
    padded = [loader for loader in summary.get("token_padding") or () if _is_padded(loader)]
    if not padded:
        return
    loader = max(padded, key=lambda loader: float(loader["padding"]))
    beyond_longest = loader["beyond_longest"] / loader["padding"]
    figures = {name: loader[name] for name in ("looks", "columns", "token", "side")}
    figures["share"] = loader["padding"] / loader["tokens"]
    figures["beyond_longest"] = beyond_longest
    figures["fixed_words"] = _fixed_words(beyond_longest)
    yield Finding.of("padding", figures, where=loader["where"] or "")


def _is_padded(loader: Mapping[str, Any]) -> bool:
    if loader["padded_looks"] < LEAST_LOOKS or not loader["lengths_differ"]:
        return False
    return bool(loader["padding"] >= LEAST_PADDING * loader["tokens"])


def _fixed_words(fixed: float) -> str:
    if fixed < LEAST_PADDING:
        return "long and short rows are in one batch"
    return f"{fixed:.0%} of it is beyond the longest row of its batch"


def _dense_embedding(summary: Summary) -> Iterator[Finding]:
    tables = summary.get("dense_embeddings") or ()
    dense = [table for table in tables if _is_mostly_without_gradient(table)]
    if not dense:
        return
    table = max(dense, key=lambda table: int(table["rows"] * table["columns"]))
    n_sampled = table["sampled_rows"]
    share = table["sampled_with_gradient"] / n_sampled
    figures = {name: table[name] for name in ("name", "rows", "columns", "looks", "sampled_rows")}
    figures["share"] = share
    figures["share_words"] = f"{share:.2%}" if share else f"fewer than {1 / n_sampled:.2%}"
    explains = "compute-bound" if _optimizer_share(summary) >= LEAST_OPTIMIZER else ""
    yield Finding.of(
        "dense-embedding-gradient", figures, where=table["where"] or "", explains=explains
    )


def _is_mostly_without_gradient(table: Mapping[str, Any]) -> bool:
    n_elements = table["rows"] * table["columns"]
    if table["looks"] < LEAST_LOOKS or n_elements < LEAST_OF_PARAMETERS * table["held"]:
        return False
    return bool(table["sampled_with_gradient"] <= MOST_ROWS_WITH_GRADIENT * table["sampled_rows"])


def _optimizer_share(summary: Summary) -> float:
    """Return the share of a step spent in the optimizer and in clearing gradients; 0 if no step was
    counted."""
    phases = (summary.get("steps") or {}).get("phases") or {}
    optimizer = phases.get("optimizer") or {}
    other = phases.get("other") or {}
    cleared = (other.get("parts") or {}).get("zero_grad") or {}
    return float(optimizer.get("share") or 0.0) + float(cleared.get("share") or 0.0)
