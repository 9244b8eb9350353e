"""Probes on the top level of the script and of modules: what they see, what they refuse, and that nothing else changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse

if TYPE_CHECKING:
    from conftest import Place

SCRIPT = '''
    """The script's own."""
    from __future__ import annotations
    import sys
    rate = 0.5
    total = 0.0

    def double(x):
        y = 2 * x
        return y

    for n, x in enumerate([1.0, 2.0]):
        loss = double(x) * rate
        total += loss

    class Point:
        x: int = 3

    if __name__ == "__main__":
        with open(__file__) as file:
            for batch in [7, 8]:
                last: int = batch
    settings = Point()
    settings.depth = 4
    print(json) if "json" in globals() else print(__doc__, total, sorted(__annotations__), sorted(globals()))
'''


@pytest.fixture
def seen(place: Place) -> Callable[..., Any]:
    """The events of probes in a run of the script, by selector; and the run."""

    def run(*selectors: str, script: str = SCRIPT, more: str = "") -> tuple[list[list[Any]], Any]:
        lines = [
            f"    ov.probe({s!r}).subscribe(lambda event, n={n}: out(n, event))"
            for n, s in enumerate(selectors)
        ]
        out = "import json\ndef out(n, event):\n    print(json.dumps([n, event], default=str), file=open('events', 'a'))\n"
        place.write(
            {
                "voirfile.py": f"{out}def instrument_p(ov):\n    pass\n"
                + "\n".join(lines)
                + f"\n{more}\n"
            },
            main=script,
        )
        ended = place.voirkit("main.py")
        path = place.folder / "events"
        events = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [
            [event for n, event in events if n == number] for number in range(len(selectors))
        ], ended

    return run


def test_variables_loops_and_what_stands_under_main_are_seen(
    seen: Callable[..., Any], place: Place
) -> None:
    events, ended = seen(
        "//<module> > loss",
        "// > total",
        "//<module>(x as batch) > #endloop_x as step",
        "//<module>(!#loop_batch as begin, !!#endloop_batch as end, batch)",
        "//<module> > last",
        "//<module> > file",
        "//<module> > rate",
        "//double > y",
        "//<module> > settings.depth",
        "//<module> > double",
    )
    loss, total, step, turns, last, file, rate, y, depth, defined = events
    assert loss == [{"loss": 1.0}, {"loss": 2.0}]
    assert total == [{"total": 0.0}, {"total": 1.0}, {"total": 3.0}]
    assert step == [{"batch": 1.0, "step": True}, {"batch": 2.0, "step": True}]
    assert [(e["$wrap"]["step"], e.get("batch")) for e in turns] == [
        ("begin", None),
        ("end", 7),
        ("begin", None),
        ("end", 8),
    ]
    assert last == [{"last": 7}, {"last": 8}]
    assert (len(file), len(defined)) == (1, 1)
    assert rate == [{"rate": 0.5}]
    assert y == [{"y": 2.0}, {"y": 4.0}]
    assert depth == [{"settings.depth": 4}]
    assert ended.code == 0
    assert ended.out == place.python("main.py").out
    assert ended.summary["warnings"] == []


def test_a_value_is_overridden(seen: Callable[..., Any]) -> None:
    _, ended = seen(more='    ov.probe("//<module> > rate", overridable=True).override(10.0)')
    assert ended.out.startswith("The script's own. 60.0")


def test_exceptions_show_the_scripts_own_lines(seen: Callable[..., Any], place: Place) -> None:
    script = "x = [1]\nfor i in x:\n    y = i\n    z = y / 0\n"
    _, ended = seen("//<module> > y", "//<module>(i) > z", "//<module> > #endloop_i", script=script)
    plain = place.python("main.py")
    assert ended.code == plain.code == 1
    assert plain.err.removeprefix("Traceback") in ended.err
    assert ended.out == plain.out


def test_pickling_and_children_are_as_ever(seen: Callable[..., Any], place: Place) -> None:
    script = """
        import multiprocessing, pickle
        size = int("3")
        class Box:
            def __init__(self): self.held = size
        def work(n):
            return n + size
        if __name__ == "__main__":
            box = pickle.loads(pickle.dumps(Box()))
            for how in ("fork", "spawn"):
                with multiprocessing.get_context(how).Pool(1) as pool:
                    answers = pool.map(work, [1, 2])
            print(box.held, answers, work.__code__.co_consts, __name__)
    """
    (sizes, answers), ended = seen("//<module> > size", "//<module> > answers", script=script)
    assert sizes == [{"size": 3}]  # in the script itself; a process that is spawned only imports it
    assert answers == [{"answers": [4, 5]}] * 2
    assert (ended.code, ended.out) == (0, place.python("main.py").out)
    assert ended.summary["warnings"] == []


def test_modules_are_probed_as_they_are_imported_or_run(
    seen: Callable[..., Any], place: Place
) -> None:
    place.write(
        {
            "pkg/__init__.py": "",
            "pkg/mod.py": "size = 2\nfor i in range(size):\n    y = i * size\nprint(y)\n",
        }
    )
    (y, size), ended = seen(
        "/pkg.mod/<module> > y", "/pkg.mod/<module> > size", script="import pkg.mod"
    )
    assert (y, size) == ([{"y": 0}, {"y": 2}], [{"size": 2}])
    assert (ended.code, ended.out, ended.summary["warnings"]) == (0, "2\n", [])
    place.write(
        {
            "voirfile.py": "def instrument_p(ov):\n    ov.probe('//<module> > y')['y'].map(print).accum()\n"
        }
    )
    assert place.voirkit("--force", "-m", "pkg.mod").out == "0\n2\n2\n"


def test_what_is_set_while_the_script_is_loaded_is_refused_to_a_later_probe(place: Place) -> None:
    place.write(
        {
            "voirfile.py": "def instrument_p(ov):\n    yield ov.phases.load_script\n    ov.probe('//<module> > a')\n"
        },
        main="a = 1\nprint(a)\n",
    )
    ended = place.voirkit("main.py")
    assert ended.code == 2
    assert "has been set, while the script was loaded" in ended.err
    assert "before `yield ov.phases.load_script`" in ended.err


def test_nothing_of_the_script_is_woven_without_such_a_probe(place: Place) -> None:
    main = "import sys\ndef f():\n    x = 1\nfor i in [1]:\n    f()\nprint(sys._getframe().f_code.co_consts)\n"
    place.write(
        {
            "voirfile.py": "def instrument_p(ov):\n    ov.probe('//f > x').subscribe(lambda e: None)\n"
        },
        main=main,
    )
    assert "tap" not in place.voirkit("main.py").out


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (
            "//<module> > los",
            "the top level of main.py has no variable 'los'.\n  Its variables: loss, n, x.  Did you mean 'loss'?",
        ),
        ("//<module>(n) > #endloop_m", "the top level of main.py has no 'for' loop over 'm'."),
        ("//<module> > f", "the top level of main.py has no variable 'f'."),
    ],
)
def test_what_is_not_there_is_an_error_before_the_script_runs(
    place: Place, selector: str, said: str
) -> None:
    place.write(
        {"voirfile.py": f"def instrument_p(ov):\n    ov.probe({selector!r})\n"},
        main="for n in [1]:\n    loss = x = n\nprint(1)\n",
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("//<module>", "nothing to observe"),
        ("//<module>() as result", "has no '#value'"),
        ("//<module> > #enter", "has no '#enter'"),
        ("//<module>(x)", "needs a focus"),
        ("//<module>(x) > //f > y", "make a probe for each"),
        ("<module> > x", "Did you mean '//<module>'?"),
        ("//f/<module> > x", "stands alone"),
        ("//<modul> > x", "'<' stands only in '//<module>'"),
    ],
)
def test_what_has_no_meaning_at_the_top_level_is_refused(selector: str, said: str) -> None:
    with pytest.raises(SelectorError, match=re.escape(said)):
        parse(selector, "voirfile.py:1")


def test_the_short_form_means_the_same() -> None:
    assert (
        parse("// > x", "").focus.path
        == parse("//<module> > x", "").focus.path
        == parse("/__main__/<module> > x", "").focus.path
    )


def test_a_module_that_has_run_is_refused() -> None:
    from voirkit.probes import probing

    with pytest.raises(SelectorError, match="has run already"), probing("/json/<module> > dumps"):
        pass
