"""``--calls`` in all kinds of runs: how it is asked for, where it begins, samples, workers, ranks, and what torch's compilers follow."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from calling import FUNCTIONS, MAIN, NET, TRAINING, calls, named, place, traced

pytestmark = pytest.mark.long

LOOK = "def look(x=None): return x\n"
USER = "import mine\nmine.look(1)\nprint('ran')\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--calls", "main.py"],
        ["--calls", "mine", "main.py"],
        ["--calls=mine", "main.py"],
        ["--calls", "mine,colorsys", "--", "main.py"],
    ],
)
def test_the_word_after_the_flag_is_what_to_record_unless_it_is_the_script(
    tmp_path: Path, words: list[str]
) -> None:
    ended = place(tmp_path, USER, mine=LOOK).voirkit("--quiet", *words)
    assert (ended.code, ended.out) == (0, "ran\n")
    recorded = (ended.summary["calls"] or {}).get("events", 0)
    assert recorded == (1 if any("mine" in word for word in words) else 0)


def test_it_works_with_a_module_as_the_script(tmp_path: Path) -> None:
    where = place(tmp_path, USER, mine=LOOK)
    ended = where.voirkit("--quiet", "--calls", "mine", "-m", "main")
    assert (ended.code, ended.out) == (0, "ran\n")
    assert [call.name for call in calls(where)] == ["mine.look"]


def test_a_script_without_suffix_is_not_taken_for_a_module(tmp_path: Path) -> None:
    where = place(tmp_path, "", mine=LOOK).write({"train": USER})
    ended = where.voirkit("--quiet", "--calls", "train")
    assert (ended.code, ended.out) == (0, "ran\n")


def test_a_module_that_is_not_there_is_told_before_the_script_starts(tmp_path: Path) -> None:
    ended = place(tmp_path, USER, mine=LOOK).voirkit("--calls", "no_such_module_here", "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "no_such_module_here" in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", [["--calls="], ["--calls", ","], ["--calls=, "], ["--calls=", "--calls-list"]]
)
def test_a_list_that_names_nothing_is_not_the_default_list(
    tmp_path: Path, words: list[str]
) -> None:
    ended = place(tmp_path, USER, mine=LOOK).voirkit(*words, "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "it names nothing to record" in ended.err
    assert "voirkit --calls SCRIPT" in ended.err


def test_a_name_that_a_module_does_not_have_is_told_at_the_end(tmp_path: Path) -> None:
    ended = place(tmp_path, USER, mine=LOOK).voirkit("--quiet", "--calls", "mine.lock", "main.py")
    assert ended.code == 0
    assert "--calls mine.lock: nothing of that name" in ended.err


def test_nothing_is_recorded_of_the_imports_that_a_script_begins_with(tmp_path: Path) -> None:
    text = "import mine, other\n\ndef main():\n    mine.look(2)\n\nmain()\n"
    where = place(tmp_path, text, mine=LOOK, other="import mine\nmine.look(1)\n")
    traced(where, "--calls=mine")
    assert [call.arguments["args"] for call in calls(where)] == [[2]]


def test_a_module_that_is_imported_late_is_recorded_from_then_on(tmp_path: Path) -> None:
    text = "def main():\n    import pack\n    from pack import late\n    late.look(1)\n    pack.early(2)\n\nmain()\n"
    where = place(tmp_path, text).write(
        {"pack/__init__.py": "def early(x): pass\nearly(0)\n", "pack/late.py": LOOK}
    )
    traced(where, "--calls=pack")
    assert [call.name for call in calls(where)] == ["pack.late.look", "pack.early"]


def test_the_list_says_what_would_be_recorded_and_runs_nothing(tmp_path: Path) -> None:
    module = "def look(): pass\ndef _private(): pass\nclass Thing:\n    def work(self): pass\n    @property\n    def size(self): return 1\n"
    where = place(tmp_path, "print('ran')", mine=module)
    for words in (["--calls", "mine", "--calls-list", "main.py"], ["--calls-list", "--calls=mine"]):
        ended = where.voirkit(*words)
        assert ended.code == 0
    assert ended.out == "mine\n  Thing.work\n  look\n"
    assert "2 functions would be recorded, 0 cannot be" in ended.err
    assert not (tmp_path / "run").exists()


def test_the_summary_says_how_many_calls_and_what_was_asked_for(tmp_path: Path) -> None:
    ended = traced(place(tmp_path, USER, mine=LOOK), "--calls=mine")
    said = ended.summary["calls"]
    assert (said["asked"], said["watched"], said["events"], said["skipped"]) == (["mine"], 1, 1, {})
    assert ended.summary["overhead"]["events"] >= 1


def test_without_the_flag_nothing_is_loaded_for_it(tmp_path: Path) -> None:
    text = "import sys\nprint(sorted(name for name in sys.modules if name.startswith('voirkit_instruments.calls.')))\n"
    ended = place(tmp_path, text).voirkit("--quiet", "main.py")
    assert ended.out == "[]\n"
    assert ended.summary["calls"] is None


def test_functions_of_the_script_are_recorded_wherever_they_are_defined(tmp_path: Path) -> None:
    text = """
    'of the script'
    def first(x): return x
    number = len("seed")
    def second(x): return first(x)
    class Net:
        def fit(self): return second(1)
    'no docstring'
    Net().fit()
    def third(x): return x
    if __name__ == "__main__":
        third(2)
        print(__doc__, number)
    """
    where = place(tmp_path, text)
    assert traced(where, "--calls=__main__").out == "of the script 4\n"
    assert [call.name for call in calls(where)] == [
        f"__main__.{name}" for name in ("Net.fit", "second", "first", "third")
    ]


@pytest.mark.torch
def test_of_many_steps_those_are_recorded_that_are_asked_for(tmp_path: Path) -> None:
    where = place(tmp_path, FUNCTIONS, NET, MAIN.replace("main()", "main(10)"))
    traced(where, "--calls=torch.nn.functional", "--calls-every=4", "--calls-warmup=2")
    assert (
        len(named(calls(where), "torch.nn.functional.cross_entropy")) == 2 + 2
    )  # of 0 and 1, which are warm-up, and of 2 and 6


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader_record_their_own_calls(tmp_path: Path, start: str) -> None:
    text = f"""
    import torch, mine

    class Items(torch.utils.data.Dataset):
        def __len__(self): return 6
        def __getitem__(self, i): return mine.look(i)

    if __name__ == "__main__":
        for batch in torch.utils.data.DataLoader(Items(), batch_size=3, num_workers=2, multiprocessing_context="{start}"):
            print(batch.tolist())
    """
    where = place(tmp_path, text, mine=LOOK)
    assert traced(where, "--calls=mine").out == "[0, 1, 2]\n[3, 4, 5]\n"
    found = calls(where)
    assert sorted(call.arguments["args"][0] for call in found) == [0, 1, 2, 3, 4, 5]
    assert len({call.pid for call in found}) == 2


@pytest.mark.torch
def test_each_rank_of_torchrun_records_its_own(tmp_path: Path) -> None:
    where = place(
        tmp_path, "import os, torch, mine\nmine.look(int(os.environ['RANK']))\n", mine=LOOK
    )
    run = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--quiet",
        "--calls=mine",
        "main.py",
    ]
    ended = where.python(*run)
    assert ended.code == 0, ended.err
    assert sorted(call.arguments["args"] for call in calls(where)) == [[0], [1]]


@pytest.mark.torch
def test_what_torch_compile_jit_and_fx_follow_is_not_recorded_and_works(tmp_path: Path) -> None:
    text = """
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(2, 4)
    plain = net(x)
    for made in (
        torch.compile(net, backend="eager", fullgraph=True), torch.jit.trace(net, x), torch.jit.script(net), torch.fx.symbolic_trace(net),
    ):
        assert torch.equal(made(x), plain)
    print("same")
    """
    where = place(tmp_path, FUNCTIONS, text)
    ended = traced(where, "--calls")
    assert ended.out == "same\n"
    counts = Counter(call.name for call in calls(where))
    assert counts["torch.nn.modules.container.Sequential.__call__"] == 1
    assert counts["torch._dynamo.eval_frame.OptimizedModule.__call__"] == 1
    assert (
        counts["torch.nn.modules.linear.Linear.__call__"] == 2
    )  # in the module, and in the graph that torch.fx has made
    assert (
        counts["torch.fx.graph_module.GraphModule.__new__.<locals>.GraphModuleImpl.__call__"] == 1
    )
    texts = json.dumps([call.arguments for call in calls(where)])
    assert "FakeTensor" not in texts
    assert "fx.proxy" not in texts


@pytest.mark.torch
@pytest.mark.parametrize("asked", ["torch", "torch,torch.Tensor"])
def test_a_training_is_the_same_to_the_bit_with_all_of_torch_recorded(
    tmp_path: Path, asked: str
) -> None:
    where = place(tmp_path, *TRAINING)
    plain = where.python("main.py")
    ended = traced(where, f"--calls={asked}")
    assert (ended.out, ended.err) == (plain.out, plain.err)
    found = Counter(call.name for call in calls(where))
    assert found["torch.optim.sgd.sgd"] == found["torch.nn.modules.linear.Linear.forward"] / 2 == 3
    assert (found["torch.Tensor.view"] + found["torch.Tensor.item"] > 0) == ("Tensor" in asked)


@pytest.mark.torch
def test_operators_of_tensors_are_recorded_where_tensor_is_asked_for(tmp_path: Path) -> None:
    where = place(tmp_path, FUNCTIONS, "x = torch.ones(2)\ny = (x + 1) @ x - 2 * x\ny.add_(1)\n")
    traced(where, "--calls=torch.Tensor")
    assert [call.name.removeprefix("torch.Tensor.") for call in calls(where)] == [
        "__add__",
        "__matmul__",
        "__rmul__",
        "__sub__",
        "add_",
    ]


@pytest.mark.parametrize(("words", "out"), [((), "ran\n"), (("--calls-list",), "")])
def test_without_the_part_in_c_it_is_said_how_to_get_it_and_the_run_goes_on(
    tmp_path: Path, words: tuple[str, ...], out: str
) -> None:
    ended = place(tmp_path, USER, mine=LOOK).voirkit(
        "--quiet", "--calls=mine", *words, "main.py", env={"VOIRKIT_NO_EXTENSION": "1"}
    )
    assert (ended.code, ended.out) == (0, out)
    assert "--calls: no call can be recorded: that needs voirkit's part in C" in ended.err
    assert "pip install" in ended.err
    assert words or ended.summary["calls"] is None
