"""``node.iter(items)``: the same items, and for each how long it was waited for and how long the body took."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from annotating import args, counts, names


def test_the_items_come_as_they_are(ai, recorded):
    assert list(ai.dataloader.fetch.iter(range(3))) == [0, 1, 2]
    found = recorded()
    assert (
        args(found, "fetch.iter")
        == args(found, "fetch.block")
        == [{"count": 1}, {"count": 2}, {"count": 3}]
    )


def test_the_wait_and_the_body_are_told_apart(ai, recorded):
    def slow():
        for i in range(3):
            time.sleep(0.03)
            yield i

    for _ in ai.dataloader.fetch.iter(slow()):
        time.sleep(0.01)
    found = recorded()
    assert all(29e6 < e.duration_ns < 5e9 for e in found if e.name == "fetch.iter")
    assert all(e.duration_ns > 9e6 for e in found if e.name == "fetch.block")
    for one, next_one in pairwise(found):
        assert one.start_ns + one.duration_ns <= next_one.start_ns


@pytest.mark.parametrize("way", ["break", "return", "raise"])
def test_a_body_that_is_left_has_its_records(ai, recorded, way):
    def loop():
        for x in ai.dataloader.fetch.iter(range(9)):
            if x == 1:
                if way == "break":
                    break
                if way == "return":
                    return
                raise KeyError(x)

    try:
        loop()
    except KeyError:
        pass
    found = recorded()
    assert args(found, "fetch.iter") == args(found, "fetch.block") == [{"count": 1}, {"count": 2}]


def test_the_record_of_the_wait_is_written_before_the_body(ai, recorded):
    for _ in ai.dataloader.fetch.iter([0]):
        found = recorded()
    assert names(found) == ["fetch.iter"]


def test_what_the_source_raises_comes_out(ai, recorded):
    def source():
        yield 1
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        list(ai.dataloader.fetch.iter(source()))
    assert counts(recorded())["fetch.block"] == 1


def test_a_stop_iteration_in_the_body_is_an_error_as_ever(ai):
    def work():
        for _ in ai.dataloader.fetch.iter([1]):
            next(iter([]))

    with pytest.raises(StopIteration):
        work()


def test_no_items_give_no_records(ai, recorded):
    assert list(ai.dataloader.fetch.iter([])) == []
    assert recorded() == []


def test_what_can_not_be_iterated_over_is_a_type_error(ai):
    with pytest.raises(TypeError, match="not iterable"):
        list(ai.dataloader.fetch.iter(5))


def test_one_of_the_two_can_be_left_out(ai, recorded):
    list(ai.dataloader.fetch.iter([1], include_iter=False))
    list(ai.dataloader.fetch.iter([1], include_block=False))
    list(ai.dataloader.fetch.iter([1], include_block=False, include_iter=False))
    assert names(recorded()) == ["fetch.block", "fetch.iter"]


def test_the_records_can_have_other_names(ai, recorded):
    list(ai.dataloader.fetch.iter([1], iter_name="wait", block_name="body"))
    list(ai.dataloader.derive("x.iter").iter([1]))
    assert names(recorded()) == ["wait", "body", "dataloader.x.iter", "dataloader.x.iter.block"]


def test_a_record_has_the_arguments_of_when_it_is_written(ai, recorded):
    for step in ai.dataloader.fetch.iter(range(2)):
        ai.update(step=step)
    found = recorded()
    assert args(found, "fetch.iter") == [{"count": 1}, {"step": 0, "count": 2}]
    assert args(found, "fetch.block") == [{"step": 0, "count": 1}, {"step": 1, "count": 2}]


def test_the_count_stays_in_the_loop(ai, recorded):
    list(ai.dataloader.fetch.iter([1]))
    with ai.dataloader.fetch:
        pass
    assert args(recorded(), "fetch") == [{}]


def test_loops_of_one_node_in_one_another_count_for_themselves(ai, recorded):
    for _ in ai.pipeline.epoch.iter(range(2)):
        for _ in ai.pipeline.epoch.iter(range(2)):
            pass
    assert sorted(a["count"] for a in args(recorded(), "epoch.iter")) == [1, 1, 1, 2, 2, 2]


def test_a_use_has_its_arguments_in_its_loop(ai, recorded):
    list(ai.dataloader.fetch(epoch=3).iter([1]))
    assert [e.args for e in recorded()] == [{"epoch": 3, "count": 1}] * 2


def test_a_source_that_is_left_is_not_closed(ai, recorded):
    source = iter(range(9))
    for _ in ai.dataloader.fetch.iter(source):
        break
    generated = (i for i in range(9))
    for _ in ai.dataloader.fetch.iter(generated):
        break
    assert (next(source), next(generated)) == (1, 1)
