"""An import of a module with probed functions does what it did: it never fails because of the probes, and looks the same."""

from __future__ import annotations

import re

import pytest
from conftest import Ended, Place

CHAIN = (
    "def f(x):\n    if x == 0: y = 0\n"
    + "".join(f"    elif x == {i}: y = {i}\n" for i in range(1, 200))
    + "    return y\n"
)
TOTAL = "TOTAL = " + " + ".join(["1.5"] * 2500) + "\n"
SHORT = "def f(x):\n    y = x\n    return y\n"


def voirfile(*selectors: str) -> str:
    return "def instrument_p(ov):\n" + "".join(
        f'    ov.probe({s!r}).subscribe(lambda e: print("event", e))\n' for s in selectors
    )


def both(place: Place, *words: str) -> tuple[Ended, Ended]:
    return place.python(*words), place.voirkit("--quiet", *words)


def without_events(ended: Ended) -> tuple[int, str, str]:
    return ended.code, re.sub("event .*\n", "", ended.out), re.sub("0x[0-9a-f]+", "0x", ended.err)


@pytest.mark.parametrize("source", [CHAIN, TOTAL + SHORT, TOTAL + CHAIN])
def test_deep_sources_are_imported_and_seen(place: Place, source: str) -> None:
    place.write(
        {"mod.py": source},
        main='print("start")\nimport mod\nprint(mod.f(5))\n',
        voirfile=voirfile("/mod/f > y"),
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)
    assert "event {'y': 5}" in ended.out


@pytest.mark.parametrize(
    "source",
    [
        CHAIN,
        TOTAL + SHORT,
        TOTAL + CHAIN,
        CHAIN.replace("    return", "    while False: pass\n    return"),
    ],
)
def test_deep_scripts_are_seen(place: Place, source: str) -> None:
    place.write(
        {"main.py": "print('start')\n" + source + "print(f(5))\n"}, voirfile=voirfile("//f > y")
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)
    assert "event {'y': 5}" in ended.out


@pytest.mark.parametrize("depth", range(700, 940, 40))
def test_an_import_deep_in_calls_does_what_it_does(place: Place, depth: int) -> None:
    place.write(
        {"mod.py": SHORT},
        main=f"""
        print("start")
        def deep(n):
            if n:
                return deep(n - 1)
            import mod
            return mod
        print(deep({depth}).f(5))
        """,
        voirfile=voirfile("/mod/f > y"),
    )
    place.python("-m", "py_compile", "mod.py")
    plain, ended = both(place, "main.py")
    assert (plain.code, ended.code, ended.out.replace("event {'y': 5}\n", "")) == (0, 0, plain.out)
    assert "event" in ended.out or "too deep" in ended.err


def test_what_is_too_deep_to_weave_is_told(place: Place) -> None:
    nested = (
        "def f(x):\n"
        + "".join(" " * n + "if x:\n" for n in range(1, 90))
        + " " * 90
        + "y = x\n"
        + " " * 90
        + "return y\n"
    )
    deep = nested + "V = " + "-" * 3 + "1\n"
    place.write(
        {"main.py": "print('start')\n" + deep + "print(f(5))\n"}, voirfile=voirfile("//f > y")
    )
    plain, ended = both(place, "main.py")
    assert (plain.code, ended.code, ended.out.replace("event {'y': 5}\n", "")) == (0, 0, plain.out)
    assert "event" in ended.out or "too deep" in ended.err


FAILS = SHORT + "f(1)\n1 / 0\n"


@pytest.mark.parametrize(
    "ways",
    [
        "import bad",
        "import importlib; importlib.import_module('bad')",
        "from package import bad",
        "import lacks",
        "import wrong",
        "import traceback\ntry:\n    import bad\nexcept ZeroDivisionError:\n    traceback.print_exc()",
        "import warns",
    ],
)
def test_the_traceback_of_an_import_that_fails_is_python_s(place: Place, ways: str) -> None:
    place.write(
        {
            "bad.py": FAILS,
            "package/__init__.py": "",
            "package/bad.py": FAILS,
            "lacks.py": "import nothing_there\n" + SHORT,
            "wrong.py": SHORT + "a b\n",
            "warns.py": "import warnings\nwarnings.warn('here', stacklevel=2)\n" + SHORT,
            "main.py": f"print('start')\n{ways}\n",
        },
        voirfile=voirfile("/bad/f > y", "/package.bad/f > y", "/lacks/f > y", "/warns/f > y"),
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)


def test_who_looks_for_a_module_finds_python_s_own_loader(place: Place) -> None:
    place.write(
        main="""
        print("start")
        import importlib.util, importlib.machinery, pickle
        def show(spec):
            print(type(spec.loader).__name__, isinstance(spec.loader, importlib.machinery.SourceFileLoader), sorted(vars(spec.loader)))
        show(importlib.util.find_spec("mod"))
        import mod
        show(mod.__spec__)
        show(importlib.util.find_spec("mod"))
        importlib.reload(mod)
        show(mod.__spec__)
        print(mod.__loader__ is mod.__spec__.loader, mod.f(3))
        """,
        mod=SHORT,
        voirfile=voirfile("/mod/f > y"),
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)
    assert ended.out.count("event") == 1


def test_a_module_with_a_name_of_its_own_for_super_is_seen(place: Place) -> None:
    place.write(
        main='print("start")\nimport mod\nmod.C().f(5)\n',
        mod="keep = super\nclass B:\n    def f(self, x): return x\nclass C(B):\n    def f(self, x):\n        y = super().f(x)\n        return y\n",
        voirfile=voirfile("/mod/C/f > y"),
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)
    assert "event {'y': 5}" in ended.out


def test_a_module_that_another_hook_finds_through_python_s_own_is_seen(place: Place) -> None:
    place.write(
        main="""
        print("start")
        import importlib.util, sys
        class Hook:
            looking = False
            def find_spec(self, name, path=None, target=None):
                if name == "mod" and not self.looking:
                    self.looking = True
                    return importlib.util.find_spec(name)
        sys.meta_path.insert(0, Hook())
        import mod
        print(mod.f(3))
        """,
        mod=SHORT,
        voirfile=voirfile("/mod/f > y"),
    )
    plain, ended = both(place, "main.py")
    assert without_events(plain) == without_events(ended)
    assert ended.out.count("event") == 1


def test_what_a_signal_s_handler_raises_while_a_module_is_woven_reaches_the_program(
    place: Place,
) -> None:
    place.write(
        main="""
        print("start")
        import signal
        def stop(*_): raise TimeoutError("its own")
        signal.signal(signal.SIGUSR1, stop)
        try:
            import mod
        except TimeoutError as error:
            print(error)
        """,
        mod=SHORT,
        voirfile=voirfile("/mod/f > y")
        + "    import signal\n    from voirkit.probes import source\n    parsed = source.parse_like\n"
        + "    def interrupted(text, code):\n"
        + "        if 'mod.py' in code.co_filename: signal.raise_signal(signal.SIGUSR1)\n"
        + "        return parsed(text, code)\n"
        + "    source.parse_like = interrupted\n",
    )
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.out) == (0, "start\nits own\n")
