"""A training script that is not run: it moves a clock and leaves the requests and spans that a real one would leave."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from voirkit.analysis.steps import BACKWARD, FORWARD, MEANING, OPTIMIZER, WAIT, Timeline
from voirkit.analysis.turns import Kind, Request


class Script:
    """Times are in nanoseconds of its clock, which begins at 1000."""

    def __init__(self):
        self.now = 1000
        self.spans, self.requests = [], []
        self._episodes = 0
        self._first_optimizer = None

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

    def _ask(self, kind, episode, loader, wait, items=None):
        start = self.now
        self.now += wait
        self.requests.append(Request(kind, start, self.now, episode, loader, items))
        self.spans.append((start, wait, WAIT, False))

    def idle(self, ns):
        """Work that nothing sees."""
        self.now += ns

    @contextmanager
    def phase(self, meaning, first=False):
        start = self.now
        at = len(self.spans)
        yield
        self.spans.insert(at, (start, self.now - start, meaning, first))

    def do(self, category, name, ns):
        with self.phase(MEANING[category, name]):
            self.now += ns

    def forward(self, ns=100):
        with self.phase(FORWARD):
            self.now += ns

    def backward(self, ns=200):
        with self.phase(BACKWARD):
            self.now += ns

    def step(self, ns=50, optimizer=0):
        if self._first_optimizer is None:
            self._first_optimizer = optimizer
        with self.phase(OPTIMIZER, first=optimizer == self._first_optimizer):
            self.now += ns

    def train_on(self):
        """A usual body: 100 forward, 200 backward, 50 optimizer."""
        self.forward()
        self.backward()
        self.step()

    def timeline(self):
        rows = sorted(self.spans, key=lambda s: (s[0], -s[1]))
        columns = [np.array(c) for c in zip(*rows, strict=True)] if rows else [np.zeros(0, dtype=np.int64)] * 4
        return Timeline(columns[0], columns[1], columns[2], columns[3].astype(bool), self.requests)
