"""Work that ``--checks`` sees to be in vain: padding in batches, and rows of embeddings that have no gradient."""

from __future__ import annotations

from typing import Any

from voirkit_instruments.checks.analyse_facts import Fact, Facts


def padding(facts: Facts) -> list[dict[str, Any]]:
    """``token_padding`` of a summary: for each loader of which batches of token ids were trained on."""
    looks: dict[tuple[int, int, int], list[Fact]] = {}
    for fact in facts.of("padding"):
        looks.setdefault((fact.rank, fact.pid, fact.value), []).append(fact)
    return [_padding_of_loader(of_loader) for of_loader in looks.values()]


def _padding_of_loader(looks: list[Fact]) -> dict[str, Any]:
    padded = [look.args for look in looks if look.args["padding"]]
    last = padded[-1] if padded else looks[-1].args
    tokens = sum(look.args["tokens"] for look in looks)
    lengths = {length for args in padded for length in (args["shortest"], args["longest"])}
    return {
        "where": looks[0].where,
        "looks": len(looks),
        "padded_looks": len(padded),
        "tokens": tokens,
        "padding": sum(look.args["padding"] for look in looks),
        "beyond_longest": sum((args["columns"] - args["longest"]) * args["tokens"] // args["columns"] for args in padded),
        "columns": max(look.args["columns"] for look in looks),
        "lengths_differ": len(lengths) > 1,
        "token": last["token"],
        "side": last["side"],
    }


def embeddings(facts: Facts) -> list[dict[str, Any]]:
    """``dense_embeddings`` of a summary: for each large embedding with a dense gradient."""
    looks: dict[tuple[int, int, int, str], list[Fact]] = {}
    for fact in facts.of("embedding"):
        looks.setdefault((fact.rank, fact.pid, fact.args["optimizer"], fact.args["name"]), []).append(fact)
    return [
        {
            "where": of_table[0].where,
            "name": of_table[0].args["name"],
            "looks": len(of_table),
            "rows": of_table[-1].args["rows"],
            "columns": of_table[-1].args["columns"],
            "held": of_table[-1].args["held"],
            "sampled_rows": sum(look.args["sampled"] for look in of_table),
            "sampled_with_gradient": sum(look.args["graded"] for look in of_table),
        }
        for of_table in looks.values()
    ]
