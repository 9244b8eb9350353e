"""``--calls``: which calls are recorded, with what arguments, results and exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import FUNCTIONS, TRAINING, calls, named, place, traced

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.long]

TENSOR = {"tensor": "torch.Tensor", "dtype": "float32", "device": "cpu", "grad": False}


def test_a_training_has_the_calls_of_the_default_list(tmp_path: Path) -> None:
    where = place(tmp_path, *TRAINING)
    traced(where, "--calls")
    found = calls(where)
    for name, times in {
        "__main__.Net.__call__": 3,
        "torch.nn.modules.linear.Linear.__call__": 6,
        "torch.nn.functional.linear": 6,
        "torch.nn.functional.relu": 3,
        "torch.nn.functional.cross_entropy": 3,
        "torch.Tensor.backward": 3,
        "torch.optim.sgd.SGD.step": 3,
        "torch.optim.optimizer.Optimizer.zero_grad": 3,
        "torch.optim.sgd.SGD.__init__": 1,
        "torch.utils.data.dataloader.DataLoader.__iter__": 1,
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__": 4,
    }.items():
        assert len(named(found, name)) == times, name


def test_a_call_says_what_its_arguments_and_its_result_were_and_never_a_value(
    tmp_path: Path,
) -> None:
    text = """
    x = nn.Parameter(torch.ones(3, 4))
    F.softmax(x.detach().double(), dim=-1)
    F.dropout(x, p=0.25, training=False)
    """
    where = place(tmp_path, FUNCTIONS, text)
    traced(where, "--calls")
    softmax, dropout = (
        named(calls(where), "torch.nn.functional.softmax")[0],
        named(calls(where), "torch.nn.functional.dropout")[0],
    )
    double = {**TENSOR, "dtype": "float64", "shape": [3, 4]}
    assert softmax.arguments in (
        {"args": [double], **by_name, "returns": double}
        for by_name in ({"kwargs": {"dim": -1}}, {"args": [double, -1]})
    )
    parameter = {**TENSOR, "tensor": "torch.nn.Parameter", "shape": [3, 4], "grad": True}
    assert dropout.arguments["args"][0] == parameter
    said = {
        **dropout.arguments.get("kwargs", {}),
        **dict(zip(("p", "training"), dropout.arguments["args"][1:], strict=False)),
    }
    assert said == {"p": 0.25, "training": False}


def test_the_ids_of_tensors_tell_what_went_from_one_call_to_the_next(tmp_path: Path) -> None:
    where = place(tmp_path, FUNCTIONS, "x = torch.ones(3)\ny = F.relu(x)\nz = F.relu(y)\n")
    traced(where, "--calls")
    first, second = named(calls(where), "torch.nn.functional.relu")
    assert first.operands["returns"] == second.operands["args.0"]
    assert first.operands["args.0"] != second.operands["args.0"]


def test_a_method_has_the_id_of_its_object(tmp_path: Path) -> None:
    where = place(tmp_path, *TRAINING)
    traced(where, "--calls")
    found = calls(where)
    steps = named(found, "torch.optim.sgd.SGD.step")
    assert (
        {call.object for call in steps}
        == {named(found, "torch.optim.sgd.SGD.__init__")[0].object}
        != {0}
    )
    assert all(call.arguments["bound"] for call in steps)
    assert steps[0].arguments["args"][0] == {"type": "torch.optim.sgd.SGD"}
    assert named(found, "torch.nn.functional.relu")[0].object == 0


def test_calls_lie_in_those_that_made_them(tmp_path: Path) -> None:
    where = place(tmp_path, *TRAINING)
    traced(where, "--calls")
    found = calls(where)
    for net in named(found, "__main__.Net.__call__"):
        inside = [
            call.name
            for call in found
            if call is not net and net.begin <= call.begin and call.end <= net.end
        ]
        assert inside == [
            "torch.nn.modules.linear.Linear.__call__", "torch.nn.functional.linear", "torch.nn.functional.relu",
            "torch.nn.modules.linear.Linear.__call__", "torch.nn.functional.linear",
        ]  # fmt: skip


def test_an_exception_is_recorded_and_goes_on_but_the_end_of_an_iterator_is_none(
    tmp_path: Path,
) -> None:
    text = """
    try:
        F.cross_entropy(torch.ones(2, 3), torch.ones(5, dtype=torch.long))
    except ValueError as exc:
        print(type(exc).__name__)
    list(torch.utils.data.DataLoader([1.0, 2.0]))
    """
    where = place(tmp_path, FUNCTIONS, text)
    assert traced(where, "--calls").out == "ValueError\n"
    found = calls(where)
    [failed] = named(found, "torch.nn.functional.cross_entropy")
    assert failed.arguments["error"] == "ValueError"
    assert "returns" not in failed.arguments
    last = named(found, "torch.utils.data.dataloader._BaseDataLoaderIter.__next__")[-1]
    assert "error" not in last.arguments


def test_functions_of_the_program_itself_are_recorded_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    module = """
    class Trainer:
        def __init__(self, lr): self.lr = lr
        def fit(self, *steps, **more): return [self._one(step) for step in steps]
        def _one(self, step): return step * self.lr
        @staticmethod
        def helper(text): return len(text)
        @classmethod
        def made(cls): return cls(0.5)
    def answer(question, *, loud=False): return 42
    """
    text = "def main():\n    from mine import trainer\n    t = trainer.Trainer.made()\n    t.fit(1, 2, note={'a': None})\n    t.helper('what is it?')\n    trainer.answer('yes', loud=True)\n\nmain()\n"
    where = place(tmp_path, text).write({"mine/__init__.py": "", "mine/trainer.py": module})
    traced(where, "--calls", "mine")
    found = calls(where)
    assert [call.name.removeprefix("mine.trainer.") for call in found] == [
        "Trainer.made",
        "Trainer.__init__",
        "Trainer.fit",
        "Trainer.helper",
        "answer",
    ]
    made, init, fit, helper, answer = (call.arguments for call in found)
    assert made["args"] == [{"type": "type"}]
    assert init["args"] == [{"type": "mine.trainer.Trainer"}, 0.5]
    assert fit["args"][1:] == [1, 2]
    assert fit["kwargs"] == {"note": {"type": "dict", "n": 1, "items": {"a": None}}}
    assert fit["returns"] == {"type": "list", "n": 2, "items": [0.5, 1.0]}
    assert helper == {"args": [{"type": "str", "n": 11}], "returns": 11}
    assert answer == {"args": ["yes"], "kwargs": {"loud": True}, "returns": 42}


def test_nothing_of_the_program_is_asked_what_it_is(tmp_path: Path) -> None:
    module = "def look(*things): return things[0]\n"
    text = """
    import mine

    class Sly(type):
        def __getattribute__(cls, name): raise SystemExit(f"the type was asked for {name}")
        def __instancecheck__(cls, other): raise SystemExit("was asked")
    class Thing(metaclass=Sly):
        def __getattribute__(self, name): raise SystemExit(f"was asked for {name}")
        def __repr__(self): raise SystemExit("repr")
        def __len__(self): raise SystemExit("len")
        def __eq__(self, other): raise SystemExit("eq")
        def __hash__(self): raise SystemExit("hash")
        def __bool__(self): raise SystemExit("bool")
        def __index__(self): raise SystemExit("index")
    class Text(str):
        def __str__(self): raise SystemExit("str")
    class Items(list):
        def __iter__(self): raise SystemExit("iter")
        def __getitem__(self, i): raise SystemExit("item")

    for _ in range(2):
        mine.look(Thing(), Text("a"), Items([Thing()]), {"k": Thing()})
    print("unasked")
    """
    where = place(tmp_path, text, mine=module)
    assert traced(where, "--calls=mine").out == "unasked\n"
    first, second = calls(where)
    assert first.arguments == second.arguments
    assert first.arguments["args"][2] == {
        "type": "__main__.Items",
        "n": 1,
        "items": [{"type": "__main__.Thing"}],
    }


def test_a_tensor_of_a_class_of_the_programs_is_named_and_not_read(tmp_path: Path) -> None:
    text = """
    import torch, mine

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            print("asked", getattr(function, "__name__", function))
            return super().__torch_function__(function, types, args, kwargs)

    mine.look(torch.ones(2).as_subclass(Watched))
    with torch.device("meta"):
        mine.look(torch.ones(2))
    """
    where = place(tmp_path, text, mine="def look(x): pass\n")
    assert traced(where, "--calls=mine").out == ""
    first, second = calls(where)
    assert first.arguments["args"] == [{"type": "__main__.Watched"}]
    assert second.arguments["args"] == [{**TENSOR, "shape": [2], "device": "meta"}]


def test_objects_live_no_longer_than_without(tmp_path: Path) -> None:
    text = """
    import gc, weakref
    import mine
    gc.disable()
    class Thing: pass
    thing = Thing()
    gone = weakref.ref(thing)
    mine.look(thing, [thing], key=thing)
    del thing
    print(gone() is None)
    def local():
        class Local: pass
        mine.look(Local())
        return weakref.ref(Local)
    kind = local()
    gc.collect()
    print(kind() is None)
    """
    where = place(tmp_path, text, mine="def look(*x, **y): pass\n")
    assert traced(where, "--calls=mine").out == "True\nTrue\n"


def test_numbers_that_are_ever_others_become_their_type(tmp_path: Path) -> None:
    where = place(
        tmp_path,
        "import mine\nfor i in range(500):\n    mine.look(i, 7, i / 3)\n",
        mine="def look(x, y, z): pass\n",
    )
    traced(where, "--calls=mine")
    found = calls(where)
    assert len(found) == 500
    assert found[3].arguments["args"] == [3, 7, 1.0]
    assert found[-1].arguments["args"] == [{"type": "int"}, 7, {"type": "float"}]


def test_every_thread_and_every_level_of_a_recursion_is_recorded(tmp_path: Path) -> None:
    module = "def deep(n): return 0 if n == 0 else 1 + deep(n - 1)\n"
    text = """
    import threading, mine
    threads = [threading.Thread(target=mine.deep, args=(20,)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """
    where = place(tmp_path, text, mine=module)
    traced(where, "--calls=mine")
    found = calls(where)
    assert len(found) == 4 * 21
    assert len({call.tid for call in found}) in (
        1,
        2,
        3,
        4,
    )  # the system gives ids of threads that have ended again
    outer = [call for call in found if call.arguments["args"] == [20]]
    assert [call.arguments["returns"] for call in outer] == [20] * 4


def test_a_killed_program_loses_no_call_that_ended(tmp_path: Path) -> None:
    text = "import os, signal, mine\nfor i in range(1000):\n    mine.look(1)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    where = place(tmp_path, text, mine="def look(x): pass\n")
    assert where.voirkit("--calls=mine", "main.py").code == -9
    assert len(calls(where)) == 1000


def test_a_child_that_is_forked_records_its_own_calls(tmp_path: Path) -> None:
    text = """
    import os, mine
    mine.look(1)
    mine.look(2)
    child = os.fork()
    for _ in range(3):
        mine.look(2)
    if child:
        os.waitpid(child, 0)
    else:
        os._exit(0)
    """
    where = place(tmp_path, text, mine="def look(x): pass\n")
    traced(where, "--calls=mine")
    found = calls(where)
    counts = {
        pid: [call.arguments["args"] for call in found if call.pid == pid]
        for pid in {call.pid for call in found}
    }
    assert sorted(counts.values(), key=len) == [[[2]] * 3, [[1], *[[2]] * 4]]
