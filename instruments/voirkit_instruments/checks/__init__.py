"""``--checks``: finds silent bugs of a training while it runs."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "checks",
    group="look deeper",
    options=(
        Option(
            "--checks",
            "look for silent bugs: missing zero_grad, parameters that never change, training in"
            " eval mode ...",
        ),
    ),
    record="voirkit_instruments.checks.record:record",
    in_children=False,
    parts={"checks": list, "token_padding": list, "dense_embeddings": list},
    schema=__name__,
    summarise="voirkit_instruments.checks.analyse:summarise",
    summarised_from=("check",),
    sections="voirkit_instruments.checks.analyse:sections",
    findings="voirkit_instruments.checks.rules:findings",
    leads=True,
    event_names={
        "check.on": "checks begin",
        "check.look": "parameters of an optimizer are examined",
        "check.reach": "what a backward pass has reached",
        "check.graph": "graph of a loss is examined",
        "check.cleared": "gradients were cleared",
        "check.uncleared": "gradients were not cleared",
        "check.drawn": "indices of an epoch",
        "check.padding": "padding in a batch",
        "check.embedding": "gradient of an embedding",
        "check.model": "model is examined",
    },
)

__getattr__ = lazy_names(__name__, checks="record")
