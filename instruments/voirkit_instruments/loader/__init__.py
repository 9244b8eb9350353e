"""``--loader``: records every sample, transform, worker and wait of data loaders."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "loader",
    group="look deeper",
    options=(
        Option("--loader", "record each sample, transform, worker and wait of the data loaders"),
        Option(
            "--loader-ops",
            "with --loader: functions to record as operations of their own, such as a tokenizer's;"
            " several with commas, or repeat it",
            metavar="MODULE:CLASS.METHOD",
            repeatable=True,
            default=[],
        ),
    ),
    record="voirkit_instruments.loader.record:record",
    parts={"loader": dict},
    schema=__name__,
    summarise="voirkit_instruments.loader.analyse:summarise",
    summarised_from=("loader",),
    of_rank="voirkit_instruments.loader.analyse:summarise_rank",
    evidence={"loading": "voirkit_instruments.loader.analyse_prediction:advice"},
    sections="voirkit_instruments.loader.show:sections",
    event_names={
        "data.cpu": "processor time of the batch",
        "cost.making_ns": "processor time of making the batch",
        "cost.send_ns": "processor time of sending the batch",
        "cost.receive_ns": "processor time of receiving the batch",
        "cost.training_ns": "processor time of the training since the last batch",
        "cost.bytes": "bytes of the batch",
        "cost.tensors": "tensors of the batch",
        "cost.tensor_ns": "what a file of shared memory costs here",
        "cost.mb_ns": "what a megabyte of shared memory costs here",
        "cost.call_ns": "what a call of Python costs here",
    },
    exports={
        "lotus": (
            "voirkit_instruments.loader.export_lotus",
            (
                "LotusTrace's log files, for its analysis scripts: folders by batch size (of runs"
                " with --loader)"
            ),
        ),
    },
)

__getattr__ = lazy_names(__name__, loader="record")
