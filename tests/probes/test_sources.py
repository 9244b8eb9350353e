"""What is woven is the source that was compiled, whatever stands in the file now; and compiling it again is heard of by nobody."""

from __future__ import annotations

import importlib
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Place

from voirkit import SelectorError, probing

Import = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Import a text as the module ``edited``; its file is ``edited.py``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text: str) -> ModuleType:
        (tmp_path / "edited.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module("edited")

    yield load
    sys.modules.pop("edited", None)


def edit(module: ModuleType, text: str) -> None:
    Path(str(module.__file__)).write_text(text)
    linecache.checkcache()  # as printing a traceback does


PLAIN = "def f(x):\n    lr = 2\n    y = x * lr\n    z = y\n    return z\n"
EDITS = {
    "a constant": PLAIN.replace("2", "3"),
    "a constant's type": PLAIN.replace("2", "2.0"),
    "a statement": PLAIN.replace("* lr", "* lr + 0"),
    "a comment that moves lines": PLAIN.replace("    y =", "    # why\n    y ="),
    "spaces": PLAIN.replace("x * lr", "x  *  lr"),
    "a line above": "\n" + PLAIN,
    "all": "",
}


@pytest.mark.parametrize("change", EDITS)
def test_a_file_that_is_edited_before_the_first_probe_is_not_woven(
    load: Import, change: str
) -> None:
    module = load(PLAIN)
    edit(module, EDITS[change])
    if change == "spaces" and sys.version_info < (3, 11):
        pytest.skip("code has no columns")
    with (
        pytest.raises(
            SelectorError, match=r"not what its source says|not there to read|no function"
        ),
        probing("f > y", env=vars(module)),
    ):
        pass
    assert module.f(10) == 20


@pytest.mark.parametrize("change", EDITS)
def test_a_file_that_is_edited_while_a_probe_is_on_is_woven_from_what_it_was(
    load: Import, change: str, capsys: Any
) -> None:
    module = load(PLAIN)
    with probing("f > y", env=vars(module)).values() as first:
        edit(module, EDITS[change])
        with probing("f > z", env=vars(module)).values() as second:
            assert module.f(10) == 20
        assert module.f(10) == 20
    assert (first, second) == ([{"y": 20}, {"y": 20}], [{"z": 20}])
    assert capsys.readouterr().err == ""


def test_a_module_that_is_edited_and_reloaded_is_probed_anew(load: Import) -> None:
    module = load(PLAIN)
    old = module.f
    with probing("f > y", env=vars(module)).values() as seen:
        module.f(1)
    edit(module, EDITS["a constant"] + "# another size\n")
    importlib.reload(module)
    with probing("f > y", env=vars(module)).values() as seen:
        assert module.f(1) == 3
    assert seen == [{"y": 3}]
    with probing("f > y", env={"f": old}).values() as seen:
        assert old(1) == 2
    assert seen == [{"y": 2}]


def test_a_script_may_be_edited_while_it_runs(place: Place) -> None:
    script = """
        import traceback
        def step(x):
            lr = 0.5
            y = x * lr
            z = y
            return z
        for k in range(4):
            if k == 1:
                t = open(__file__).read()
                open(__file__, "w").write(t.replace("lr = 0.5", "lr = 0.7").replace("z = y", "z = y + 0"))
                try: 1 / 0
                except ZeroDivisionError: traceback.format_exc()
            print(step(10))
        """
    place.write(
        main=script,
        voirfile="""
        def instrument_p(ov):
            def fails(event, seen=[]):
                seen.append(event)
                if len(seen) == 3: raise ValueError("a bug")
            ov.probe("//step > y").subscribe(fails)
            ov.probe("//step > z").count().print("{} events")
        """,
    )
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.out) == (0, "5.0\n" * 4 + "4 events\n")
    assert ended.err.count("ValueError: a bug") == 1
    assert "Traceback" not in ended.err


f, g, same = lambda x: x + 1, lambda x: x + 2, lambda x: (lambda y: x + y)(x)


CASES = {
    "lambda n: n if n else 0": [3],
    "lambda n: (lambda n: n + 1)(n + 1)": [3],
    "(lambda *fs: fs[1])(lambda n: n, lambda n: n)": [3],
    "(lambda k: lambda n: n + k)(1)": [3],
    "(lambda n: (lambda n: n + n))(1)": [3],
    "lambda n: [n for n in [n]]": [3],
    "lambda n: (\n    n\n    + 1)": [3],
    "lambda n: None": [3],
    "lambda n, k=(lambda n: 1): k(n)": [3],
}


