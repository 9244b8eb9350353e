"""What is recorded and what is not: enable() and disable() reach everything below, whenever and wherever it is used."""

from __future__ import annotations

from annotating import counts, names


def test_a_disabled_node_and_those_below_are_not_recorded(ai, recorded):
    ai.compute.disable()
    with ai.compute, ai.compute.forward, ai.compute.forward.derive("x"), ai.comm.send:
        pass
    assert names(recorded()) == ["send"]


def test_the_latest_word_counts(ai, recorded):
    ai.disable()
    with ai.compute.forward:
        pass
    ai.compute.enable()
    with ai.compute.forward, ai.comm.send:
        pass
    ai.enable()
    with ai.comm.send:
        pass
    assert names(recorded()) == ["forward", "send"]


def test_it_reaches_functions_that_are_decorated_already(ai, recorded):
    @ai.compute.forward
    def bare():
        pass

    @ai.compute.forward()
    def in_parentheses():
        pass

    for switch in (ai.compute.disable, ai.enable):
        switch()
        bare()
        in_parentheses()
    assert counts(recorded()) == {"forward": 2}


def test_it_reaches_functions_that_were_decorated_while_disabled(ai, recorded):
    ai.compute.disable()

    @ai.compute.forward
    def bare():
        pass

    @ai.compute.forward.init(epoch=1)
    def prepare():
        pass

    bare()
    ai.compute.enable()
    bare()
    prepare()
    assert names(recorded()) == ["forward", "forward.init"]


def test_a_use_can_be_on_under_a_disabled_node(ai, recorded):
    on = ai.compute.forward(enable=True)
    ai.disable()
    with on, ai.compute.forward:
        pass
    assert counts(recorded()) == {"forward": 1}


def test_a_use_can_be_off_under_an_enabled_node(ai, recorded):
    off = ai.compute.forward(enable=False)
    ai.enable()
    with off, ai.comm.send:
        pass
    assert names(recorded()) == ["send"]


def test_a_use_follows_its_node_otherwise(ai, recorded):
    use = ai.compute.forward(epoch=1)
    ai.compute.disable()
    with use:
        pass
    ai.compute.enable()
    with use:
        pass
    assert counts(recorded()) == {"forward": 1}


def test_what_is_disabled_in_its_midst_is_not_recorded(ai, recorded):
    with ai.compute:
        ai.compute.disable()
    assert recorded() == []


def test_loops_and_starts_are_switched_too(ai, recorded):
    ai.dataloader.disable()
    assert list(ai.dataloader.fetch.iter(range(3))) == [0, 1, 2]
    ai.dataloader.fetch.start()
    ai.dataloader.fetch.stop()
    ai.dataloader.fetch.start(metadata=True)
    ai.dataloader.enable()
    for x in ai.dataloader.fetch.iter(range(3)):
        if x == 1:
            ai.disable()
    assert names(recorded()) == ["fetch.iter", "fetch.block", "fetch.iter"]


def test_nothing_is_recorded_before_recording_begins(ai):
    with ai.compute:
        assert list(ai.dataloader.fetch.iter("ab")) == ["a", "b"]
    ai.compute.start()
    ai.compute.stop()
