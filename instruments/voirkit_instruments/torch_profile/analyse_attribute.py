"""Gives each operator and kernel of a recording to a phase of training, and finds which operator lies in which.

What the training thread does belongs to the phase it is in then. What another thread of the process does (autograd's) belongs to the phase
that the training thread is in then: backward, which waits for it. A kernel belongs to the phase in which it was started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.innermost import innermost
from voirkit.analysis.nesting import Array, parents, without_children
from voirkit.analysis.phase_records import Records
from voirkit.analysis.phases import meanings
from voirkit.analysis.steps import VOIRKIT
from voirkit.runs.step_phases import PHASES
from voirkit_instruments.torch_profile.analyse_events import ANNOTATION, KERNEL, MEMORY, OPERATOR, RUNTIME, Events

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHER = PHASES.index("other")
EVALUATION, OWN = len(PHASES), len(PHASES) + 1
NAMES = (*PHASES, "evaluation", "voirkit")  # the last: what instruments call as they look at tensors


class Attributed:
    """A recording's events, of which each has its place; arrays of shape (n,).

    Args:
        events: The events.
        start_ns: When each began, on the run's clock.
        phases: The phases of the training thread.
        evaluation: (start, end) of what is no training.

    Attributes:
        phase: Index into ``NAMES``.
        parent: The operator, annotation or call that each lies in directly; of memory the one that took it, of a kernel the call that
            started it; -1 if there is none.
        self_ns: Time without what lies in it, and without other phases: LBFGS's step calls forward and backward. 0 of memory.
        device_ns: Time of the kernels started in it, and in what lies in it.
        self_device_ns: Of those started in itself: in calls that lie in it directly.
    """

    def __init__(self, events: Events, start_ns: Array, phases: Phases, evaluation: Sequence[tuple[int, int]]) -> None:
        n = len(start_ns)
        self.parent = np.full(n, -1, np.int64)
        self.self_ns = events.duration_ns.copy()
        on_host = np.flatnonzero(np.isin(events.category, (OPERATOR, ANNOTATION, RUNTIME)))
        memory = np.flatnonzero(events.category == MEMORY)
        self.phase = phases.of(start_ns, evaluation)
        edges_ns = phases.edges_ns(evaluation)
        for tid in np.unique(events.tid[on_host]).tolist():
            own = on_host[events.tid[on_host] == tid]
            own = own[np.lexsort((-events.duration_ns[own], start_ns[own]))]
            inside = parents(start_ns[own], events.duration_ns[own])
            self.parent[own] = np.where(inside >= 0, own[inside], -1)
            self.self_ns[own] = without_children(events.duration_ns[own], inside)
            changes_ns = np.unique(np.concatenate((start_ns[own], start_ns[own] + events.duration_ns[own], edges_ns)))
            at = innermost(start_ns[own], start_ns[own] + events.duration_ns[own], changes_ns[:-1])
            away = (at >= 0) & (phases.of(changes_ns[:-1], evaluation) != self.phase[own][at])
            elsewhere_ns = np.bincount(at[away], np.diff(changes_ns)[away], len(own)).astype(np.int64)
            self.self_ns[own] = np.maximum(self.self_ns[own] - elsewhere_ns, 0)
            taken = memory[events.tid[memory] == tid]
            at = innermost(start_ns[own], start_ns[own] + np.maximum(events.duration_ns[own], 1), start_ns[taken])
            self.parent[taken] = np.where(at >= 0, own[at], -1)
        self.self_ns[memory] = 0
        self._kernels(events, n)

    def _kernels(self, events: Events, n: int) -> None:
        kernels = np.flatnonzero(events.category == KERNEL)
        started = np.flatnonzero((events.category == RUNTIME) & (events.linked >= 0))
        started = started[np.argsort(events.linked[started], kind="stable")]
        self.device_ns, self.self_device_ns = np.zeros(n, np.int64), np.zeros(n, np.int64)
        if len(kernels) and len(started):
            at = np.minimum(np.searchsorted(events.linked[started], events.linked[kernels]), len(started) - 1)
            found = events.linked[started[at]] == events.linked[kernels]
            kernels, calls = kernels[found], started[at[found]]
            self.parent[kernels] = calls
            self.phase[kernels] = self.phase[calls]
            lasted = events.duration_ns[kernels]
            np.add.at(self.self_device_ns, np.where(self.parent[calls] >= 0, self.parent[calls], calls), lasted)
            holders = calls
            while len(holders):
                np.add.at(self.device_ns, holders, lasted)
                inside = self.parent[holders] >= 0
                holders, lasted = self.parent[holders[inside]], lasted[inside]


class Phases:
    """The phases of the training thread, as they were recorded.

    Args:
        records: Of a run.
        chosen: Indices of those of the thread, ascending by start, outer before inner.
    """

    def __init__(self, records: Records, chosen: Array) -> None:
        meaning = meanings(records.names)[records.name[chosen]]
        chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
        self._start_ns = records.start_ns[chosen]
        self._end_ns = self._start_ns + records.duration_ns[chosen]
        self._phase = np.where(meaning == VOIRKIT, OWN, np.minimum(meaning, OTHER))

    def of(self, at_ns: Array, evaluation: Sequence[tuple[int, int]] = ()) -> Any:
        """Index into ``NAMES`` of the phase that the thread is in at each instant."""
        at = innermost(self._start_ns, self._end_ns, at_ns)
        phase = np.where(at >= 0, self._phase[at] if len(self._phase) else OTHER, OTHER)
        for begin, end in evaluation:
            phase[(at_ns >= begin) & (at_ns < end)] = EVALUATION
        return phase

    def times_ns(self, begin_ns: int, end_ns: int, evaluation: Sequence[tuple[int, int]] = ()) -> dict[str, int]:
        """How long the thread is in each of ``NAMES`` between two instants."""
        edges = self.edges_ns(evaluation)
        edges = np.unique(np.concatenate(([begin_ns, end_ns], edges[(edges > begin_ns) & (edges < end_ns)])))
        lasting = np.bincount(self.of(edges[:-1], evaluation), np.diff(edges), len(NAMES))
        return {name: int(spent) for name, spent in zip(NAMES, lasting, strict=True)}

    def edges_ns(self, evaluation: Sequence[tuple[int, int]] = ()) -> Array:
        """When the phase may change; in no order."""
        return np.concatenate((self._start_ns, self._end_ns, np.array(evaluation, dtype=np.int64).reshape(-1)))
