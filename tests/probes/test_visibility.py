"""What the check of a selector accepts is seen: each way in which a variable can be set, with the exact events.

Each program is run three times: without a probe, with one, and again without.  It must not be able to tell.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Place
from selecting import WHERE, message

from voirkit import probing
from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.check import check_all

CALL = "\ndef call(n):\n    return f(n)\n"
Writer = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Writes a module that can be imported, and tells its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        name = f"seen_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source + CALL)
        importlib.invalidate_caches()
        return name

    return write


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def events_of(selector: str, run: Callable[[], Any]) -> tuple[list[dict[str, Any]], Any]:
    """The events of a probe while something runs, and what that returns."""
    with probing(selector, env={}).values() as seen:
        result = run()
    return list(seen), result


def since(version: tuple[int, int], *case: Any) -> Any:
    """A case in the syntax of a later Python."""
    words = f"needs Python {version[0]}.{version[1]}"
    return pytest.param(*case, marks=pytest.mark.skipif(sys.version_info < version, reason=words))


# Where, a program whose f is called with 3, and what v is set to.  All have an n that stays 3.


SET = [
    ("f", "from contextlib import nullcontext\ndef f(n):\n    with nullcontext(n) as v:\n        return v", [3]),
    ("f", "from contextlib import nullcontext\ndef f(n):\n    v = n\n    with nullcontext(4) as v:\n        return v", [3, 4]),
    ("f", "from contextlib import nullcontext as c\ndef f(n):\n    with c((n, 2)) as (u, v), c(v) as w:\n        return w", [2]),
    ("f", "from contextlib import nullcontext as c\ndef f(n):\n    with c(n) as v, c(v + 1) as v:\n        return v", [3, 4]),
    ("f", "def f(n):\n    [u, v] = 1, 2\n    return v", [2]),
    ("f", "def f(n):\n    [u, (v, *w)] = n, (1, 2)\n    return w", [1]),
    ("f", "def f(n):\n    u, (v, w) = n, (4, 5)\n    return v", [4]),
    ("f", "def f(n):\n    u = v = n\n    return u", [3]),
    ("f", "def f(n):\n    u = (v := n) + 1\n    return v", [3]),
    ("f", "def f(n):\n    if (v := n): return v", [3]),
    ("f", "def f(n):\n    u = iter((2, 1, 0))\n    while (v := next(u)): pass\n    return v", [2, 1, 0]),
    ("f", "def f(n):\n    return [(v := k) for k in (n, 4)], v", [3, 4]),
    ("f", "def f(n):\n    return any((v := k) > 1 for k in range(n)), v", [0, 1, 2]),
    ("f", "def f(n):\n    d = {}\n    d[(v := n)] = 1\n    d[(v := n)] += 1\n    return d", [3, 3]),
    ("f", "def f(n):\n    def g(a=(v := n)): return a\n    return g()", [3]),
    ("f", "def f(n):\n    return f'{(v := n)}'", [3]),
    ("f", "def f(n):\n    class K((v := object), metaclass=(v := type)): pass\n    return K.__mro__[1:]", [object, type]),
    *(
        [("f", "def f(n):\n    def g(a: (v := n), *b: (v := 4), c: (v := 5) = 1, **d: (v := 6)) -> (v := 7): pass\n    return v", [3, 4, 5, 6, 7])]
        if sys.version_info < (3, 14)  # a syntax error since
        else []
    ),
    ("f", "def f(n):\n    v = [n, 4, 5][1:]\n    return v", [[4, 5]]),
    ("f", "def f(n):\n    def g(a, *, b=(v := n)): return b\n    return g(1)", [3]),
    ("f", "def f(n):\n    return (lambda a=(v := n), *, b=(v := 4): a)(), v", [3, 4]),
    ("f", "def f(n):\n    return (lambda a=[(v := k) for k in (n, 4)]: a)(), v", [3, 4]),
    ("f", "def f(n):\n    d = {}\n    d[(v := n)]: int = 1\n    return d", [3]),
    ("f", "f = lambda n: (lambda a=(v := n): a)()", [3]),
    ("f", "def same(g): return 5\ndef f(n):\n    @same\n    def v(): return n\n    return v", [5]),
    ("f", "def f(n):\n    v = [v for v in (n, 4)]\n    return v", [[3, 4]]),
    ("f", "def f(n):\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        v = n\n    return v", [3]),
    ("f", "def f(n):\n    try:\n        v = 1\n        1 / 0\n    except ZeroDivisionError as e:\n        v = 2\n    return v", [1, 2]),
    ("f", "def f(n):\n    try:\n        v = 1\n    finally:\n        v = 2\n    return v", [1, 2]),
    since((3, 11), "f", "def f(n):\n    try:\n        raise ExceptionGroup('', [OSError()])\n    except* OSError:\n        v = n\n    return v", [3]),
    ("f", "def f(n):\n    match n:\n        case v:\n            pass\n    return v", [3]),
    ("f", "def f(n):\n    match [n, 4, 5]:\n        case [int(), *v]:\n            return v", [[4, 5]]),
    ("f", "def f(n):\n    match {1: n, 2: 4}:\n        case {1: int(), **v}:\n            return v", [{2: 4}]),
    ("f", "def f(n):\n    match n:\n        case v if v > 5:\n            return 1\n        case _:\n            return v", [3]),
    ("f", "def f(n):\n    v: int\n    v = n\n    return v", [3]),
    ("f", "def f(n):\n    v: int = n\n    return v", [3]),
    ("f", "def f(n):\n    v = n\n    class K:\n        v = 4\n    return K.v", [3]),
    ("f", "def f(n):\n    class K:\n        w = 1\n    v = n\n    return v", [3]),
    ("g", "import asyncio\nasync def g(n):\n    v = n\n    return v\ndef f(n):\n    return asyncio.run(g(n))", [3]),
    (
        "g",
        "import asyncio\nasync def it(n):\n    yield n\n    yield 4\nasync def g(n):\n    async for v in it(n): pass\n"
        "    u = [v async for v in it(n)]\n    return v, u\ndef f(n):\n    return asyncio.run(g(n))",
        [3, 4],
    ),
    (
        "g",
        "import asyncio, contextlib\n@contextlib.asynccontextmanager\nasync def c(n):\n    yield n\n"
        "async def g(n):\n    async with c(n) as v:\n        return v\ndef f(n):\n    return asyncio.run(g(n))",
        [3],
    ),
    ("o/f", "def o():\n    v = 0\n    def f(n):\n        nonlocal v\n        v = n\n        return v\n    return f\nf = o()", [3]),
    ("f", "G = 1\ndef f(n):\n    global G\n    v = n\n    return G", [3]),
    ("f", "def f(n):\n    global v\n    v = n\n    return v", [3]),
    ("f", "def f(n):\n    v, *w = n, 2, 3\n    return w", [3]),
    ("f", "def f(n):\n    u, *v = n, 2, 3\n    return v", [[2, 3]]),
    ("f", "def f(n):\n    for v, *w in [(n, 2)]:\n        pass\n    return v", [3]),
    ("f", "def f(n):\n    for [u, v] in [(n, 2), (n, 4)]:\n        pass\n    return v", [2, 4]),
    ("f", "def f(n):\n    for i, (u, v) in enumerate(zip((1, 2), (3, 4))): pass\n    return v", [3, 4]),
    ("f", "def f(n):\n    d = {}\n    for d[0], v in [(n, 2)]:\n        pass\n    return d", [2]),
    ("K/g", "class K:\n    __a = 1\n    def g(self, n):\n        v = n\n        return self.__a\ndef f(n):\n    return K().g(n)", [3]),
    ("K/g", "class K:\n    def g(self, n):\n        self.__v = n\n        v = 1\n        return vars(self)\ndef f(n):\n    return K().g(n)", [1]),
    ("f", "def f(n):\n    v, w = zip((1, 2), (3, 4))\n    return v", [(1, 3)]),
    ("f", "def f(n):\n    v, w = {1: 2, 3: 4}.items()\n    return v", [(1, 2)]),
    ("f", "def f(n):\n    v, = {n}\n    return v", [3]),
    ("f", "def f(n):\n    v, w = (k for k in (n, 4))\n    return w", [3]),
    ("f", "def f(n):\n    v = n\n    return sorted(locals())", [3]),
    ("f", "def f(n):\n    v = n\n    return sorted(vars()), dir(), eval('v + n')", [3]),
    ("f", "def f(n):\n    v = n\n    del v\n    v = 4\n    return sorted(locals())", [3, 4]),
    ("g", "def g(n):\n    v = yield n\ndef f(n):\n    return list(g(n))", [None]),
    ("g", "def h(n):\n    yield n\n    return 7\ndef g(n):\n    v = yield from h(n)\n    yield v\ndef f(n):\n    return list(g(n))", [7]),
    ("f", "f = lambda n: (v := n) + 1", [3]),
    ("f", "f = lambda n: [(v := k) for k in (n, 4)]", [3, 4]),
    ("o/g", "def o():\n    g = lambda n: (v := n)\n    return g\ndef f(n):\n    return o()(n)", [3]),
]  # fmt: skip
set_in_a_program = pytest.mark.parametrize(("reference", "source", "values"), SET)


@set_in_a_program
def test_the_check_accepts_it(reference: str, source: str, values: list[Any]) -> None:
    script = catalogue(source, "main.py")
    function = script.find(tuple(reference.split("/")))
    assert function is not None
    assert (
        check_all(parse(f"//{reference} > v", WHERE), script, "main.py")
        == f"main.py:{function.line}"
    )


@set_in_a_program
def test_it_is_seen_in_a_live_function(
    module: Writer, reference: str, source: str, values: list[Any]
) -> None:
    name = module(source)
    f = imported(name).f
    expected = f(3)
    assert events_of(f"/{name}/{reference} > v", lambda: f(3)) == (
        [{"v": value} for value in values],
        expected,
    )
    assert f(3) == expected


@set_in_a_program
def test_it_is_seen_in_a_function_that_is_imported_later(
    module: Writer, reference: str, source: str, values: list[Any]
) -> None:
    name = module(source)
    seen, result = events_of(f"/{name}/{reference} > v", lambda: imported(name).f(3))
    assert seen == [{"v": value} for value in values]
    assert imported(name).f(3) == result


@set_in_a_program
def test_it_is_seen_with_what_else_is_captured(
    module: Writer, reference: str, source: str, values: list[Any]
) -> None:
    name = module(source)
    f = imported(name).f
    expected = f(3)
    assert events_of(f"/{name}/{reference}(n) > v", lambda: f(3)) == (
        [{"n": 3, "v": value} for value in values],
        expected,
    )


@set_in_a_program
def test_it_is_seen_inside_the_call_of_another_function(
    module: Writer, reference: str, source: str, values: list[Any]
) -> None:
    name = module(source)
    call = imported(name).call
    expected = call(3)
    selector = f"/{name}/call(n as outer) > /{name}/{reference} > v"
    assert events_of(selector, lambda: call(3)) == (
        [{"outer": 3, "v": value} for value in values],
        expected,
    )


# What is not a plain value: the event has the very object.  Here f returns what v was set to.


THINGS = [
    ("v", "def f(n):\n    with open(__file__) as v:\n        return [v]"),
    ("os", "def f(n):\n    import os.path\n    return [os]"),
    ("v", "def f(n):\n    import xml.dom as v\n    return [v]"),
    ("v", "def f(n):\n    from math import floor as v, pi\n    return [v]"),
    ("v", "def f(n):\n    def v(): return n\n    return [v]"),
    ("v", "def f(n):\n    async def v(): return n\n    return [v]"),
    ("v", "def f(n):\n    class v: pass\n    return [v]"),
    ("v", "def f(n):\n    v = lambda: n\n    return [v]"),
    ("v", "def f(n):\n    try:\n        1 / 0\n    except ZeroDivisionError as v:\n        u = [v]\n    return u"),
    ("v", "def f(n):\n    @(v := lambda g: g)\n    def g(): pass\n    return [v]"),
    since((3, 12), "v", "def f(n):\n    type v = int\n    return [v]"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "source"), THINGS)
def test_the_event_has_the_very_object(module: Writer, asked: str, source: str) -> None:
    assert (
        check_all(parse(f"//f > {asked}", WHERE), catalogue(source, "main.py"), "main.py")
        == "main.py:1"
    )
    name = module(source)
    f = imported(name).f
    before = f(3)
    seen, result = events_of(f"/{name}/f > {asked}", lambda: f(3))
    assert [list(event) for event in seen] == [[asked]]
    assert seen[0][asked] is result[0]
    assert type(result[0]) is type(before[0])
    assert getattr(result[0], "__qualname__", "") == getattr(before[0], "__qualname__", "")


# Hash variables, attributes, and all variables


ELSE = [
    ("g", "#yield", "def g(n):\n    v = yield n\n    yield 4\ndef f(n):\n    return list(g(n))", [3, 4]),
    ("g", "#receive", "def g(n):\n    v = yield n\n    yield 4\ndef f(n):\n    i = g(n)\n    return next(i), i.send(8)", [8]),
    ("g", "#yield", "def g(n):\n    u = [k for k in (yield n) or ()]\ndef f(n):\n    return list(g(n))", [3]),
    ("g", "#yield", "g = lambda n: (yield n)\ndef f(n):\n    return list(g(n))", [3]),
    (
        "g",
        "#yield",
        "import asyncio\nasync def g(n):\n    v = yield n\nasync def h(n):\n    return [k async for k in g(n)]\n"
        "def f(n):\n    return asyncio.run(h(n))",
        [3],
    ),
    ("f", "k", "def f(n):\n    return [k for k in (n, 4)]", [3, 4]),
    ("K/__m", "v", "class K:\n    def __m(self, n):\n        v = n\n        return v\n    def c(self, n): return self.__m(n)\ndef f(n):\n    return K().c(n)", [3]),
    ("_K/__m", "v", "class _K:\n    def __m(self, n):\n        v = n\n        return v\n    def c(self, n): return self.__m(n)\ndef f(n):\n    return _K().c(n)", [3]),
    ("f/i", "c", "def f(n):\n    i = j = lambda c: c\n    return j(n)", [3]),
    ("f/j", "c", "def f(n):\n    i = j = lambda c: c\n    return i(n)", [3]),
    ("f/i", "c", "def f(n):\n    i: object = lambda c: c\n    return i(n)", [3]),
    ("g", "c", "g: object = lambda c: c\ndef f(n):\n    return g(n)", [3]),
    ("f", "k", "def f(n):\n    class C:\n        pass\n    return sum({k for k in (n, 4)})", [3, 4]),
    ("f", "k", "f = lambda n: {k: 1 for k in (n, 4)}", [3, 4]),
    ("f", "#value", "def f(n):\n    v = n", [None]),
    ("f", "#value", "def f(n):\n    if n:\n        return\n    return 2", [None]),
    ("f", "#value", "def f(n):\n    if not n:\n        return 2", [None]),
    ("f", "#value", "def f(n):\n    '''Text.'''", [None]),
    ("f", "#value", "f = lambda n: n + 1", [4]),
    ("f", "#enter", "f = lambda n: n + 1", [True]),
    ("f", "n", "f = lambda n: n + 1", [3]),
    ("f", "k", "f = lambda n, *a, k=2: n + k", [2]),
    ("K/g", "n", "class K:\n    g = lambda self, n: n\ndef f(n): return K().g(n)", [3]),
    ("f", "#loop_w", "def f(n):\n    for v, *w in [(n, 2)]:\n        pass", [True]),
    ("f", "#endloop_v", "def f(n):\n    for [u, v] in [(n, 2), (n, 4)]:\n        continue", [True, True]),
    ("K/g", "self.x", "class K:\n    def g(self, n):\n        self.x = n\n        self.x = 4\ndef f(n):\n    K().g(n)", [3, 4]),
    ("K/g", "self.x", "class K:\n    def g(self, n):\n        v = self.x = n\ndef f(n):\n    K().g(n)", [3]),
    ("K/g", "self.x", "class K:\n    def g(self, n):\n        self.x = n\n        self.x += 1\n        return self.x\ndef f(n):\n    return K().g(n)", [3, 4]),
    ("K/g", "self.x", "class K:\n    def g(self, n):\n        self.x = (n,)\n        self.x *= (k := 2)\ndef f(n):\n    K().g(n)", [(3,), (3, 3)]),
    ("K/g", "self.__x", "class K:\n    __x = 1\n    def g(self, n):\n        self.__x += n\n        return vars(self)\ndef f(n):\n    return K().g(n)", [4]),
    ("f", "v", "f = lambda n: v + n\nv = 7", [7]),
    ("f", "v", "f = lambda n: n if n else v", []),
    ("f", "G", "G = 7\ndef f(n):\n    def g(G): pass\n    return G", [7]),
    ("f", "G", "G = 7\ndef f(n):\n    h = lambda G: G\n    return h(n) + G", [7]),
    ("f", "G", "G = (7,)\ndef f(n):\n    return [G for G in G]", [(7,)]),
    ("K/g", "self.x", "class K:\n    def g(self, n):\n        self.x: int = n\ndef f(n):\n    K().g(n)", [3]),
    ("K/g", "self.__x", "class K:\n    def g(self, n):\n        self.__x = n\n        return vars(self)\ndef f(n):\n    return K().g(n)", [3]),
    ("K/g", "self.k.lr", "class K:\n    def g(self, n):\n        self.k = K()\n        self.k.lr = n\ndef f(n):\n    K().g(n)", [3]),
    ("f", "$x", "def f(n):\n    match n:\n        case v:\n            pass", [True, 3, 3, True]),
    ("f", "$x", "def f(n):\n    v: int\n    v = n\n    return v", [True, 3, 3, True]),
    ("f", "$x", "def f(n):\n    v = n\n    class K:\n        w = 4\n    K = 5\n    return v", [True, 3, 3, type, 5, True]),
    ("f", "$x", "def f(n):\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        v = n\n    return v", [True, 3, ZeroDivisionError, 3, True]),
    ("f", "$x", "def f(n):\n    v, *w = n, 2\n    return sorted(locals())", [True, 3, 3, [2], True]),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "asked", "source", "values"), ELSE)
def test_hash_variables_attributes_and_all_variables_are_seen(
    module: Writer, reference: str, asked: str, source: str, values: list[Any]
) -> None:
    check_all(parse(f"//{reference} > {asked}", WHERE), catalogue(source, "main.py"), "main.py")
    name = module(source)
    f = imported(name).f
    expected = f(3)
    seen, result = events_of(f"/{name}/{reference} > {asked}", lambda: f(3))
    key = asked.lstrip("$")
    assert [list(event) for event in seen] == [[key]] * len(values)
    kinds = [
        v if isinstance(v, type) else None for v in values
    ]  # of a class made in f, of an exception: the kind is enough
    found = [
        type(event[key]) if kind else event[key] for event, kind in zip(seen, kinds, strict=True)
    ]
    assert (found, result) == (values, expected)
    assert f(3) == expected


# What is still refused, and how


def test_a_comprehension_s_variable_is_refused_where_it_has_no_value() -> None:
    assert message("//silent(k) > seen") == (
        "voirfile.py:7: selector '//silent(k) > seen': silent (main.py:20) cannot be probed for 'seen' together with 'k': "
        "that is a variable of a comprehension (line 21), and has no value there."
    )


def test_what_the_comprehension_makes_is_seen(module: Writer) -> None:
    name = module("def f(n):\n    v = [k for k in (n, n)]\n    return v")
    assert events_of(f"/{name}/f > v", lambda: imported(name).f(3)) == ([{"v": [3, 3]}], [3, 3])


REFUSED = [
    ("f > v", "def f(n):\n    try:\n        del v\n    except NameError: pass", "f (main.py:1) never sets 'v'."),
    ("f > v", "def f(n):\n    class K:\n        v = n", "f (main.py:1) has no variable 'v'.\n  Its variables: K, n."),
    (
        "K/g > self.x",
        "class K:\n    def g(self, n):\n        self.y = self.x",
        "K.g (main.py:2) does not set 'self.x'.\n  It sets: self.y.  Did you mean 'self.y'?",
    ),
    ("K/g > self.x", "class K:\n    def g(self, n):\n        return self.x", "K.g (main.py:2) does not set 'self.x'.\n  It sets no attributes."),
    ("K/g > self.x", "class K:\n    def g(self, n):\n        self.x: int", "K.g (main.py:2) does not set 'self.x'.\n  It sets no attributes."),
    (
        "K/g > self.x",
        "class K:\n    def g(self, n):\n        self.x = 1\n        return [1 for self.x in n]",
        "K.g (main.py:2) cannot be probed for 'self.x': a comprehension sets it (line 4), where no tap can see it.",
    ),
    (
        "f > v",
        f"def f(n):\n    v = {' + '.join(['n'] * 2500)}",
        "f (main.py:1) cannot be probed: it stands too deep in its source, or the program in its calls, for Python to compile it with taps.",
    ),
    ("f > #yield", "f = lambda n: n", "f (main.py:1) has no 'yield'."),
    ("f > v", "def f(n):\n    v: int", "f (main.py:1) never sets 'v'."),
    ("f(v) > n", "def f(n):\n    v: int", "f (main.py:1) never sets 'v'."),
    ("K/g > self.x", "class K:\n    def g(self, n):\n        del self.x", "K.g (main.py:2) never sets 'self.x'."),
    ("f > G", "def f(n):\n    class K:\n        G = G", "f (main.py:1) has no variable 'G'.\n  Its variables: K, n."),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "source", "words"), REFUSED)
def test_what_is_not_there_is_refused_before_anything_runs(
    selector: str, source: str, words: str
) -> None:
    with pytest.raises(SelectorError) as caught:
        check_all(parse(f"//{selector}", WHERE), catalogue(source, "main.py"), "main.py")
    assert str(caught.value) == f"voirfile.py:7: selector '//{selector}': {words}"


AT_ITS_END = "a lambda (line 1) has no place for a tap that an exception cannot pass by."
SHOWS_NO_VALUE = (
    "sets it where no value shows. Assign to a variable first, and that to the attribute."
)
UNSEEN = [
    ("f > #yield", "def f(n):\n    yield n\n    yield from n", "for '#yield': 'yield from' hands values through (line 3), where no tap can see it."),
    ("f > #receive", "def f(n):\n    v = yield from n", "for '#receive': 'yield from' hands values through (line 2), where no tap can see it."),
    ("f > self.x", "def f(n):\n    self, self.x = n, 2", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self):\n    self.x += (self := 1)", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self):\n    [v, (self.x, *v)] = 1, (5, 6)", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.__x", "def f(self):\n    v, self.__x = 1, 2", f"for 'self.__x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self):\n    *self.x, v = 1, 2", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self):\n    for self.x in (1, 2): pass", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self):\n    for i, self.x in enumerate((1, 2)): pass", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.x", "def f(self, c):\n    with c() as self.x, c() as (u, v): pass", f"for 'self.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > self.k.x", "def f(self):\n    self.k.x += 1", f"for 'self.k.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > #exit", "f = lambda n: n", f"for '#exit': {AT_ITS_END}"),
    ("f > #error", "f = lambda n: n", f"for '#error': {AT_ITS_END}"),
    ("f(n)", "f = lambda n: n", f"without a focus: that is an event at the end of the call, and {AT_ITS_END}"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "source", "words"), UNSEEN)
def test_what_no_tap_can_see_is_refused_by_name_and_line(
    module: Writer, selector: str, source: str, words: str
) -> None:
    name = module(source)
    function = vars(imported(name)).get("f") or imported(name).K.g
    code = function.__code__
    with pytest.raises(SelectorError) as caught, probing(f"/{name}/{selector}", env={}):
        pass
    assert f"cannot be probed {words}" in str(caught.value)
    assert function.__code__ is code


@pytest.mark.parametrize(("selector", "source", "words"), UNSEEN)
def test_a_run_with_such_a_probe_ends_before_the_script_starts(
    place: Place, selector: str, source: str, words: str
) -> None:
    place.write(
        main=f"{source}\nprint('started')\n",
        voirfile=f"def instrument_x(ov):\n    ov.probe('//{selector}').print()\n",
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (2, "")
    assert (
        f"voirkit: voirfile.py:2: selector '//{selector}': {selector[0]} (main.py:1) cannot be probed {words}"
        in ended.err
    )
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(("selector", "source", "words"), UNSEEN)
def test_what_no_tap_can_see_is_refused_by_the_check_alone(
    selector: str, source: str, words: str
) -> None:
    with pytest.raises(SelectorError) as caught:
        check_all(parse(f"//{selector}", WHERE), catalogue(source, "main.py"), "main.py")
    assert (
        str(caught.value)
        == f"voirfile.py:7: selector '//{selector}': f (main.py:1) cannot be probed {words}"
    )


KINDS = [
    ("f > #enter", "def f(n): pass", {"overridable": True}, "f (main.py:1) does not set what is to be replaced: #enter."),
    ("f > n.x", "def f(n):\n    n.x, k = n, n", {"overridable": True}, f"for 'n.x': line 2 {SHOWS_NO_VALUE}"),
    ("f > n", "f = lambda n: n", {"probe_type": "total"}, f"without a focus: that is an event at the end of the call, and {AT_ITS_END}"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "source", "options", "words"), KINDS)
def test_what_a_kind_of_probe_can_not_do_is_refused_before_the_script_starts(
    place: Place, selector: str, source: str, options: dict[str, Any], words: str
) -> None:
    instrument = (
        f"def instrument_x(ov):\n    ov.probe('//{selector}', **{options!r}).subscribe(print)\n"
    )
    place.write(main=f"{source}\nprint('started')\n", voirfile=instrument)
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (2, "")
    assert f"voirkit: voirfile.py:2: selector '//{selector}': f (main.py:1) " in ended.err
    assert words in ended.err