@pytest.mark.parametrize("source", CASES)
def test_lambdas_in_lambdas_are_told_apart(load: Import, source: str) -> None:
    module = load(f"f, other = {source}, lambda n: 5\n")
    plain = repr(module.f(3))[:9]
    with probing("f > n", env=vars(module)).values() as seen:
        assert (repr(module.f(3))[:9], module.other(3)) == (plain, 5)
    assert [event["n"] for event in seen] == CASES[source]


@pytest.mark.parametrize("name", ["f", "g", "same"])
def test_lambdas_of_a_line_are_told_apart(name: str) -> None:
    plain = f(1), g(1), same(1)
    with probing(f"{name} > x").values() as seen:
        assert (f(1), g(1), same(1)) == plain == (2, 3, 2)
    assert seen == [{"x": 1}]


VOIRFILE = 'def instrument_p(ov):\n    ov.probe("//f > y").subscribe(print)\n'


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfdef f(v):\n    y = v\n    return y\nprint(f(1))\n",
        b"# -*- coding: latin-1 -*-\ndef f(\xe9):\n    y = \xe9\n    return y\nprint(f(1))\n",
        b"\xef\xbb\xbfprint('late')\ndef f(v):\n    y = v\n    return y\nprint(f(1))\n",
        b"print('late')\r\ndef f(v):\r\n    y = v\r\n    return y\r\nprint(f(1))\r\n",
        b"print('a form feed')\n\x0c\ndef f(v):\n    y = v\n    return y\nprint(f(1))\n",
    ],
)
def test_whatever_a_script_s_bytes_are(place: Place, source: bytes) -> None:
    (place.folder / "main.py").write_bytes(source)
    place.write(voirfile=VOIRFILE)
    plain, ended = place.python("main.py"), place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.replace("{'y': 1}\n", "") == plain.out
    assert "{'y': 1}" in ended.out


def test_the_compiler_s_warnings_come_once(place: Place) -> None:
    place.write(
        main="""
        print("start")
        import mod
        def f(v):
            y = 1
            assert (v, "text")
            return y is 1
        f(1)
        mod.g(1)
        """,
        mod="def g(v):\n    w = 1\n    return w is 1\n",
        voirfile=VOIRFILE + '    ov.probe("/mod/g > w").subscribe(lambda e: None)\n',
    )
    place.python("-W", "ignore", "-m", "py_compile", "mod.py")
    plain, ended = place.python("main.py"), place.voirkit("--quiet", "main.py")
    assert (plain.err.count("SyntaxWarning"), ended.err) == (2, plain.err)


def test_the_compiler_s_warnings_come_once_without_bytecode(place: Place) -> None:
    place.write(
        main="print('start')\nimport mod\nmod.g(1)\n",
        mod="def g(v):\n    w = 1\n    return w is 1\n",
        voirfile='def instrument_p(ov):\n    ov.probe("/mod/g > w").subscribe(lambda e: None)\n',
    )
    plain = place.python("-B", "main.py")
    ended = place.run(
        sys.executable, "-B", "-m", "voirkit", "--run-dir", "run", "--quiet", "main.py"
    )
    assert "SyntaxWarning" in plain.err
    assert ended.err == plain.err


def test_a_function_that_the_compiler_warns_of_can_be_probed_where_warnings_are_errors(
    load: Import,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load("def f(x):\n    y = x\n    return y is 1\n")
    with probing("f > y", env=vars(module)).values() as seen:
        module.f(1)
    assert seen == [{"y": 1}]


def test_a_warning_that_was_given_once_is_not_given_again() -> None:
    def warns() -> None:
        text = "once"
        warnings.warn(text, UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("default")
        warns()
        with probing("warns > text").values():
            warns()
        warns()
    assert len(given) == 1


def test_a_function_with_asserts_that_pytest_has_rewritten_is_refused_with_what_to_do() -> None:
    def helper(v: int) -> None:
        w = v
        assert w == 3, "a text"

    with pytest.raises(
        SelectorError,
        match=r"pytest has rewritten its assert statements\. Run pytest with --assert=plain",
    ):
        probing("helper > w").__enter__()
    with pytest.raises(AssertionError, match="assert 4 == 3"):
        helper(4)
