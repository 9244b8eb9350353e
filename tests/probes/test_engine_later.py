"""The engine: functions that do not exist yet, that are made again, and that are made by functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Place

from voirkit import SelectorError, probing, refstring

pytestmark = pytest.mark.long

SOURCE = """\
import functools
def deco(function):
    def inner(*args):
        noise = len(args)
        return function(*args)
    return inner
def now(function):
    function(7)
    return function
class Base:
    def step(self, k):
        twice = k * 2
        return twice
class Sub(Base):
    pass
@deco
def hidden(n):
    deep = n * 3
    return deep
@now
def run(n):
    at_once = n
    return at_once
def make(step):
    def add(n):
        s = n + step
        return s
    return add
if make:
    def chosen(n):
        yes = n
        return yes
else:
    def chosen(n):
        no = n
        return no
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Makes a module of a source, not imported yet; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(source: str) -> str:
        name = f"later_{len(made)}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_what_a_module_runs_while_it_is_imported_is_seen(write: Write) -> None:
    name = write(SOURCE)
    seen: list[Any] = []
    with probing(
        f"/{name}/run > at_once", f"/{name}/hidden > deep", f"/{name}/Sub/step > twice"
    ) as probe:
        probe.subscribe(seen.append)
        assert name not in sys.modules
        module = importlib.import_module(name)
        module.hidden(1)
        module.Sub().step(2)
    module.hidden(1)
    module.Sub().step(2)
    module.run(1)
    assert seen == [{"at_once": 7}, {"deep": 3}, {"twice": 4}]


def test_a_module_that_was_woven_looks_like_any_other(write: Write) -> None:
    name = write(SOURCE)
    with probing(f"/{name}/chosen > yes") as probe:
        probe.subscribe(lambda event: None)
        module = importlib.import_module(name)
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        assert module.__spec__ is not None
        assert module.__spec__.loader is module.__loader__
        before = module.chosen.__code__
        assert before.co_name == "chosen"
    assert module.chosen.__code__ is not before
    plain = importlib.reload(module)
    assert plain.chosen.__code__ == module.chosen.__code__


def test_a_module_that_is_reloaded_is_watched_again(write: Write) -> None:
    name = write(SOURCE)
    module = importlib.import_module(name)
    seen: list[Any] = []
    with probing(f"/{name}/chosen > yes") as probe:
        probe.subscribe(seen.append)
        module.chosen(1)
        importlib.reload(module)
        module.chosen(2)
    module.chosen(3)
    assert seen == [{"yes": 1}, {"yes": 2}]


def test_functions_made_by_a_function_are_watched_before_and_after(write: Write) -> None:
    name = write(SOURCE)
    module = importlib.import_module(name)
    old = module.make(1)
    seen: list[Any] = []
    with probing(f"/{name}/make/add > s") as probe:
        probe.subscribe(seen.append)
        new = module.make(10)
        old(1)
        new(1)
        assert old.__code__.co_name == new.__code__.co_name == "add"
    later = module.make(100)
    for function in (old, new, later):
        function(1)
    assert seen == [{"s": 2}, {"s": 11}]
    assert old.__code__ is new.__code__ is later.__code__


def test_a_closure_by_its_name_is_watched_alone() -> None:
    def make(step: int) -> Any:
        def add(n: int) -> int:
            s = n + step
            return s

        return add

    one, two = make(1), make(2)
    seen: list[Any] = []
    with probing("one(step) > s") as probe:
        probe.subscribe(seen.append)
        one(1)
        two(1)
    assert seen == [{"step": 1, "s": 2}]


def test_a_module_that_is_nowhere_is_an_error_at_once() -> None:
    with (
        pytest.raises(SelectorError, match="no_such_module"),
        probing("/no_such_module_at_all/f > x"),
    ):
        pass


def test_a_variable_that_is_nowhere_is_an_error_before_the_import(write: Write) -> None:
    name = write(SOURCE)
    with pytest.raises(SelectorError, match=r"depp[\s\S]*deep"), probing(f"/{name}/hidden > depp"):
        pass
    assert name not in sys.modules
    assert not [
        finder
        for finder in sys.meta_path
        if type(finder).__module__ == "voirkit.probes.live_functions"
    ]


def test_a_source_that_has_changed_is_refused(write: Write, tmp_path: Path) -> None:
    name = write("def f(x):\n    y = x\n    return y\n")
    module = importlib.import_module(name)
    (tmp_path / f"{name}.py").write_text("def f(x):\n    y = x + 1\n    return y\n")
    with pytest.raises(SelectorError, match="changed"), probing("f > y", env=vars(module)):
        pass
    assert module.f(1) == 1


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {}
    exec("def f(x):\n    y = x\n    return y\n", names)
    with pytest.raises(SelectorError, match="source"), probing("f > y", env=names):
        pass
    with pytest.raises(SelectorError, match="C"), probing("len > x", env={"len": len}):
        pass


def test_a_reference_finds_its_function(write: Write) -> None:
    name = write(SOURCE)
    module = importlib.import_module(name)
    assert refstring(module.Base.step) == f"/{name}/Base/step"
    with pytest.raises(TypeError):
        refstring(len)


def test_functions_of_the_script_are_watched_before_they_are_defined(
    voirkit: Any, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(
        "def now(f):\n    f(1)\n    return f\n"
        "print('start')\n"
        "@now\ndef train(n):\n    for i in range(n + 1):\n        loss = i\n    return loss\n"
        "if True:\n    def late(k):\n        z = k\n        return z\n"
        "late(5)\n"
    )
    (tmp_path / "voirfile.py").write_text(
        "def instrument_watch(ov):\n    yield ov.phases.init\n    ov.probe('//train(i) > loss', '//late > z').subscribe(print)\n"
    )
    done = voirkit("main.py")
    assert done.out.splitlines() == [
        "start",
        "{'i': 0, 'loss': 0}",
        "{'i': 1, 'loss': 1}",
        "{'z': 5}",
    ]


def test_one_of_several_definitions_that_can_not_be_probed_is_told_by_its_name(
    place: Place,
) -> None:
    place.write(
        main="""
        print("start")
        if print:
            def f(n):
                yield n
        else:
            def f(n):
                yield from n
        list(f(3))
        """,
        voirfile="def instrument_x(ov):\n    ov.probe('//f > #yield').subscribe(print)\n",
    )
    done = place.voirkit("main.py")
    assert (done.code, done.out) == (0, "start\n{'#yield': 3}\n")
    said = "voirfile.py:2: selector '//f > #yield': //f cannot be probed for '#yield': 'yield from' hands values through (line 8)"
    assert said in done.err
    assert "CanNot" not in done.err
