"""Table of the phases of a training step and of the parts of phase ``other``, one row each.

All code that lists, names, colours or recognizes a phase uses this table: the columns of steps,
reports and their colours, verdicts, and the recognition of a phase in a stack. A new phase needs a
name in ``phase_names.py``, a row here, and a span that an instrument records. docs/steps.md
explains the phases to users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from voirkit import phase_names


@dataclass(frozen=True)
class StackPattern:
    """A pattern for functions that are executed in one phase only.

    Attributes:
        file: Regular expression to search in the path of the source file, with ``/``.
        function: Regular expression for the whole name of the function, with or without a class
            before it; empty for all functions of the files.
    """

    file: str
    function: str = ""

    def matches(self, file: str, function: str) -> bool:
        """True if a function of a source file matches the pattern."""
        if not re.search(self.file, file.replace("\\", "/")):
            return False
        return not self.function or bool(re.fullmatch(rf"(?:.*\.)?(?:{self.function})", function))


@dataclass(frozen=True)
class Phase:
    """A phase of a training step, or a part of one.

    Attributes:
        name: Name in tables, summaries, columns and SQL.
        parent: The phase that this is a part of; None for a phase of a step.
        label: Name in a sentence.
        verdict: Kind of verdict for a run that spends most of its time in this phase; None if there
            is no such verdict.
        spans: ``(category, name)`` of the spans recorded in this phase; the name ``*`` stands for
            all spans of a category.
        stack_patterns: Functions executed in this phase; the innermost such function on a stack
            decides.
        page_colours: Colours on an HTML page: light and dark.
        terminal_colour: Colour in a terminal, by its name in rich.
    """

    name: str
    parent: str | None = None
    label: str = ""
    verdict: str | None = None
    spans: tuple[tuple[str, str], ...] = ()
    stack_patterns: tuple[StackPattern, ...] = ()
    page_colours: tuple[str, str] | None = None
    terminal_colour: str | None = None


# Every table, chart and export lists the phases in this order. The phases are exclusive, and their
# shares of a step sum to 1. ``other`` is the time of a step that is in none of the other phases;
# ``rest`` is the time in ``other`` that is in none of the other parts of ``other``.
TABLE = (
    Phase(
        phase_names.WAIT,
        label="waiting for input",
        verdict="input-bound",
        spans=(
            ("dataloader", "iter"),
            ("dataloader", "fetch"),
            ("dataloader", "end"),
            ("dataloader", "queue"),
            ("dataloader", "start_workers"),
            ("dataloader", "stop_workers"),
        ),
        stack_patterns=(
            StackPattern(
                r"torch/utils/data/|torchdata/",
                r"__next__|_next_data|_get_data|_try_get_data|__iter__",
            ),
        ),
        page_colours=("#d64550", "#ee6a73"),
        terminal_colour="red",
    ),
    Phase(
        phase_names.TRANSFER,
        label="transfer",
        verdict="transfer-bound",
        spans=(("device", "transfer"),),
        page_colours=("#b04fb5", "#cf7ad3"),
        terminal_colour="magenta",
    ),
    Phase(
        phase_names.FORWARD,
        label="forward",
        verdict="compute-bound",
        spans=(("compute", "forward"),),
        stack_patterns=(
            StackPattern(r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl"),
        ),
        page_colours=("#2f9e5f", "#4fbf80"),
        terminal_colour="green",
    ),
    Phase(
        phase_names.BACKWARD,
        label="backward",
        verdict="compute-bound",
        spans=(("compute", "backward"),),
        stack_patterns=(
            StackPattern(r"torch/autograd/|torch/_tensor\.py", r"backward|_engine_run_backward"),
        ),
        page_colours=("#1597ab", "#3fbfd3"),
        terminal_colour="cyan",
    ),
    Phase(
        phase_names.OPTIMIZER,
        label="the optimizer's step",
        verdict="compute-bound",
        spans=(("compute", "step"),),
        stack_patterns=(StackPattern(r"torch/optim/(?!lr_scheduler)", r"step|wrapper"),),
        page_colours=("#3b63d6", "#7396ff"),
        terminal_colour="blue",
    ),
    Phase(
        phase_names.COMMUNICATION,
        label="communication between ranks",
        verdict="communication-bound",
        spans=(("comm", "*"),),
        stack_patterns=(
            StackPattern(r"torch/distributed/(?!checkpoint/|elastic/|launcher/|run\.py)"),
        ),
        page_colours=("#d1670f", "#f09048"),
        terminal_colour="bright_red",
    ),
    Phase(
        phase_names.OTHER,
        label="untracked host code",
        verdict="host-bound",
        page_colours=("#d19a1c", "#e5b544"),
        terminal_colour="yellow",
    ),
    Phase(
        "loss",
        parent=phase_names.OTHER,
        label="the loss",
        verdict="compute-bound",
        spans=(("compute", "loss"),),
        page_colours=("#8f9c2a", "#b5c24f"),
    ),
    Phase(
        "zero_grad",
        parent=phase_names.OTHER,
        label="clearing gradients",
        spans=(("compute", "zero_grad"),),
        stack_patterns=(StackPattern(r"torch/optim/", r"zero_grad"),),
        page_colours=("#7a8699", "#98a4b5"),
    ),
    Phase(
        "checkpoint",
        parent=phase_names.OTHER,
        label="checkpoints",
        verdict="checkpoint-bound",
        spans=(("checkpoint", "capture"), ("checkpoint", "restart")),
        stack_patterns=(StackPattern(r"torch/distributed/checkpoint/|torch/serialization\.py"),),
        page_colours=("#6b4fc4", "#9c85ea"),
    ),
    Phase("compile", parent=phase_names.OTHER, label="compiling", spans=(("compute", "compile"),)),
    Phase("import", parent=phase_names.OTHER, label="imports", spans=(("python", "import"),)),
    Phase("gc", parent=phase_names.OTHER, label="garbage collection", spans=(("gc", "collect"),)),
    Phase(
        "voirkit",
        parent=phase_names.OTHER,
        label="voirkit's own looks",
        spans=(("voirkit", "look"),),
    ),
    Phase("rest", parent=phase_names.OTHER, label="the rest"),
)

BY_NAME = {phase.name: phase for phase in TABLE}
PHASES = tuple(phase.name for phase in TABLE if phase.parent is None)
PARTS = tuple(phase.name for phase in TABLE if phase.parent == "other")
COMPUTE = tuple(name for name in PHASES if BY_NAME[name].verdict == "compute-bound")

# The columns of a table of steps: all phases, with ``other`` replaced by the parts of ``other``.
COLUMNS = (*PHASES[:-1], *PARTS)
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
_PHASE_OF_SPAN = {span: phase.name for phase in TABLE for span in phase.spans}


def label_of(name: str) -> str:
    """Return a phase's name in a sentence; the name itself if the table does not have it."""
    return BY_NAME[name].label if name in BY_NAME else name


def shown_phases(phases: Mapping[str, Any]) -> list[str]:
    """Return the phases of a summary that are shown in a table.

    Communication is left out if it took no time (one process).
    """
    names = [name for name in PHASES if name in phases]
    if "communication" in names and not phases["communication"]["total_s"]:
        names.remove("communication")
    return names


def phase_of_span(category: str, name: str) -> str | None:
    """Return the phase that a span belongs to; None if it belongs to no phase."""
    return _PHASE_OF_SPAN.get((category, name)) or _PHASE_OF_SPAN.get((category, "*"))


@lru_cache(maxsize=10_000)
def phase_of_function(file: str, function: str) -> str:
    """Return the phase in which a function of a source file is executed.

    The result is empty if the function belongs to no phase, or may be executed in any.
    """
    for phase in TABLE:
        if any(pattern.matches(file, function) for pattern in phase.stack_patterns):
            return phase.name
    return ""
