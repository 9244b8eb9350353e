"""A program cannot tell that ``--calls torch`` sees its calls: same results, warnings, tracebacks, objects, and the same compiled graphs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.instruments.unchanged import (
    ALONE,
    COMPILED,
    NET,
    TOGETHER,
    environment,
    parts,
    run,
    write,
)

pytestmark = pytest.mark.long

pytest.importorskip("torch")
pytest.importorskip(
    "voirkit_instruments.calls._calls", reason="voirkit was installed without a C compiler"
)

EXAMPLES = Path(__file__).parents[2] / "examples"

PROGRAMS = {
    **TOGETHER,
    "what functions of torch look like": """
        import inspect, torch.nn.functional as F
        x = torch.ones(2)
        for f in torch.relu, torch.add, F.linear, F.relu, F.dropout, torch.Tensor.add, x.add, torch.Tensor.backward, torch.optim.Adam.step, x.relu:
            print(type(f).__name__, f.__name__, f.__qualname__, f.__doc__ and len(f.__doc__), callable(f), isinstance(f, type(F.relu)))
            for ask in inspect.signature, inspect.getsource, inspect.getfile, inspect.isfunction, inspect.isbuiltin, inspect.isroutine:
                try:
                    print(ask.__name__, ask(f))
                except Exception as exc:
                    print(ask.__name__, type(exc).__name__)
            try:
                print(pickle.loads(pickle.dumps(f)) == f, copy.deepcopy(f) == f, hash(f) == hash(f))
            except Exception as exc:
                print(type(exc).__name__)
        code = F.relu.__code__
        print(code.co_varnames, code.co_names, code.co_argcount, code.co_flags, code.co_firstlineno, code.co_nlocals, code.co_freevars)
        print(torch.relu is torch._C._VariableFunctions.relu, F.relu is nn.functional.relu, nn.Module.__call__ is nn.Module._wrapped_call_impl)
        """,
    "functions of functions": """
        import functools, torch.nn.functional as F
        from torch import overrides
        x = torch.linspace(-1, 1, 4)
        wrapped = functools.wraps(F.relu)(lambda x: F.relu(x) + 1)
        print(wrapped.__wrapped__ is F.relu, wrapped.__name__, wrapped(x), functools.partial(F.relu, inplace=False)(x))
        print(list(map(torch.relu, [x, x + 1])), sorted([x.sum(), x.max()], key=torch.Tensor.item), functools.reduce(torch.add, [x, x, x]))
        print(overrides.resolve_name(F.relu), overrides.resolve_name(torch.Tensor.add), F.relu in overrides.get_testing_overrides())
        print(torch.Tensor.add in overrides.get_overridable_functions()[torch.Tensor], overrides.is_tensor_method_or_property(torch.Tensor.add))
        dispatch = functools.singledispatch(F.relu)
        dispatch.register(int)(lambda n: n)
        print(dispatch(3), dispatch(x), F.max_pool1d(x[None], 2, return_indices=True), F.max_pool1d(x[None], 2))
        """,
    "operators and methods": """
        x = torch.linspace(-1, 1, 6).view(2, 3)
        print(x + 1, 2 - x, x @ x.T, -x, x > 0, x[0], x[:, 1:], 3 * x, x ** 2, abs(x), x == x, float(x.sum()), bool(x.any()), len(x))
        x += 1; x *= 2; x[0] = 5; x.add_(1, alpha=2); print(x, x.sum(dim=1, keepdim=True), x.mean(0), x.item if False else x.tolist())
        method = x.clamp; print(method(min=1), getattr(x, "view")(*(3, 2)), torch.Tensor.relu(x), x.max(1), list(x.unbind()), repr(x))
        y = x.detach().requires_grad_(); (y * y).sum().backward(); print(y.grad, y.is_leaf, y.grad_fn, (y * 1).grad_fn.name())
        """,
    "custom functions and extensions": """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x); return x * 2
            @staticmethod
            def backward(ctx, g):
                print("backward", ctx.saved_tensors[0].tolist()); return g * 2
        x = torch.ones(2, requires_grad=True)
        Double.apply(x).sum().backward(); print(x.grad)
        if hasattr(torch.library, "custom_op"):
            @torch.library.custom_op("mine::triple", mutates_args=())
            def triple(x: torch.Tensor) -> torch.Tensor:
                return x * 3
            print(triple(x.detach()), torch.ops.mine.triple(x.detach()))
        print(torch.ops.aten.relu(x), torch.ops.aten.relu.default(x))
        """,
    "who is called by whom": """
        import inspect, torch.nn.functional as F
        class Mine(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                print(func, [frame.function for frame in inspect.stack()[1:3]])
                return super().__torch_function__(func, types, args, kwargs or {})
        x = torch.ones(2, 2).as_subclass(Mine)
        F.relu(x); F.dropout(x, 0.5); F.linear(x, torch.ones(2, 2)); x.add(1); torch.relu(x) + 1; F.softmax(x)
        """,
    "a profiler and a debugger of the program's": """
        import cProfile, pstats, torch.nn.functional as F
        model, x = net().eval(), torch.ones(2, 4)
        def work():
            for _ in range(3):
                F.cross_entropy(F.relu(model[0](x)), torch.tensor([1, 2]))
                try: F.linear(x, torch.ones(3))
                except RuntimeError: pass
        profiler = cProfile.Profile(); profiler.runcall(work)
        stats = pstats.Stats(profiler).stats
        print(sorted((file.split("/")[-1], line, name, n[:2]) for (file, line, name), n in stats.items() if "cross_entropy" in name or "relu" in name or "work" in name))
        seen = []
        def note(frame, event, arg):
            seen.append((event, frame.f_code.co_name, frame.f_lineno)); return note
        sys.settrace(note); F.dropout(F.relu(x), 0.5, False); F.layer_norm(x, (4,)); sys.settrace(None)
        print(seen)
        """,
    "recursion": """
        sys.setrecursionlimit(3000)
        deep = nn.ReLU()
        for _ in range(200): deep = nn.Sequential(deep)
        print(deep(torch.ones(1)))
        nested = [torch.ones(1)]
        for _ in range(200): nested = [nested]
        from torch.utils import _pytree
        print(len(_pytree.tree_flatten(nested)[0]), torch.utils.data.default_collate([[[[1.0]]], [[[2.0]]]]))
        """,
    "graphs": """
        import torch.nn.functional as F
        class M(nn.Module):
            def __init__(self): super().__init__(); self.l = nn.Linear(3, 3); self.b = nn.BatchNorm1d(3)
            def forward(self, x): return F.relu(self.b(self.l(x))).add(1) + torch.sin(x)
        x = torch.ones(2, 3)
        print(torch.fx.symbolic_trace(M()).code)
        if hasattr(torch, "export"): print(str(torch.export.export(M().eval(), (x,)).graph))
        @torch.jit.script
        def f(x, n: int):
            return F.relu(x) + F.dropout(x, 0.5, False) + n
        print(f(x, 2), f.code, torch.jit.trace(M().eval(), x).code)
        from torch.fx.experimental.proxy_tensor import make_fx
        print(make_fx(lambda x: F.gelu(x).sum())(x).code)
        """,
    "checkpoints and profilers of torch": """
        from torch.utils.checkpoint import checkpoint
        model, x = net().eval(), torch.ones(1, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward(); print(x.grad)
        with torch.profiler.profile() as profile:
            model(x)
        print(sorted((e.key, e.count) for e in profile.key_averages() if e.key.startswith("aten::")))
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            print(model(x).dtype)
        """,
}  # fmt: skip


def with_calls(folder: Path, *flags: str, asked: str = "torch") -> tuple[int, str, str]:
    command = (
        sys.executable,
        "-m",
        "voirkit",
        "--quiet",
        f"--calls={asked}",
        *flags,
        "--run-dir",
        "run",
        "--force",
        "main.py",
    )
    return run(folder, *command, env={**environment("C"), "PYTHONWARNINGS": "default"})


def plainly(folder: Path) -> tuple[int, str, str]:
    return run(
        folder,
        sys.executable,
        "main.py",
        env={**environment("Python"), "PYTHONWARNINGS": "default"},
    )


def calls(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())["calls"]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("programs"), PROGRAMS)


@pytest.fixture(scope="module")
def under_python(folder: Path) -> dict[str, str]:
    return parts(plainly(folder), PROGRAMS)


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, str]:
    return parts(with_calls(folder), PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_does_the_same(under_python: dict[str, str], seen: dict[str, str], name: str) -> None:
    assert seen[name] == under_python[name]


@pytest.mark.parametrize("name", ALONE)
def test_does_the_same_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "main.py").write_text(dedent(NET) + dedent(ALONE[name]))
    assert with_calls(tmp_path) == plainly(tmp_path)


def _without_numbers(told: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--calls-every", "2")], ids=["always", "by steps"])
def test_torch_compile_makes_the_same_graphs_with_the_same_breaks(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "main.py").write_text(dedent(NET) + dedent(COMPILED))
    theirs, ours = plainly(tmp_path), with_calls(tmp_path, *flags)
    assert (theirs[0], ours[0]) == (0, 0), ours[2]
    python, voirkit = _without_numbers(theirs[1]), _without_numbers(ours[1])
    for name, (found, counted) in python.items():
        if sys.version_info[:2] == (3, 11) and counted["graph_break"]:
            # Functions have other code there: after a break dynamo looks at two more frames, and makes the same graphs.
            counted["frames"] = voirkit[name][1]["frames"]
        assert (name, *voirkit[name]) == (name, found, counted)


def _said(ended: tuple[int, str, str]) -> str:
    assert ended[0] == 0, ended[2]
    return re.sub(r"[0-9.]+ (s|items/s|img/s|ms)\b", "", ended[1])


# Options that make each example small.
SMALL = {
    "mlp": ("--epochs", "2", "--items", "1000"),
    "resnet": ("--size", "64", "--epochs", "1", "--batch-size", "8", "--limit", "8"),
    "sentiment": (
        "--steps",
        "40",
        "--sentences",
        "640",
        "--batch-size",
        "16",
        "--test-sentences",
        "64",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [("--parameters",), ("--calls-every", "3", "--calls-warmup", "2")], ids=" ".join
)
@pytest.mark.parametrize("example", SMALL)
def test_an_example_says_the_same_to_the_last_bit(
    tmp_path: Path, example: str, flags: tuple[str, ...]
) -> None:
    words = SMALL[example]
    if example == "resnet":
        words = (*words, "--data", str(tmp_path / "images"))
        making = (
            sys.executable,
            str(EXAMPLES / "resnet" / "make_images.py"),
            "--data",
            "images",
            "--count",
            "64",
        )
        made = run(tmp_path, *making, env=environment("Python"))
        assert made[0] == 0, made[2]
    shutil.copytree(
        EXAMPLES / example,
        tmp_path / "there",
        ignore=shutil.ignore_patterns("voirkit-runs", "voirfile.py"),
    )
    there = tmp_path / "there"
    (there / "main.py").rename(there / "example.py")
    (there / "main.py").write_text(dedent(f"""
        import sys, runpy, torch
        torch.set_num_threads(1)
        losses, of = [], torch.Tensor.backward
        item = torch.Tensor.item
        sys.argv[1:] = {words!r}
        torch.manual_seed(0)
        backward = torch.autograd.backward
        def noted(tensors, *args, **kwargs):
            losses.append(item(tensors if isinstance(tensors, torch.Tensor) else tensors[0]).hex())
            return backward(tensors, *args, **kwargs)
        torch.autograd.backward = noted
        runpy.run_path("example.py", run_name="__main__")
        print(len(losses), losses)
    """))  # fmt: skip
    assert _said(with_calls(there, *flags)) == _said(plainly(there))
    assert calls(there)["events"] > 0
