"""Kinds of findings about halts: a run that makes no more steps, and a rank that ends too early."""

from __future__ import annotations

from voirkit.findings.kind import Kind, Severity

_TORCHRUN = "torchrun --standalone --nproc-per-node 2 -m voirkit"

HALTS = (
    Kind(
        name="hang",
        severity=Severity.SYMPTOM,
        example=f"{_TORCHRUN} --hang 10 examples/gallery/barrier.py before",
        because="{line_words}.",
        next="{look_words}. The page of voirkit report --html has all stacks.",
        meaning=(
            "No step ended for long: the program waits for what does not come (a collective that"
            " one rank does not enter, a lock, a worker, a file), or does something that takes as"
            " long."
        ),
        condition=(
            "No step ended for 60 s, or the time of `--hang`, or 20 times the median step if that"
            " is longer; four times as long where stacks change, files are read or workers compute,"
            " ten times before the first step."
        ),
        confirm="`py-spy dump -p PID` of a rank that is named, while it hangs.",
        mend=(
            "Call collectives outside of `if rank == 0`; give locks, queues and requests a timeout."
        ),
    ),
    Kind(
        name="rank-ended",
        severity=Severity.SYMPTOM,
        example=f"{_TORCHRUN} examples/findings/rank_ended.py before",
        because="{line_words}.",
        next="{look_words}.",
        meaning=(
            "A rank of a job ended by itself. What the others say then is of its end, not of a"
            " fault of their own."
        ),
        condition=(
            "A rank was killed, or ended with an exception or another exit code than 0, and not"
            " because another was gone (a closed connection, a collective that timed out, the"
            " launcher's SIGTERM) or by Ctrl-C."
        ),
        confirm=(
            "The exit code and the traceback of that rank alone, in the output of the launcher."
        ),
        mend="Look at the first rank that ended, and at no other.",
    ),
)
