"""Wasted work that ``--checks`` detects: padding in batches, and rows of embeddings without a
gradient."""

from __future__ import annotations

from typing import Any

from voirkit_instruments.checks.analyse_facts import Fact, Facts


def padding(facts: Facts) -> list[dict[str, Any]]:
    """Return ``token_padding`` of a summary: an entry for each loader with batches of token ids
    that were trained on."""
    by_loader: dict[tuple[int, int, int], list[Fact]] = {}
    for fact in facts.of("padding"):
        by_loader.setdefault((fact.rank, fact.pid, fact.value), []).append(fact)
    return [_padding_of_loader(inspections) for inspections in by_loader.values()]


def _padding_of_loader(inspections: list[Fact]) -> dict[str, Any]:
    batches = [fact.args for fact in inspections]
    padded = [args for args in batches if args["padding"]]
    last = padded[-1] if padded else batches[-1]
    lengths = {args["shortest"] for args in padded} | {args["longest"] for args in padded}
    n_tokens = n_padding = n_beyond_longest = 0
    for args in batches:
        n_tokens += args["tokens"]
        n_padding += args["padding"]
    for args in padded:
        beyond_longest = args["columns"] - args["longest"]
        n_beyond_longest += beyond_longest * args["tokens"] // args["columns"]
    n_columns = max(args["columns"] for args in batches)
    where = inspections[0].where
    return {
        "where": where,
        "looks": len(batches),
        "padded_looks": len(padded),
        "tokens": n_tokens,
        "padding": n_padding,
        "beyond_longest": n_beyond_longest,
        "columns": n_columns,
        "lengths_differ": len(lengths) > 1,
        "token": last["token"],
        "side": last["side"],
    }


def embeddings(facts: Facts) -> list[dict[str, Any]]:
    """Return ``dense_embeddings`` of a summary: an entry for each large embedding with a dense
    gradient."""
    by_table: dict[tuple[int, int, int, str], list[Fact]] = {}
    for fact in facts.of("embedding"):
        key = (fact.rank, fact.pid, fact.args["optimizer"], fact.args["name"])
        by_table.setdefault(key, []).append(fact)
    return [_embedding(inspections) for inspections in by_table.values()]


def _embedding(inspections: list[Fact]) -> dict[str, Any]:
    first, last = inspections[0], inspections[-1].args
    n_sampled = sum(fact.args["sampled"] for fact in inspections)
    n_graded = sum(fact.args["graded"] for fact in inspections)
    return {
        "where": first.where,
        "name": first.args["name"],
        "looks": len(inspections),
        "rows": last["rows"],
        "columns": last["columns"],
        "held": last["held"],
        "sampled_rows": n_sampled,
        "sampled_with_gradient": n_graded,
    }
