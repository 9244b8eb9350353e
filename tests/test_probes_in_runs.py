"""Probes in a run: made in a voirfile, checked before the script starts, active while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Place

pytestmark = pytest.mark.long

TRAIN = """
import sys
LIMIT = 3


class Trainer:
    def run(self, x):
        total = x + 1
        return total


def train_epoch(batch):
    for step in range(LIMIT):
        loss = batch / (step + 1)
    return loss


if __name__ == "__main__":
    print(train_epoch(6), Trainer().run(2))
"""


def probing(selector: str, then: str = ".print()") -> str:
    return f"def instrument_x(ov):\n    ov.probe({selector!r}){then}\n"


@pytest.mark.parametrize(
    ("selector", "events"),
    [
        ("//train_epoch > loss", [{"loss": 6.0}, {"loss": 3.0}, {"loss": 2.0}]),
        ("//train_epoch(batch) > #endloop_step as done", [{"batch": 6, "done": True}] * 3),
        ("//train_epoch() as result", [{"result": 2.0}]),
        ("//Trainer/run(x) > total", [{"x": 2, "total": 3}]),
        ("/__main__/train_epoch > batch", [{"batch": 6}]),
    ],
)
def test_events_of_absolute_references(place: Place, selector: str, events: list[Any]) -> None:
    place.write(main=TRAIN, voirfile=probing(selector))
    ended = place.voirkit("main.py")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[: len(events)] == [str(e) for e in events]
    assert ended.summary["probes"][0]["events"] == len(events)
    assert ended.summary["probes"][0]["where"].startswith("main.py:")


def test_names_in_scope_of_the_voirfile(place: Place) -> None:
    place.write(
        main="import tools\nprint(tools.double(4))\n",
        tools="def double(n):\n    twice = 2 * n\n    return twice\n",
        voirfile="import tools\n" + probing("tools.double > twice"),
    )
    assert place.voirkit("main.py").out == "{'twice': 8}\n8\n"


def test_functions_of_a_module_that_the_script_imports_late(place: Place) -> None:
    place.write(
        main="def main():\n    import tools\n    return tools.double(4)\nprint('start')\nprint(main())\n",
        tools="def double(n):\n    twice = 2 * n\n    return twice\n",
        voirfile=probing("/tools/double > twice"),
    )
    assert place.voirkit("main.py").out == "start\n{'twice': 8}\n8\n"


@pytest.mark.parametrize(
    "text",
    [
        "print('work')\ndef f(x):\n    y = x\n    return y\nf(5)\n",
        "if True:\n    print('work')\n    def f(x):\n        y = x\n        return y\nf(5)\n",
        "import sys\nprint('work')\nclass A: pass\ndef g(): return 1\n'text'\ndef f(x):\n    y = x\n    return y\nf(5)\nprint(__doc__)\n",
        "def now(g):\n    print('work')\n    return g\n@now\ndef h(): pass\ndef f(x):\n    y = x\n    return y\nf(5)\n",
    ],
)
def test_functions_that_are_defined_after_work_has_started(place: Place, text: str) -> None:
    place.write(main=text, voirfile=probing("//f > y"))
    ended = place.voirkit("main.py")
    assert "{'y': 5}" in ended.out, ended.err
    plain = place.python("main.py")
    assert ended.out.replace("{'y': 5}\n", "") == plain.out


def test_probes_are_active_from_the_end_of_load_script_to_the_end_of_run_script(
    place: Place,
) -> None:
    place.write(
        main=TRAIN,
        voirfile="""
        import sys
        def instrument_x(ov):
            seen = ov.probe("//Trainer/run > total")["total"].accum()
            yield ov.phases.load_script(priority=-1)
            run = vars(sys.modules["__main__"])["Trainer"]().run
            run(10)
            yield ov.phases.run_script
            run(20)
            print(seen)
        """,
    )
    assert place.voirkit("main.py").out.endswith("[11, 3]\n")


def test_a_probe_may_be_made_after_load_script(place: Place) -> None:
    place.write(
        main=TRAIN,
        voirfile="def instrument_x(ov):\n    yield ov.phases.load_script\n    ov.probe('//Trainer/run > total').print()\n",
    )
    assert "{'total': 3}" in place.voirkit("main.py").out


def test_values_given_by_a_probe_are_given(place: Place) -> None:
    place.write(main=TRAIN, voirfile=probing("//train_epoch > loss", ".give()"))
    summary = place.voirkit("main.py").summary
    assert summary["given"] == {"loss": 3}
    assert summary["loss"] == {
        "first": 6.0,
        "last": 2.0,
        "n": 3,
        "not_finite": None,
        "curve": [[0, 6.0], [1, 3.0], [2, 2.0]],
    }


def test_reductions_of_a_probe_come_out_before_finalize_ends(place: Place) -> None:
    place.write(
        main=TRAIN,
        voirfile="""
        def instrument_x(ov):
            low = ov.probe("//train_epoch > loss")["loss"].min().accum()
            yield ov.phases.finalize
            print(low)
        """,
    )
    assert place.voirkit("main.py").out.endswith("[2.0]\n")


def test_a_value_can_be_replaced(place: Place) -> None:
    place.write(
        main=TRAIN,
        voirfile="def instrument_x(ov):\n    ov.probe('//Trainer/run(x) > total', overridable=True).koverride(lambda x, total: 100 * x)\n",
    )
    assert place.voirkit("main.py").out == "2.0 200\n"


def test_a_probe_that_never_fired_is_told_at_the_end(place: Place) -> None:
    place.write(
        main=TRAIN.replace("Trainer().run(2)", "0"), voirfile=probing("//Trainer/run > total")
    )
    err = place.voirkit("main.py").err
    assert "never fired" in err
    assert "//Trainer/run > total" in err


def test_a_subscriber_that_raises_names_the_probe_and_the_line(place: Place) -> None:
    place.write(
        main=TRAIN,
        voirfile="def instrument_x(ov):\n    ov.probe('//train_epoch > loss')['loss'].subscribe(lambda x: 1 / 0)\n",
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "2.0 3\n")
    assert ended.err.count("ZeroDivisionError") == 1
    assert "//train_epoch > loss" in ended.err
    assert "voirfile.py:2" in ended.err


WRONG = {
    "//train_epoch > los": [
        "train_epoch (main.py:12)",
        "'los'",
        "Did you mean 'loss'?",
        "voirfile.py:2",
    ],
    "//train_epok > loss": ["train_epok", "train_epoch"],
    "//train_epoch(bath) > loss": ["bath", "batch"],
    "//Trainer/runn > total": ["runn", "run"],
    "//train_epoch > #loop_stepp": ["stepp", "step"],
    "//LIMIT > x": ["LIMIT", "main.py:3"],
    "//train_epoch( > loss": ["//train_epoch( > loss"],
    "loss": ["loss"],
    "* > loss": ["*"],
    "": ["selector"],
    "/no_such_module/f > x": ["no_such_module"],
    "train_epoch > loss": ["train_epoch", "//train_epoch"],
}


@pytest.mark.parametrize("when", ["", "    yield ov.phases.load_script\n"])
@pytest.mark.parametrize("selector", WRONG)
def test_a_selector_that_can_not_match_is_refused_before_the_script_starts(
    place: Place, selector: str, when: str
) -> None:
    place.write(main=TRAIN.replace("import sys", "import sys\nprint") + "print('started')\n")
    place.write(voirfile=f"def instrument_x(ov):\n{when}    ov.probe({selector!r}).print()\n")
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    if not when:
        assert not (place.folder / "run").exists()
    for word in WRONG[selector]:
        word = word.replace("main.py:12", "main.py:13").replace("main.py:3", "main.py:4")
        assert (word.replace("voirfile.py:2", "voirfile.py:3") if when else word) in ended.err


def test_probes_outside_a_run() -> None:
    from voirkit import global_probe, probing, refstring

    def f(x: int) -> int:
        y = x + 1
        return y

    with probing("f > y").values() as seen:
        f(1)
    assert seen == [{"y": 2}]
    probe = global_probe("f > x")
    xs = probe["x"].accum()
    f(5)
    probe.deactivate()
    f(6)
    assert xs == [5]
    assert (
        refstring(test_a_value_can_be_replaced)
        == "/test_probes_in_runs/test_a_value_can_be_replaced"
    )


def test_the_operators_of_streams_can_be_used_on_a_probe(place: Place) -> None:
    place.write(
        main=TRAIN,
        voirfile=probing(
            "//train_epoch(batch) > loss",
            ".where('loss').kmap(twice=lambda loss: 2 * loss)['twice'].max().print()",
        ),
    )
    assert "12.0" in place.voirkit("main.py").out
