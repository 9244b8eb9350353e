"""A training script that is not run: it moves a clock and leaves the requests and spans that a real one would leave."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.steps import BACKWARD, FORWARD, OPTIMIZER, WAIT, Timeline
from voirkit.phase_table import COLUMN, phase_of_span


class Script:
    """Times are in nanoseconds of its clock, which begins at 1000."""

    def __init__(self):
        self.now = 1000
        self.spans, self.requests = [], []
        self.modes, self.annotations = [], []
        self._episodes = 0

    def iterate(self, batches, loader=0, items=4, wait=10, make=0, end=True):
        """What ``for batch in loader`` does; left early, it drops its iterator as CPython does."""
        self._episodes += 1
        episode = self._episodes
        self._ask(Kind.ITER, episode, loader, make)
        done = False
        try:
            for k in range(batches):
                size = items[k] if isinstance(items, list) else items
                self._ask(Kind.FETCH, episode, loader, wait, size)
                yield k
            if end:
                self._ask(Kind.END, episode, loader, wait)
            done = True
        finally:
            if not done:
                self._ask(Kind.END, episode, loader, 0)

    def ask(self, loader, *kinds, wait=10, items=4):
        """Requests to one iterator, one after the other."""
        self._episodes += 1
        for kind in kinds:
            self._ask(
                kind,
                self._episodes,
                loader,
                wait if kind is Kind.FETCH else 0,
                items if kind is Kind.FETCH else None,
            )

    def _ask(self, kind, episode, loader, wait, items=None):
        start = self.now
        self.now += wait
        self.requests.append(Request(kind, start, self.now, episode, loader, items))
        self.spans.append((start, wait, WAIT, 0, True, True))

    def idle(self, ns):
        """Work that nothing sees."""
        self.now += ns

    @contextmanager
    def phase(self, meaning, optimizer=0, grad=True, training=True):
        start = self.now
        at = len(self.spans)
        yield
        self.spans.insert(at, (start, self.now - start, meaning, optimizer, grad, training))

    def do(self, category, name, ns):
        with self.phase(COLUMN[phase_of_span(category, name)]):
            self.now += ns

    def forward(self, ns=100, grad=True, training=True):
        with self.phase(FORWARD, grad=grad, training=training):
            self.now += ns

    def switch(self, training):
        """What ``model.train()`` and ``model.eval()`` do."""
        self.modes.append((self.now, training))

    @contextmanager
    def annotation(self):
        """The script says that it evaluates."""
        start = self.now
        yield
        self.annotations.append((start, self.now))

    def backward(self, ns=200):
        with self.phase(BACKWARD):
            self.now += ns

    def step(self, ns=50, optimizer=0):
        with self.phase(OPTIMIZER, optimizer=optimizer):
            self.now += ns

    def train_on(self):
        """A usual body: 100 forward, 200 backward, 50 optimizer."""
        self.forward()
        self.backward()
        self.step()

    def timeline(self):
        rows = sorted(self.spans, key=lambda s: (s[0], -s[1]))
        columns = (
            [np.array(c) for c in zip(*rows, strict=True)]
            if rows
            else [np.zeros(0, dtype=np.int64)] * 6
        )
        return Timeline(
            *columns[:4],
            *(column.astype(bool) for column in columns[4:]),
            self.requests,
            self.modes,
            {},
            self.annotations,
        )
