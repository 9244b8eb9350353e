"""``--format traincheck``: what stands in its lines. That the real tools read them is shown by ``test_traincheck``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from conftest import Ended, Place
from recorded import record

from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING
from voirkit_instruments.traincheck import export as traincheck

# Words in which the programs below record what --calls and --parameters do.
WORDS = """
from voirkit.trace import names as _names
_names._plain = lambda value: value
TENSOR = {"tensor": "torch.Tensor", "dtype": "float32", "shape": [4, 8], "device": "cpu", "grad": True}
ADAM = {"type": "torch.optim.adam.Adam"}
def call(category, name, start, end, object=0, **args):
    if object:
        args["bound"] = True
    span(category, name, NOW + start * US, NOW + end * US, ("object", object), "call", **args)
def look(category, name, start, end=None, key="flags", value=0, **args):
    span(category, name, NOW + start * US, NOW + (start if end is None else end) * US, (key, value), "parameter", **args)
def figure(category, name, at, value):
    import struct
    look(category, name, at, key="figure", value=struct.unpack("<q", struct.pack("<d", value))[0])
def step(n, start, end, calls=True):
    if calls:
        call("torch.optim.adam", "Adam.step", start - 1, end + 1, 77, args=[ADAM])
    look("step", "optimizer", start, end, "n", n, optimizer=0, **{"class": "Adam"})
def zero_grad(n, start, end):
    call("torch.optim.optimizer", "Optimizer.zero_grad", start - 1, end + 1, 77, args=[ADAM])
    look("zero_grad", "optimizer", start, end, "n", n, optimizer=0, **{"class": "Adam"})
def seen(name, at, shape="2,3"):
    look("seen", name, at, key="id", value=5, shape=shape, dtype="float32", device="cpu", requires_grad=True, optimizer=0, group=0, at=0)
"""


def export(place: Place, body: str) -> Ended:
    record(place.folder / "run", WORDS + dedent(body))
    return place.python("-m", "voirkit", "export", "run", "--format", "traincheck", "-o", "out")


def lines(place: Place, body: str) -> list[dict[str, Any]]:
    """The lines of the export of what a program recorded; every one of them strict JSON."""
    record(place.folder / "run", WORDS + dedent(body))
    (place.folder / "out").mkdir()
    with open_run(place.folder / "run") as run:
        traincheck.write(run, EVERYTHING, str(place.folder / "out"))
    return list(read(place.folder / "out"))


def read(folder: Path) -> Iterator[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    for path in sorted(folder.iterdir()):
        assert path.name.startswith("trace_")
        yield from (
            json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()
        )


def pairs(found: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The two lines of each call, in the order of entries; checked to be what TrainCheck asserts of them."""
    opened: dict[str, dict[str, Any]] = {}
    closed: dict[str, dict[str, Any]] = {}
    stacks: dict[int, list[str]] = {}
    for line in found:
        which = line.get("func_call_id")
        if line["type"] == "function_call (pre)":
            assert which not in opened
            opened[which] = line
            stacks.setdefault(line["thread_id"], []).append(which)
        elif which is not None:
            assert which in opened
            assert which not in closed
            assert stacks[line["thread_id"]].pop() == which, "calls of a thread lie in one another"
            closed[which] = line
    assert opened.keys() == closed.keys()
    assert all(first["time"] < second["time"] for first, second in pairwise(found))
    return [(opened[which], closed[which]) for which in opened]


def functions(found: list[dict[str, Any]]) -> list[str]:
    return [one["function"] for one, _ in pairs(found)]


