"""A whole training program, annotated as DFTracer's own test is, gives the events that the conventions promise (dftracer 2.2.0)."""

from __future__ import annotations

import pytest
from annotating import args, events

PROGRAM = """
    import sys
    from voirkit.ai import ai

    FILES, EPOCHS = 2, 3

    class Reader:
        @ai.data.item
        def read(self, name):
            return [1.0] * 8

    @ai.dataloader.fetch
    def samples(reader, epoch):
        for i in range(FILES):
            yield reader.read(f"{i}-of-{FILES}")

    @ai.data.preprocess.derive(name="collate")
    def collate(sample):
        return sample

    @ai.device.transfer
    def transfer(batch):
        return batch

    @ai.compute.forward
    def forward(batch):
        return sum(batch)

    @ai.compute.backward
    def backward():
        with ai.comm.all_reduce(enable=False):
            pass

    @ai.compute
    def compute(batch):
        loss = forward(batch)
        backward()
        return loss

    class Checkpoint:
        @ai.checkpoint.init
        def __init__(self):
            pass

        @ai.checkpoint.capture
        def capture(self, state):
            return state

        @ai.checkpoint.restart
        def restart(self, state):
            return state

    class Hook:
        def before_step(self):
            ai.compute.step.start()

        def after_step(self):
            ai.compute.step.stop()

    def one_epoch(epoch, hook):
        for step, batch in ai.dataloader.fetch.iter(enumerate(samples(Reader(), epoch))):
            hook.before_step()
            assert compute(transfer(collate(batch))) == 8
            hook.after_step()
            ai.update(step=step, epoch=epoch)

    @ai.pipeline.train
    def train(as_metadata):
        hook, checkpoint = Hook(), Checkpoint()
        checkpoint.restart({})
        if as_metadata:
            for epoch in range(EPOCHS):
                ai.pipeline.epoch.start(metadata=True)
                one_epoch(epoch, hook)
                ai.pipeline.epoch.stop(metadata=True)
        else:
            for epoch in ai.pipeline.epoch.iter(range(EPOCHS)):
                one_epoch(epoch, hook)
        checkpoint.capture({})

    disabled = sys.argv[1]
    if disabled in ("comm", "compute", "dataloader", "device", "checkpoint", "other", "data", "pipeline"):
        getattr(ai, disabled).disable()
    elif disabled == "all":
        ai.disable()
    train(disabled == "metadata")
"""
NORMAL = {
    "train": 1, "epoch.iter": 3, "epoch.block": 3, "fetch": 3, "fetch.iter": 6, "fetch.block": 6, "item": 6, "preprocess.collate": 6,
    "transfer": 6, "forward": 6, "backward": 6, "compute": 6, "step": 6, "checkpoint.init": 1, "capture": 1, "restart": 1,
}  # fmt: skip
WITHOUT = {
    "comm": [],
    "other": [],
    "dataloader": ["fetch", "fetch.iter", "fetch.block"],
    "device": ["transfer"],
    "compute": ["forward", "backward", "compute", "step"],
    "checkpoint": ["checkpoint.init", "capture", "restart"],
    "data": ["item", "preprocess.collate"],
    "pipeline": ["train", "epoch.iter", "epoch.block"],
    "all": list(NORMAL),
}


def run(place, disabled):
    place.write(main=PROGRAM)
    ended = place.python("main.py", disabled, env={"VOIRKIT_RUN_DIR": "run"})
    assert (ended.code, ended.err) == (0, "")
    return events(place.folder / "run") if (place.folder / "run" / "trace").exists() else []


def spans(found):
    names = [e.name for e in found if e.kind == "span"]
    return {name: names.count(name) for name in names}


def test_nothing_disabled(place):
    found = run(place, "nothing")
    assert sum(NORMAL.values()) == 67
    assert spans(found) == NORMAL
    assert [a["count"] for a in args(found, "epoch.block")] == [1, 2, 3]
    assert [a["count"] for a in args(found, "fetch.iter")] == [1, 2] * 3
    # What is said at the end of a step holds until that of the next.
    assert [(a.get("epoch"), a.get("step")) for a in args(found, "forward")] == [
        (None, None),
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
    ]


def test_epochs_as_metadata(place):
    found = run(place, "metadata")
    assert spans(found) == {name: n for name, n in NORMAL.items() if not name.startswith("epoch")}
    assert [e.name for e in found if e.kind == "meta"] == ["epoch.start", "epoch.end"] * 3


@pytest.mark.parametrize("category", WITHOUT)
def test_one_category_disabled(place, category):
    assert spans(run(place, category)) == {
        name: n for name, n in NORMAL.items() if name not in WITHOUT[category]
    }
