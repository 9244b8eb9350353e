"""The nodes of the tree, and what their records are called."""

from __future__ import annotations

import copy
import pickle

import pytest
from annotating import names

from voirkit.ai import Node
from voirkit.ai import ai as the_tree

# As the conventions have it: categories, and their children by the names of their records.
NAMES = {
    "compute": ["forward", "backward", "step"],
    "data": ["preprocess", "item", "data.io", "data.io.open", "data.io.read", "data.io.write", "data.io.close"],
    "dataloader": ["fetch"],
    "comm": ["send", "receive", "barrier", "bcast", "reduce", "all_reduce", "gather", "all_gather", "scatter", "reduce_scatter", "all_to_all"],
    "device": ["transfer"],
    "checkpoint": [
        "capture", "restart", "checkpoint.io", "checkpoint.io.open", "checkpoint.io.read", "checkpoint.io.write", "checkpoint.io.close",
    ],
    "pipeline": ["epoch", "train", "evaluate", "test"],
    "other": ["other.log", "other.io", "other.io.open", "other.io.read", "other.io.write", "other.io.close"],
}  # fmt: skip
ALL = [(category, name) for category, below in NAMES.items() for name in (category, *below)]


def node_of(root, category, name):
    node = getattr(root, category)
    for word in name.removeprefix(category).split("."):
        node = getattr(node, word) if word else node
    return node


@pytest.mark.parametrize(("category", "name"), ALL)
def test_a_node_has_its_category_and_name(ai, category, name):
    node = node_of(ai, category, name)
    assert (node.cat, node.name) == (category, name)


def test_there_are_49_with_the_root(ai):
    assert len(ALL) + 1 == 49
    assert (ai.cat, ai.name) == ("ai_root", "ai_root")


def test_what_is_recorded_has_the_name_of_its_node(ai, recorded):
    for category, name in ALL:
        with node_of(ai, category, name):
            pass
    with ai:
        pass
    assert [e.what for e in recorded()] == [*ALL, ("ai_root", "ai_root")]


def test_a_derived_node_is_named_after_where_it_comes_from(ai, recorded):
    with (
        ai.data.preprocess.derive("collate"),
        ai.data.preprocess.derive("collate").derive(name="deep"),
        ai.data.derive("x"),
    ):
        pass
    assert names(recorded()) == ["preprocess.collate", "preprocess.collate.deep", "data.x"]


def test_a_derived_node_is_the_same_object_each_time(ai):
    assert ai.compute.derive("a") is ai.compute.derive("a")
    assert ai.compute.derive("a") is not ai.compute.forward.derive("a")
    assert ai.compute.derive("forward") is not ai.compute.forward


def test_preparing_has_a_node_below(ai):
    assert [node.init.name for node in (ai.checkpoint, ai.data.item, ai.data.io)] == [
        "checkpoint.init",
        "item.init",
        "data.io.init",
    ]
    assert ai.checkpoint.init is ai.checkpoint.init


def test_the_categories_are_names_of_the_module():
    from voirkit.ai import checkpoint, comm, compute, data, dataloader, device, other, pipeline

    found = [compute, data, dataloader, comm, device, checkpoint, pipeline, other]
    assert found == [getattr(the_tree, name) for name in NAMES]


def test_the_module_can_be_used_as_the_tree(recorded):
    import voirkit.ai as module

    with module, module:
        pass
    assert module(len)([1]) == 1
    assert module.derive("x") is the_tree.derive("x")
    assert names(recorded()) == ["ai_root", "ai_root", "ai_root"]


@pytest.mark.parametrize(
    "node",
    [
        the_tree,
        the_tree.data.io.open,
        the_tree.data.item.init,
        the_tree.comm.derive("a").derive("b"),
    ],
)
def test_a_node_that_is_pickled_or_copied_is_the_same_node(node):
    assert pickle.loads(pickle.dumps(node)) is node
    assert copy.deepcopy(node) is node


def test_a_node_of_a_category_of_its_own_can_be_made_and_pickled(recorded):
    own = Node("mine")
    copied = pickle.loads(pickle.dumps(own.derive("part")))
    with own, copied:
        pass
    assert [e.what for e in recorded()] == [("mine", "mine"), ("mine", "mine.part")]


def test_a_use_is_pickled_with_its_arguments(recorded):
    use = pickle.loads(pickle.dumps(the_tree.data.item(step=4, args={"k": "v"})))
    with use:
        pass
    assert [(e.name, e.args) for e in recorded()] == [("item", {"step": 4, "k": "v"})]


def test_a_node_says_what_it_is(ai):
    assert repr(ai.data.io.read) == "<annotation data.io.read of data>"
    assert isinstance(ai.compute, Node)


def test_the_clock_of_a_node_is_the_wall_clock_in_microseconds(ai):
    import time

    before = time.time_ns() // 1000
    assert before <= ai.get_time() <= time.time_ns() // 1000


class Unwilling:
    """Raises whatever it is asked."""

    def _refuse(self, *_):
        raise KeyError("asked")

    __bool__ = __str__ = __repr__ = __format__ = __eq__ = __len__ = _refuse
    __hash__ = object.__hash__


def test_a_name_may_be_anything_and_raises_nothing(ai, recorded):
    for _ in ai.data.item.iter([1], iter_name=Unwilling(), block_name=Unwilling()):
        with ai.compute.derive(Unwilling()):
            pass
    assert all("Unwilling" in e.name for e in recorded())