def test_a_call_is_a_line_at_its_entry_and_one_at_its_exit(place: Place) -> None:
    body = 'call("torch.nn.modules.linear", "Linear.__call__", 5, 9, 7, args=[{"type": "torch.nn.modules.linear.Linear"}, TENSOR], kwargs={"k": 2}, returns=TENSOR)'
    tensor = {
        "dtype": "torch.float32",
        "is_cpu": True,
        "is_cuda": False,
        "ndim": 2,
        "requires_grad": True,
        "shape": [4, 8],
    }
    [(entry, exit_)] = pairs(lines(place, body))
    assert entry["function"] == exit_["function"] == "torch.nn.modules.linear.Linear.forward"
    assert entry["args"] == {
        "0": {"torch.nn.modules.linear.Linear": {}},
        "1": {"torch.FloatTensor": tensor},
    }
    assert entry["kwargs"] == {"k": {"int": 2}}
    assert (exit_["type"], exit_["return_values"]) == (
        "function_call (post)",
        {"torch.FloatTensor": tensor},
    )
    assert exit_["time"] - entry["time"] == 4000
    assert entry["is_bound_method"] is True
    assert isinstance(entry["obj_id"], int)
    assert entry["meta_vars"] == {"step": 0, "stage": "init", "rank": 0}


def test_functions_are_spelled_as_traincheck_spells_them(place: Place) -> None:
    found = lines(
        place,
        """
        call("torch.nn.functional", "relu", 0, 1)
        call("torch", "Tensor.backward", 2, 3)
        call("torch", "relu", 4, 5)
        call("torch", "compile", 6, 7)
        call("__main__", "Net.__call__", 8, 9, 7, args=[{"type": "__main__.Net"}])
        call("crops", "Crop.__call__", 10, 13, 8, args=[{"type": "crops.Crop"}])
        call("crops", "Crop.forward", 11, 12, 8, args=[{"type": "crops.Crop"}])
        """,
    )
    assert functions(found) == [
        "torch.nn.functional.relu", "torch._tensor.Tensor.backward", "torch._VariableFunctionsClass.relu", "torch.compile",
        "__main__.Net.forward", "crops.Crop.__call__", "crops.Crop.forward",
    ]  # fmt: skip


def test_null_is_null_and_a_tuple_is_a_list_of_values(place: Place) -> None:
    found = lines(
        place,
        """
        call("m", "f", 0, 1, args=[None, True, 1.5, "mean", {"type": "str", "n": 90}, {"type": "tuple", "n": 2, "items": [3, 4]},
            {"type": "list", "n": 20, "items": [1, 2]}, {"type": "list", "n": 1, "items": [TENSOR]}, {"type": "generator"}])
        call("m", "g", 2, 3, returns={"type": "tuple", "n": 2, "items": [1, None]})
        """,
    )
    (f, ended), (_, g) = pairs(found)
    assert list(f["args"].values()) == [
        {"NoneType": None}, {"bool": True}, {"float": 1.5}, {"str": "mean"}, {"str": {"n": 90}}, {"tuple": [3, 4]}, {"list": {"n": 20}},
        {"list": {"n": 1}}, {"generator": {}},
    ]  # fmt: skip
    assert ended["return_values"] == {"NoneType": None}
    assert g["return_values"] == [{"int": 1}, {"NoneType": None}]


def test_calls_that_take_turns_or_begin_together_lie_in_one_another(place: Place) -> None:
    found = lines(
        place,
        'call("m", "a", 0, 10)\ncall("m", "b", 5, 15)\ncall("m", "c", 0, 10)\ncall("m", "d", 12, 12)',
    )
    assert sorted(functions(found)) == ["m.a", "m.b", "m.c", "m.d"]


def test_what_raised_is_an_exception_unless_the_reader_would_end_at_it(place: Place) -> None:
    found = lines(
        place,
        """
        call("m", "f", 0, 1, error="ValueError")
        call("m", "Net.__call__", 2, 3, 7, returns=TENSOR)
        call("m", "Net.__call__", 4, 5, 7, error="RuntimeError")
        """,
    )
    (_, f), _, (_, net) = pairs(found)
    assert (f["type"], f["exception"]) == ("function_call (post) (exception)", "ValueError")
    assert (net["type"], net["exception"]) == ("function_call (post)", "RuntimeError")


