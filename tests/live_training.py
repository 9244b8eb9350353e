"""A training that needs no torch: it records the phases that one would, at times that it makes up. For tests of what is shown live."""

from __future__ import annotations

MS = 1_000_000
# Of a step of 10 ms; the rest is other.
PHASES = {"wait": 0.5, "transfer": 0.05, "forward": 0.1, "backward": 0.2, "optimizer": 0.1}

TRAINING = '''
import os, sys, time
from voirkit.trace import recorder

MS = 1_000_000


class Training:
    """Its clock stands still but for the steps."""

    def __init__(self, length=10, workers=0, items=4, loader=0, step_ms=10, dataset="Pictures"):
        self.now, self.episodes, self.place = recorder.now(), 0, None
        self.length, self.workers, self.items, self.loader, self.step_ms, self.dataset = length, workers, items, loader, step_ms, dataset

    def span(self, category, name, share, value=None, number=0, **arguments):
        end = self.now + int(share * self.step_ms * MS)
        which = recorder.name(category, name, kind="phase", value=value)
        recorder.span(which, self.now, end, recorder.arguments(arguments), number)
        self.now = end

    def begin(self):
        self.place = {"loader": self.loader, "episode": self.episodes}
        self.episodes += 1
        self.span("dataloader", "iter", 1e-4, **self.place, workers=self.workers, batch_size=self.items, length=self.length,
                  dataset=self.dataset, pin_memory=False)

    def step(self, wait=0.5):
        self.span("dataloader", "fetch", wait, "items", self.items, **self.place)
        self.work()

    def work(self):
        self.span("device", "transfer", 0.05, "bytes", 100)
        self.span("compute", "forward", 0.1, module="Net", training=True, grad=True)
        self.span("compute", "backward", 0.2)
        self.span("compute", "step", 0.1, optimizer="SGD", which=0)
        self.now += int(0.05 * self.step_ms * MS)

    def evaluate(self):
        self.span("dataloader", "fetch", 0.1, "items", self.items, **self.place)
        self.span("compute", "forward", 0.1, module="Net", training=False, grad=False)

    def end(self):
        self.span("dataloader", "end", 1e-4, **self.place)

    def epoch(self):
        self.begin()
        for _ in range(self.length):
            self.step()
        self.end()
'''
