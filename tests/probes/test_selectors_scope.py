"""Functions in scope that selectors name are checked as they are, and the message says what would be right."""

# ruff: noqa: F841 -- local variables are what is probed

from __future__ import annotations

import builtins
import functools
from pathlib import Path

import pytest
from selecting import SCRIPT, WHERE, message

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.check import check_all, check_function


class Counter:
    def __init__(self):
        self.at = 0

    def add(self, n):
        new = self.at + n
        return new

    @property
    def half(self):
        h = self.at / 2
        return h

    @classmethod
    def make(cls, q):
        fresh = cls()
        return fresh

    @staticmethod
    def fixed(z):
        y = z + 1
        return y

    def __call__(self, n):
        called = n
        return called


def bluntly(fn):
    def wrapper(*args):
        noise = len(args)
        return fn(*args)

    return wrapper


def plain(n):
    local = n + 1
    return local


@functools.lru_cache
def cached(n):
    cost = n * n
    return cost


@bluntly
def rude(n):
    shove = n
    return shove


counter = Counter()
partial_plain = functools.partial(plain, 3)
small = lambda n: n + 1  # noqa: E731 -- a lambda with a name is the case


def in_scope(selector: str) -> str | None:
    return check_all(parse(selector, WHERE), SCRIPT, "main.py", vars(builtins) | globals())


SCOPE = [
    "plain(n) > local",
    "cached > cost",
    "rude > noise",
    "Counter.add(self) > new",
    "counter.add > new",
    "Counter.half > h",
    "Counter.make(cls) > fresh",
    "Counter.fixed > y",
    "Counter.__init__ > self",
    "counter.__call__ > called",
    "partial_plain > local",
    "small > n",
]


@pytest.mark.parametrize("selector", SCOPE)
def test_functions_in_scope_are_found_through_methods_and_decorators(selector: str) -> None:
    file, _, line = (in_scope(selector) or "").rpartition(":")
    assert file.endswith(Path(__file__).name)
    assert line.isdecimal()


def test_the_place_of_a_function_in_scope_is_its_def() -> None:
    assert (in_scope("plain > local") or "").endswith(f":{plain.__code__.co_firstlineno}")


NOT_FUNCTIONS = [
    (
        "plain > locl",
        r"plain \(\S+test_selectors_scope.py:\d+\) has no variable 'locl'.[\s\S]*'local'",
    ),
    ("plain > #loop_i", "has no 'for' loop over 'i'"),
    (
        "Counter > at",
        r"'Counter' is a class, not a function. Name one of its methods: __init__, add",
    ),
    (
        "counter > called",
        r"'counter' is an object \(Counter\), not a function. Probe its method: Counter.__call__",
    ),
    ("len > x", "'len' is written in C"),
    ("functools > x", "'functools' is a module, not a function"),
    ("WHERE > x", r"'WHERE' is an object \(str\), not a function"),
    ("Counter.ad > new", r"'Counter' has no 'ad'.[\s\S]*'add'"),
    (
        "rude > shove",
        r"bluntly.wrapper \(\S+\) has no variable 'shove'.[\s\S]*absolute reference, '//rude'",
    ),
]


@pytest.mark.parametrize(("selector", "said"), NOT_FUNCTIONS)
def test_what_in_scope_can_not_be_probed_is_told(selector: str, said: str) -> None:
    with pytest.raises(SelectorError, match=said):
        in_scope(selector)


def test_no_message_holds_a_memory_address() -> None:
    for selector, _ in NOT_FUNCTIONS:
        assert "0x" not in message(selector, vars(builtins) | globals())


def test_a_function_of_the_script_that_is_not_in_scope_is_suggested_as_a_reference() -> None:
    assert message("train_epoch > loss", {}) == (
        "voirfile.py:7: selector 'train_epoch > loss': there is no 'train_epoch' in scope of voirfile.py.\n"
        "  Did you mean '//train_epoch' (a function of main.py)?"
    )
    assert "'//Trainer/run' (a function of main.py)" in message("Trainer.run > total", {})
    assert "'//train_epoch' (a function of main.py)" in message("train_epok > loss", {})


def test_a_name_that_is_not_in_scope_is_told_with_the_nearest() -> None:
    with pytest.raises(
        SelectorError, match=r"there is no 'plian' in scope of voirfile.py.\n  Did you mean 'plain'"
    ):
        check_all(parse("plian > local", WHERE), None, "", {"plain": plain, "plaid": 3})


def test_a_function_without_source_is_told() -> None:
    names: dict[str, object] = {}
    exec("def made(n):\n    x = n\n", names)
    assert "its source is not there to read" in message("made > x", names)


def test_an_object_whose_attributes_raise_is_told() -> None:
    class Odd:
        def __getattr__(self, name):
            raise OSError(name)

    assert "'odd' is an object (Odd), not a function" in message("odd > x", {"odd": Odd()})
    assert "'odd' has no 'x'" in message("odd.x > y", {"odd": Odd()})


def test_check_function_takes_any_object() -> None:
    function = parse("f > local", WHERE).functions[0]
    assert check_function(function, plain).endswith(f":{plain.__code__.co_firstlineno}")
    with pytest.raises(SelectorError, match="'f' is written in C"):
        check_function(function, len)


def test_names_in_conditions_must_be_in_scope() -> None:
    assert check_all(parse("plain(n=counter.at) > local", WHERE), None, "", globals())
    with pytest.raises(
        SelectorError,
        match=r"there is no 'conter' in scope of voirfile.py.\n  Did you mean 'Counter' or 'counter'",
    ):
        check_all(parse("plain(n=conter) > local", WHERE), None, "", globals())


def test_the_predicates_of_the_language_need_no_import() -> None:
    assert check_all(parse("plain(n ~ every(3)) > local", WHERE), None, "", globals())


def test_a_tag_must_be_one() -> None:
    from ptera import tag

    assert check_all(parse("plain > local:tag.Cool", WHERE), None, "", {"plain": plain, "tag": tag})
    assert check_all(parse("plain > local:@Cool", WHERE), None, "", {"plain": plain})
    with pytest.raises(SelectorError, match="'int' is not a tag"):
        check_all(parse("plain > local:int", WHERE), None, "", {"plain": plain})


def test_reading_a_selector_changes_nothing() -> None:
    before = plain.__code__
    in_scope("plain > local")
    assert plain.__code__ is before