def test_an_object_has_a_number_of_its_own_in_each_thread_and_life(place: Place) -> None:
    found = lines(
        place,
        """
        call("m", "A.__init__", 0, 3, 7)
        call("m", "Base.__init__", 1, 2, 7)
        call("m", "A.f", 4, 5, 7)
        other = threading.Thread(target=lambda: call("m", "A.f", 6, 7, 7))
        other.start()
        other.join()
        call("m", "A.__init__", 8, 9, 7)
        """,
    )
    first, base, same, other, again = [entry["obj_id"] for entry, _ in pairs(found)]
    assert first == base == same
    assert len({first, other, again}) == 3


def test_a_function_is_bound_or_not_in_all_its_calls(place: Place) -> None:
    found = lines(place, 'call("m", "A.f", 0, 1, 7)\ncall("m", "A.f", 2, 3)')
    assert [(entry["is_bound_method"], entry["obj_id"]) for entry, _ in pairs(found)] == [
        (False, None)
    ] * 2


TRAINING = """
call("torch.optim.adam", "Adam.__init__", 0, 1, 77, args=[ADAM])
for n in range(3):
    t = 100 * (n + 1)
    zero_grad(n, t, t + 10)
    call("torch", "Tensor.backward", t + 20, t + 30)
    step(n, t + 40, t + 50)
    if n == 0:
        for name in ("a", "b"):
            seen(name, t)
            look("state", name, t + 40, value=4 | 32)
            look("zeroed", name, t, value=1)
    figure("norm", "a", t + 40, 1.0 + n)
    figure("norm", "b", t + 40, 0.0 if n == 0 else 1.0)
    figure("grad_norm", "a", t + 40, 2.0 + n)
    look("digest", "a", t + 40, key="digest", value=1000 + n, of="crc32", bytes=24)
"""


def around(found: list[dict[str, Any]], leaf: str) -> list[list[tuple[str, int, int | None]]]:
    """What is said of parameters while a function is called, by call: (name, data, gradient)."""
    inside: dict[str, list[tuple[str, int, int | None]]] = {}
    going = None
    for line in found:
        if line.get("function", "").endswith(leaf):
            going = line["func_call_id"] if line["type"] == "function_call (pre)" else None
            inside.setdefault(line["func_call_id"], [])
        elif going is not None and line["type"] == "state_change":
            inside[going].append(
                (line["var_name"], line["attributes"]["data"], line["attributes"]["grad"])
            )
    return list(inside.values())


def test_data_changes_inside_the_step_and_the_gradient_before_it(place: Place) -> None:
    found = lines(place, TRAINING)
    pairs(found)
    steps = around(found, "Adam.step")
    assert [[name for name, _, _ in one] for one in steps] == [["a", "b"]] * 3
    before = {
        line["var_name"]: line["attributes"]
        for line in found
        if line["type"] == "state_change" and line["time"] < found[-1]["time"]
    }
    assert len({data for one in steps for name, data, _ in one if name == "a"}) == 3
    assert all(grad for one in steps for _, _, grad in one), (
        "the gradient is there, and not changed by the step"
    )
    assert before["a"]["shape"] == [2, 3]


def test_zero_grad_takes_the_gradient_away(place: Place) -> None:
    zeroed = around(lines(place, TRAINING), "zero_grad")
    assert zeroed[0] == []
    assert [[grad for _, _, grad in one] for one in zeroed[1:]] == [[None, None]] * 2


def test_of_two_ways_to_zero_a_gradient_the_first_is_written(place: Place) -> None:
    zeroed = around(lines(place, TRAINING + 'look("zeroed", "a", 300, value=2)'), "zero_grad")
    assert zeroed[1:] == [
        [("a", zeroed[1][0][1], None), ("b", zeroed[1][1][1], None)],
        [("b", zeroed[2][0][1], None)],
    ]


