"""Programs that use torch and print what they could notice of being watched: results, warnings, tracebacks, objects, compiled graphs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

NET = """
    import copy, io, multiprocessing, pickle, re, sys, traceback, warnings
    import torch
    multiprocessing.set_start_method("fork", force=True)  # no longer the default since python 3.14
    from torch import nn
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset
    torch.manual_seed(0)
    torch.set_num_threads(1)
    def net():
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)))
    data = TensorDataset(torch.randn(12, 4), torch.randint(0, 3, (12,)))
    """

PROGRAMS = {
    "results of a training": """
        import random
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=3, shuffle=True, num_workers=epoch):
                loss = nn.CrossEntropyLoss()(model(x.to("cpu")), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                print(loss.item().hex())
            scheduler.step()
        print(torch.rand(3).tolist(), random.random() >= 0, optimizer.state_dict()["state"][0]["exp_avg"].sum().item().hex())
        """,
    "the traceback of a module": """
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = net()
            def forward(self, x):
                return self.inner(x)
        Outer()(torch.zeros(2, 5))
        """,
    "the traceback of a loader's worker": """
        class Broken(list):
            def __getitem__(self, i):
                raise KeyError("no such picture")
        for batch in DataLoader(Broken([1, 2]), num_workers=1):
            pass
        """,
    "the traceback of a step": """
        class Own(torch.optim.SGD):
            def step(self, closure=None):
                raise ValueError("no step")
        def work():
            Own(net().parameters(), 0.1).step()
        work()
        """,
    "the traceback of backward": "torch.ones(3).sum().backward()\n",
    "the traceback of a loader that is none": """
        class Sampler(list):
            def __iter__(self): raise ValueError("no order")
        list(DataLoader(data, sampler=Sampler([1])))
        """,
    "the traceback of a file that is not there": "torch.load('none.pt')\n",
    "an exception in an exception": """
        try:
            net()(torch.zeros(5))
        except RuntimeError:
            traceback.print_exc(file=sys.stdout)
            torch.zeros(1).backward()
        """,
    "a warning that looks for its caller": """
        class Careful(nn.Module):
            def forward(self, x):
                for level in range(1, 6):
                    warnings.warn(f"level {level}", stacklevel=level)
                return x
        def call(module):
            return module(torch.zeros(1))
        call(nn.Sequential(Careful()))
        """,
    "a warning of a loader": """
        class Stream(IterableDataset):
            def __len__(self): return 1
            def __iter__(self): yield from range(3)
        loader = DataLoader(Stream())
        for warned in range(2):
            print(len(loader))
            for batch in loader:
                print(batch)
        """,
    "a stream whose length nobody has asked for": """
        class Stream(IterableDataset):
            def __len__(self): print("asked"); return 1
            def __iter__(self): yield from range(3)
        print(list(DataLoader(Stream())))
        """,
    "a dataset that tells when its length is asked for": """
        class Told(list):
            def __len__(self): print("asked"); return super().__len__()
        print(list(DataLoader(Told([1, 2, 3]), batch_size=2)))
        """,
    "a warning of a scheduler": """
        optimizer = torch.optim.SGD(net().parameters(), 0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
        """,
    "who called": """
        class Looks(nn.Module):
            def forward(self, x):
                print([(f.name, f.lineno) for f in traceback.extract_stack() if "voirkit" not in f.filename and "runpy" not in f.filename])
                return x
        nn.Sequential(Looks())(torch.zeros(1))
        """,
    "what functions look like": """
        import inspect
        for f in nn.Module.__call__, torch.save, torch.autograd.grad, DataLoader.__iter__, torch.Tensor.to, torch.Tensor.backward, nn.Module.to:
            print(f.__name__, f.__qualname__, f.__module__ if hasattr(f, "__module__") else None, getattr(f, "__defaults__", None))
            if hasattr(f, "__code__"):
                print(inspect.signature(f), f.__code__.co_filename, f.__code__.co_firstlineno, f.__code__.co_freevars, len(inspect.getsource(f)))
        x = torch.zeros(2)
        print(torch.Tensor.to, torch.Tensor.to is torch._C.TensorBase.to, x.to == x.to, hash(x.to) == hash(x.to), x.to.__name__, x.cpu.__doc__[:20])
        print(pickle.loads(pickle.dumps(x.to))(torch.float64), x.to.__self__ is x, callable(x.to))
        print(nn.Module.__call__ is nn.Module._wrapped_call_impl, [n for n in dir(x) if "voir" in n], [n for n in vars(net()) if "voir" in n])
        """,
    "pickling and copying": """
        class Own(torch.optim.SGD):
            def step(self, closure=None): return super().step(closure)
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.zeros(1, 4)).sum().backward(); optimizer.step()
        for thing in model, optimizer, Own(model.parameters(), 0.1), DataLoader(data):
            for again in copy.deepcopy(thing), pickle.loads(pickle.dumps(thing)), copy.copy(thing):
                print(type(again) is type(thing), sorted(vars(again)) == sorted(vars(thing)))
        pickle.loads(pickle.dumps(optimizer)).step()
        # A storage is named by its address, which has 14 or 15 digits.
        print([len(re.sub(rb"\\d{14,15}", b"", pickle.dumps(thing))) for thing in (model, optimizer)])
        """,
    "subclasses that override what is watched": """
        class Mine(torch.Tensor):
            def to(self, *args, **kwargs): print("to"); return super().to(*args, **kwargs)
            def backward(self, *args, **kwargs): print("backward"); return super().backward(*args, **kwargs)
        class Calls(nn.Linear):
            def __call__(self, x): print("call"); return super().__call__(x)
            def to(self, *args, **kwargs): print("module to"); return super().to(*args, **kwargs)
        class Loader(DataLoader):
            def __iter__(self): print("iter"); return super().__iter__()
        x = torch.ones(2, 4).as_subclass(Mine)
        y = Calls(4, 1).to(torch.float64)(x.to(torch.float64))
        print(type(y), y.shape)
        y.sum().backward()
        print(len(list(Loader(data, batch_size=6))))
        """,
    "what overrides functions of torch sees them": """
        from torch.overrides import TorchFunctionMode
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                print(func, func is torch.Tensor.to)
                return func(*args, **(kwargs or {}))
        class Logged:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                print("logged", getattr(func, "__name__", func), len(args))
                return 7
        x = torch.zeros(2, requires_grad=True)
        with Mode():
            x.to(torch.float64); x.cpu(); next(iter(DataLoader(data))); nn.Linear(4, 2)(torch.zeros(1, 4)); (x * 1).sum().backward()
        print(torch.Tensor.to(Logged(), "cpu"), torch.autograd.grad(Logged(), Logged()))
        """,
    "jit, fx and functions of functions": """
        from torch.func import functional_call, grad, vmap
        model = net().eval()
        x = torch.randn(2, 4)
        for made in torch.jit.script(model), torch.jit.trace(model, (x,)), torch.fx.symbolic_trace(model):
            print(made(x).sum().item().hex(), str(getattr(made, "graph", ""))[:4000].count("aten"))
        print(vmap(lambda v: model(v.to(torch.float64).to(torch.float32)))(x).sum().item().hex())
        print(grad(lambda p: functional_call(model, p, (x,)).sum())(dict(model.named_parameters()))["0.bias"].sum().item().hex())
        """,
    "hooks see what they saw": """
        model = net()
        model[0].register_forward_hook(lambda m, a, o: print("forward", type(m).__name__, len(a)))
        model.register_full_backward_hook(lambda m, a, b: print("backward", type(m).__name__))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(lambda o, a, k: print("before", a, k))
            optimizer.register_step_post_hook(lambda o, a, k: print("after", a, k))
        model(torch.zeros(1, 4, requires_grad=True)).sum().backward()
        print(optimizer.step(lambda: 5))
        """,
    "torch is imported by a thread, and late": """
        import threading
        def work():
            model = net()
            print(model(torch.zeros(1, 4)).shape)
        thread = threading.Thread(target=work); thread.start(); thread.join()
        """,
}  # fmt: skip


ALL = """
    import importlib, sys, traceback, warnings
    import torch
    sys.stderr = sys.stdout
    for number in range(%d):
        print("== program", number, flush=True)
        try:
            importlib.import_module(f"program_{number}")
        except Exception:
            traceback.print_exc()
"""

# Each is run by itself: it ends python, or starts processes that import the main module.
ALONE = {
    "an exception that nobody catches": "net()(torch.zeros(2, 5))\n",
    "processes that train": """
        import torch.multiprocessing as mp
        def work(rank):
            model = net()
            model(torch.zeros(1, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
            assert sum(p.sum() for p in model.parameters()).isfinite()
        if __name__ == "__main__":
            for method in "fork", "spawn":
                mp.start_processes(work, nprocs=1, start_method=method)
                print("trained in", method)
        """,
}

# What only the extension gets right: in Python the method of a tensor is a function of voirkit's.
ONLY_IN_C = {
    "what a method of a tensor looks like": "print(torch.zeros(2).to, torch.zeros(2).cpu)\n",
    "a warning of a copy": "torch.zeros(2, dtype=torch.complex64).to(torch.float32)\n",
    "an error of a copy": "torch.zeros(2).to('nowhere')\n",
}
TOGETHER = {**PROGRAMS, **ONLY_IN_C}


def run(folder: Path, *command: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


def environment(engine: str) -> dict[str, str]:
    if engine == "C":
        pytest.importorskip("voirkit_instruments.steps._steps")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VOIR", "PYTEST"))}
    return {
        **env,
        "OMP_NUM_THREADS": "1",
        **({"VOIRKIT_NO_EXTENSION": "1"} if engine == "Python" else {}),
    }


def parts(ended: tuple[int, str, str], programs: Mapping[str, str]) -> dict[str, str]:
    """What each of the programs that ran together has said."""
    assert ended[0] == 0, ended[2]
    said = re.sub(r"at 0x[0-9a-f]+", "at <place>", ended[1]).split("== program ")[1:]
    return {name: text.partition("\n")[2] for name, text in zip(programs, said, strict=True)}


def write(folder: Path, programs: Mapping[str, str]) -> Path:
    """A ``main.py`` that runs all the programs, each in a module of its own."""
    for number, program in enumerate(programs.values()):
        (folder / f"program_{number}.py").write_text(dedent(NET) + dedent(program))
    (folder / "main.py").write_text(dedent(ALL) % len(programs))
    return folder


COMPILED = """
    import json
    import torch._dynamo
    from torch._dynamo.utils import counters
    loss_of = nn.CrossEntropyLoss()
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    def model(hooks=False):
        torch.manual_seed(1)
        made = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3))
        if hooks:
            made[0].register_forward_hook(lambda m, a, o: o * 2)
        return made
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            x = self.a(x)
            torch._dynamo.graph_break()
            return self.b(x.to(torch.float64).to(torch.float32))
    class Own(torch.optim.SGD):
        def step(self, closure=None): return super().step(closure)
    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    def train(make):
        made = model()
        optimizer = make(made.parameters())
        compiled = torch.compile(step, backend="aot_eager")
        return [compiled(made, optimizer, x, y) for _ in range(3)]
    def only_the_step():
        made = model()
        optimizer = torch.optim.Adam(made.parameters())
        compiled = torch.compile(optimizer.step, backend="aot_eager")
        for _ in range(3):
            loss_of(made(x), y).backward()
            compiled()
        return list(made.parameters())
    def whole(f, *args, **options):
        return torch.compile(f, backend="aot_eager", **options)(*args)
    cases = dict(
        model=lambda: whole(model(), x),
        whole=lambda: whole(model(), x, fullgraph=True),
        hooks=lambda: whole(model(True), x, fullgraph=True),
        breaks=lambda: whole(Breaks(), x),
        loss=lambda: whole(lambda m: loss_of(m(x), y), model(), fullgraph=True),
        copies=lambda: whole(lambda x: (x.to(torch.float64) + x.to("cpu")).cpu(), x, fullgraph=True),
        grad=lambda: whole(lambda w: torch.autograd.grad((w * w).sum(), w)[0], x.clone().requires_grad_()),
        module_to=lambda: whole(lambda m: m.to(torch.float64)(x.double()), model()),
        sgd=lambda: train(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        adam=lambda: train(torch.optim.Adam),
        own=lambda: train(lambda p: Own(p, 0.1)),
        step=only_the_step,
    )
    told = {}
    for name, case in cases.items():
        torch._dynamo.reset()
        counters.clear()
        try:
            found = torch.utils._pytree.tree_flatten(case())[0]
            found = [tensor.detach().sum().item().hex() for tensor in found]
        except Exception as exc:  # what this torch cannot do, it cannot do with voirkit
            found = type(exc).__name__
        kinds = "stats", "frames", "graph_break", "unimplemented", "recompiles"
        told[name] = found, {kind: sorted(map(str, counters[kind].values())) for kind in kinds}
    print(json.dumps(told))
    """
