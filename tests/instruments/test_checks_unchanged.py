"""A program cannot tell that --checks is on: compiled whole, scripted, traced, exported, pickled, in a mode of its own that sees each operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import CLEAN

pytestmark = pytest.mark.long

pytest.importorskip("torch")

PROGRAM = """
    import torch, pickle, copy, inspect
    import torch.nn.functional as F
    from torch import nn
    torch.manual_seed(0)
    model=nn.Sequential(nn.Linear(4,8),nn.BatchNorm1d(8),nn.ReLU(),nn.Linear(8,3))
    opt=torch.optim.Adam(model.parameters(),lr=1e-2)
    sched=torch.optim.lr_scheduler.CosineAnnealingLR(opt,10)
    x=torch.randn(16,4); y=torch.randint(0,3,(16,))
    @torch.compile(backend="eager",fullgraph=True)
    def f(a,b): return F.cross_entropy(model(a),b)
    for i in range(3):
        opt.zero_grad(); l=f(x,y); l.backward(); opt.step(); sched.step(); print(l.item().hex())
    @torch.jit.script
    def g(a: torch.Tensor,b: torch.Tensor): return F.cross_entropy(a,b)
    print(g(model(x),y).item().hex())
    class M(nn.Module):
        def __init__(s): super().__init__(); s.m=model
        def forward(s,a,b): return F.nll_loss(F.log_softmax(s.m(a),1),b)
    print(torch.fx.symbolic_trace(M()).code)
    print(pickle.loads(pickle.dumps(F.cross_entropy)) is F.cross_entropy, inspect.getsource(F.nll_loss)[:30], len(pickle.dumps(opt))>0, type(copy.deepcopy(sched)).__name__)
    from torch.utils._python_dispatch import TorchDispatchMode
    class Log(TorchDispatchMode):
        def __torch_dispatch__(s,func,types,args=(),kwargs=None):
            ops.append(str(func)); return func(*args,**(kwargs or {}))
    ops=[]
    with Log():
        for _ in range(2):
            opt.zero_grad(); l=F.cross_entropy(model(x),y); l.backward(); opt.step()
    print(len(ops), hash(tuple(ops))!=0, ops[-3:])
    print(torch.export.export(model.eval(),(x,)).graph_module.code[:40])
    from torch.func import functional_call, grad, vmap
    p=dict(model.named_parameters()); b=dict(model.named_buffers())
    print(grad(lambda q: F.cross_entropy(functional_call(model,(q,b),(x,)),y))(p)["0.weight"].sum().item().hex())
    print(torch.rand(2).tolist())
    print(torch.jit.trace(model,(x,))(x).sum().item().hex())
    """


def test_what_a_program_prints_and_warns_of_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(dedent(PROGRAM))
    said = []
    for words in ([], ["-m", "voirkit", "--checks", "--quiet", "--run-dir", "run"]):
        env = {**CLEAN, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, *words, "main.py"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=env, timeout=280
        )
        assert done.returncode == 0, done.stderr
        said.append((done.stdout, done.stderr))
    assert said[0] == said[1]