def test_numbers_of_tensors_have_both_signs_and_0_only_of_zeros(place: Place) -> None:
    found = [line for line in lines(place, TRAINING) if line["type"] == "state_change"]
    first = {line["var_name"]: line["attributes"]["data"] for line in reversed(found)}
    assert first["a"] > 0
    assert first["b"] == 0
    assert {
        line["attributes"]["data"] < 0
        for line in found
        if line["var_name"] == "b" and line["attributes"]["data"]
    } == {True}
    assert all(
        isinstance(line["attributes"][key], int | None)
        and abs(line["attributes"][key] or 0) < 2**53
        for line in found
        for key in ("data", "grad")
    )


def test_the_optimizer_names_its_parameters_where_it_is_made(place: Place) -> None:
    made, *later = [
        line for line in lines(place, TRAINING) if line["type"] == "function_call (pre)"
    ]
    assert made["function"] == "torch.optim.adam.Adam.__init__"
    assert made["proxy_obj_names"] == [["a", "torch.nn.Parameter"], ["b", "torch.nn.Parameter"]]
    assert {line["obj_id"] for line in later if "torch.optim" in line["function"]} == {
        made["obj_id"]
    }


def test_an_optimizer_that_was_made_unseen_is_made_before_its_first_call(place: Place) -> None:
    found = lines(
        place,
        TRAINING.replace('call("torch.optim.adam", "Adam.__init__", 0, 1, 77, args=[ADAM])', ""),
    )
    made = next(line for line in found if line["type"] == "function_call (pre)")
    assert made["function"] == "torch.optim.adam.Adam.__init__"
    assert [name for name, _ in made["proxy_obj_names"]] == ["a", "b"]
    pairs(found)


def test_parameters_are_written_where_calls_of_the_optimizer_are_not(place: Place) -> None:
    found = lines(
        place,
        'call("m", "f", 0, 400)\nstep(0, 10, 20, calls=False)\nseen("a", 10)\nlook("state", "a", 10, value=4 | 32)',
    )
    assert Counter(line["type"] for line in found)["state_change"] == 2
    pairs(found)


def test_ranks_stand_in_their_lines_and_processes_have_files_of_their_own(place: Place) -> None:
    record(place.folder / "run", WORDS + TRAINING, RANK="1")
    found = lines(place, TRAINING)
    assert {line["meta_vars"]["rank"] for line in found} == {0, 1}
    assert {line["process_id"] for line in found} == {1, 2}
    objects = [
        {line.get("obj_id") for line in found if line["process_id"] == pid} - {None}
        for pid in (1, 2)
    ]
    assert not objects[0] & objects[1]
    assert len(list((place.folder / "out").iterdir())) == 2
    changes = [line for line in found if line["type"] == "state_change"]
    values = [
        [line["attributes"] for line in changes if line["meta_vars"]["rank"] == rank]
        for rank in (0, 1)
    ]
    assert values[0] == values[1], "equal data has equal numbers in all ranks"


def test_in_runs_of_ranks_a_value_stands_in_one_line(place: Place) -> None:
    record(place.folder / "run", WORDS + TRAINING, RANK="1")
    found = [
        line["attributes"].get("data")
        for line in lines(place, TRAINING)
        if line.get("var_name") == "a" and line["meta_vars"]["rank"] == 1
    ]
    values = [value for value in found if value is not None]
    assert len(set(values)) == len(values) == 4


def test_a_run_without_calls_says_what_to_record(place: Place) -> None:
    ended = export(place, 'span("compute", "forward", NOW, NOW + US)')
    assert ended.code == 2
    assert "no record of calls, nor of parameters" in ended.err
    assert "voirkit --calls --parameters SCRIPT" in ended.err


def test_a_run_without_parameters_is_written_and_told_of(place: Place) -> None:
    ended = export(place, 'call("m", "f", 0, 1)')
    assert ended.code == 0
    assert "no record of parameters" in ended.err


def test_it_can_not_go_to_stdout(place: Place) -> None:
    record(place.folder / "run", WORDS + TRAINING)
    ended = place.python("-m", "voirkit", "export", "run", "--format", "traincheck", "-o", "-")
    assert (ended.code, ended.out) == (2, "")
    assert "folder" in ended.err
