"""The engine on scripts: modules that come another way, definitions that share a name, functions that the collector does not list."""

from __future__ import annotations

import pytest
from conftest import Place

CONFIG = "def f(x):\n    y = x + 1\n    return y\n"
WAYS = {
    "a location": """
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("conf", "conf.py")
        conf = importlib.util.module_from_spec(spec)
        sys.modules["conf"] = conf
        spec.loader.exec_module(conf)
        print(conf.f(1))
        """,
    "a hook": """
        import sys
        from importlib.machinery import PathFinder
        class Hook:
            def find_spec(self, name, path=None, target=None):
                return PathFinder.find_spec(name, path, target) if name == "conf" else None
        sys.meta_path.insert(0, Hook())
        import conf
        print(conf.f(1))
        """,
}
VOIRFILE = """
    def instrument_p(ov):
        ov.probe("{}").subscribe(lambda e: print(e))
    """


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_came_another_way_is_told(place: Place, way: str) -> None:
    place.write(main="print('start')\n", conf=CONFIG, voirfile=VOIRFILE.format("/conf/f > y"))
    place.write(
        main="print('start')\n" + "".join(line[8:] + "\n" for line in WAYS[way].splitlines())
    )
    ended = place.voirkit("main.py")
    assert ended.out.split() == ["start", "2"]
    assert "selector '/conf/f > y': conf is loaded, but by no import that voirkit sees" in ended.err


def test_a_module_that_runpy_runs_is_watched(place: Place) -> None:
    main = "import runpy\nprint('start')\nnames = runpy.run_module('conf')\nprint(names['f'](1))\n"
    main += "print(*(type(loader).__name__ for loader in (names['__loader__'], names['__spec__'].loader)))\n"
    place.write(main=main, conf=CONFIG)
    place.write(voirfile=VOIRFILE.format("/conf/f > y"))
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.out, ended.err) == ("start\n{'y': 2}\n2\nSourceFileLoader SourceFileLoader\n", "")


PROPERTY = """
class C:
    @property
    def p(self):
        v = "getter"
        return v
    @p.setter
    def p(self, new):
        v = new
    @p.deleter
    def p(self):
        v = "deleted"
c = C()
c.p
c.p = "setter"
del c.p
"""


@pytest.mark.parametrize(
    "before", ["", "print('start')\n"], ids=["first", "after other statements"]
)
def test_the_name_of_a_property_means_its_getter_wherever_it_is_defined(
    place: Place, before: str
) -> None:
    place.write(main=before + PROPERTY, voirfile=VOIRFILE.format("//C/p > v"))
    ended = place.voirkit("--quiet", "main.py")
    assert ended.out.splitlines()[-1:] == ["{'v': 'getter'}"]
    assert "setter" not in ended.out


FREEZES = """
import gc, voirkit
def make():
    def inner(a):
        b = a + 1
        return b
    return inner
made = make()
with voirkit.probing("//make/inner > b").values() as seen:
    made(1)
print(seen)
gc.freeze()
with voirkit.probing("//make/inner > b").values() as seen:
    made(1)
    make()(1)
print(seen)
"""


def test_functions_that_the_collector_does_not_list_after_a_freeze_are_told(place: Place) -> None:
    ended = place.write(main=FREEZES).python("main.py")
    assert ended.out.splitlines() == ["[{'b': 2}]", "[{'b': 2}]"]
    assert (
        ended.err.count("after gc.freeze() functions that a function has made cannot be found") == 1
    )
