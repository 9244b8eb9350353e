"""Kinds of verdicts: each names what a run is bound by.

``voirkit.analysis.verdict.diagnosis`` makes their report texts from the figures of the run.
"""

from __future__ import annotations

from voirkit.findings.kind import Kind, Severity

_PART_OF_STEP = (
    "That part takes half of a typical step or more; or 40 %, if no single phase of computing"
    " (forward, backward, optimizer) takes as much."
)
_OUTSIDE_OF_STEPS = (
    "It takes half of the time after the start, or most of it where the steps of training take less"
    " than a quarter of that time."
)
_ACCOUNT = "The account of the wall time and the table of a step in the report."


def _verdict(
    name: str, meaning: str, condition: str, confirm: str, mend: str, example: str
) -> Kind:
    return Kind(name, Severity.VERDICT, meaning, condition, confirm, mend, example=example)


VERDICTS = (
    _verdict(
        "input-bound",
        "The training waits for its next batch: loading is slower than computing.",
        _PART_OF_STEP,
        "Train on one batch again and again: it is as much faster as the wait is long.",
        "`voirkit --loader --flame` names the operation and the line; then workers, or less work on"
        " a sample.",
        "voirkit examples/gallery/worker_processes.py before",
    ),
    _verdict(
        "transfer-bound",
        "Copies of tensors between devices, or conversions on the CPU, take most of a step.",
        _PART_OF_STEP,
        "Keep the data on the device: the copies are gone.",
        "`pin_memory=True` with `non_blocking=True`; on the CPU, convert once before the training.",
        "voirkit examples/findings/convert_once.py before",
    ),
    _verdict(
        "compute-bound",
        "Forward, backward, the loss and the optimizer take most of a step. That is what a training"
        " should be bound by.",
        _PART_OF_STEP,
        "`voirkit --torch-profile` shows the operators.",
        "Lower precision, `torch.compile`, a larger batch, a fused optimizer.",
        "voirkit examples/gallery/larger_batch.py before",
    ),
    _verdict(
        "communication-bound",
        "The ranks of the run spend most of a step in collectives, or wait for each other there.",
        _PART_OF_STEP,
        "Run with one rank: the rest is what communication costs.",
        "Larger buckets, `no_sync()` while gradients are accumulated, less sharding.",
        "torchrun --standalone --nproc-per-node 2 -m voirkit examples/findings/communicate_less.py"
        " before",
    ),
    _verdict(
        "checkpoint-bound",
        "Writing or reading checkpoints takes most of the time.",
        f"{_PART_OF_STEP} Or: {_OUTSIDE_OF_STEPS[:1].lower()}{_OUTSIDE_OF_STEPS[1:]}",
        "`voirkit --what-if checkpoint-async`.",
        "Write them less often, or in the background.",
        "voirkit examples/gallery/fewer_checkpoints.py before",
    ),
    _verdict(
        "host-bound",
        "Code of the script that neither loads nor trains takes most of the time; or a GPU has"
        " nothing to do while python prepares work.",
        f"{_PART_OF_STEP} Or: {_OUTSIDE_OF_STEPS[:1].lower()}{_OUTSIDE_OF_STEPS[1:]} On a GPU, also"
        " where it is idle for 45 % of a step.",
        "`voirkit --flame` shows the lines.",
        "Log less often, `.item()` once an epoch, no plots and no metrics in the loop.",
        "voirkit examples/gallery/log_less.py before",
    ),
    _verdict(
        "evaluation-bound",
        "Evaluation takes more of the run than training.",
        _OUTSIDE_OF_STEPS,
        _ACCOUNT,
        "Evaluate less often or on a part of the data, in larger batches, under"
        " `torch.inference_mode()`.",
        "voirkit examples/gallery/evaluate_less.py before",
    ),
    _verdict(
        "inference-bound",
        "Calls of the model between the steps take more of the run than training: a rollout, or an"
        " evaluation without `eval()`.",
        _OUTSIDE_OF_STEPS,
        _ACCOUNT,
        "Call the model on more inputs at once.",
        "voirkit examples/findings/batched_inference.py before",
    ),
    _verdict(
        "startup-bound",
        "What the script does before its first step takes most of the run, imports left out.",
        f"{_OUTSIDE_OF_STEPS} It is 2 s or more.",
        "`voirkit --flame` shows the lines.",
        "Prepare the data once and keep it; a longer run.",
        "voirkit examples/findings/start_once.py before",
    ),
    _verdict(
        "straggler",
        "One rank makes all others wait.",
        "A rank makes the others wait for 15 % of a step, at the median, and in most of the run.",
        "The table of ranks in the report.",
        "Look at what that rank does differently: its data, its disk, its processors.",
        "torchrun --standalone --nproc-per-node 2 -m voirkit examples/gallery/late_rank.py before",
    ),
    _verdict(
        "hung",
        "For most of the time no step ended.",
        "In half of the time after the start no step ended: it was a hang.",
        "`voirkit report --html` has the stacks of all ranks.",
        "As the stacks say: a collective that one rank does not enter, a lock, a disk.",
        "torchrun --standalone --nproc-per-node 2 -m voirkit --hang 10 examples/gallery/barrier.py"
        " before",
    ),
    _verdict(
        "balanced",
        "No part takes half of a step: the two largest are named.",
        "Nothing takes half of a typical step.",
        _ACCOUNT,
        "Begin with the larger of the two.",
        "voirkit examples/findings/balanced.py",
    ),
    _verdict(
        "unknown",
        "Too little was seen of a training.",
        "Fewer than three steps of a training were seen.",
        "The counts of batches, backward passes and optimizer steps in the report.",
        "A longer run, or probes that say where a step begins: `voirkit init SCRIPT`.",
        "voirkit examples/findings/unknown.py",
    ),
)
