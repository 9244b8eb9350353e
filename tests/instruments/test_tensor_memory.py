"""A tensor is looked at only if its elements are in memory: nothing that voirkit does may read at address 0."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from conftest import CLEAN
from parameter_records import Watching
from torch import nn

from voirkit_instruments.checks.record_data import content, labels
from voirkit_instruments.checks.record_facts import UNKNOWN, digests, largest
from voirkit_instruments.dash.record import text_of
from voirkit_instruments.steps.record import Losses
from voirkit_instruments.values import brief, is_readable, number

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*(Sparse|nested tensors|quantized|torch.ao|torch.jit.script).*"
    ),
    pytest.mark.long,
]


class Wrapper(torch.Tensor):
    """A subclass whose own elements are another tensor's."""

    @staticmethod
    def __new__(cls, of: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype)  # type: ignore[attr-defined]  # not in the stubs

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the program is asked")


class Named(torch.Tensor):
    """One that only sees functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("the program is asked")


def freed(*shape: int) -> torch.Tensor:
    tensor = torch.randn(*shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def too_small(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(4)
    return tensor


def fake() -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


def inference() -> Any:
    with torch.inference_mode():
        return torch.randn(3)


X = torch.randn(4, 4)
UNREADABLE: dict[str, Callable[[], Any]] = {
    "freed": lambda: freed(3, 3),
    "freed parameter": lambda: nn.Parameter(freed(3)),
    "storage smaller than the tensor": lambda: too_small(torch.randn(2)),
    "storage smaller than a view": lambda: too_small(torch.randn(4, 4).t()[1:2, 1:]),
    "meta": lambda: torch.empty(3, device="meta"),
    "fake": fake,
    "COO": lambda: X.to_sparse(),
    "CSR": lambda: X.to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([X, X[:2]]),
    "jagged": lambda: torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged),
    "zeros without memory": lambda: torch._efficientzerotensor((2,)),
    "mkldnn": lambda: X.to_mkldnn(),
    "a subclass with __torch_dispatch__": lambda: Wrapper(X),
    "no tensor": lambda: [1.0],
}
READABLE: dict[str, Callable[[], Any]] = {
    "plain": lambda: X,
    "parameter": lambda: nn.Parameter(X),
    "without elements": lambda: torch.empty(0, 3),
    "a view": lambda: X.t()[1:, ::2],
    "expanded": lambda: torch.randn(1).expand(1000),
    "inference": inference,
    "conjugate": lambda: torch.randn(2, dtype=torch.cfloat).conj(),
    "a subclass with __torch_function__": lambda: X.as_subclass(Named),
    "float8": lambda: X.to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_not_in_memory_is_not_readable(kind: str) -> None:
    assert not is_readable(torch, UNREADABLE[kind]())


@pytest.mark.parametrize("kind", READABLE)
def test_what_is_in_memory_is_readable(kind: str) -> None:
    assert is_readable(torch, READABLE[kind]())


def _transformed(transform: Callable[[Any], Any]) -> list[bool]:
    seen = []

    def function(x: Any) -> Any:
        seen.append(is_readable(torch, x))
        return (x * x).sum()

    transform(function)
    return seen


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.vmap(f)(X),
        lambda f: torch.func.grad(f)(X),
        lambda f: torch.func.jvp(f, (X,), (X,)),
        lambda f: torch.vmap(torch.func.grad(f))(X),
        lambda f: torch.func.functionalize(f)(X),
    ],
)
def test_the_wrappers_of_function_transforms_are_not_readable(transform: Any) -> None:
    assert not any(_transformed(transform))


def test_to_ask_makes_no_copy_of_what_is_copied_on_write() -> None:
    lazy = torch._lazy_clone(X)
    assert is_readable(torch, lazy)
    assert torch._C._is_cow_tensor(lazy)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_checks_say_nothing_of_what_is_not_in_memory(kind: str) -> None:
    tensor = UNREADABLE[kind]()
    assert largest(torch, [tensor, X])[0] == digests(torch, [tensor])[0] == UNKNOWN
    assert labels(torch, [tensor]) is None
    assert kind == "no tensor" or content(torch, tensor) is None


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_given_value_that_is_not_in_memory_is_said_by_its_type(kind: str) -> None:
    tensor = UNREADABLE[kind]()
    assert number(tensor) is None
    assert brief(tensor)
    assert isinstance(text_of(tensor)[0], str)


def test_losses_that_are_not_in_memory_are_counted_and_not_read() -> None:
    losses = Losses()
    for loss in (
        torch.tensor(2.0),
        freed(1),
        freed(7),
        torch.empty((), device="meta"),
        Wrapper(X.sum()),
        torch.tensor(1.0),
    ):
        losses.add(loss)
    summary = losses.summary()
    assert summary is not None
    assert (summary["n"], summary["curve"]) == (6, [(0, 2.0), (5, 1.0)])
    assert losses.means() == (2.0, 1.0)


class _Freeing(torch.optim.Optimizer):
    """Steps, and releases the memory of parameters where it is told to."""

    def __init__(self, parameters: Iterator[nn.Parameter], frees: str) -> None:
        super().__init__(parameters, {})
        self.frees = frees

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                target = parameter if self.frees == "parameters" else parameter.grad
                if self.frees and target is not None:
                    target.untyped_storage().resize_(0)


@pytest.mark.parametrize("frees", ["parameters", "gradients"])
def test_parameters_and_gradients_that_a_step_frees_are_not_looked_at_after_it(frees: str) -> None:
    model = nn.Linear(300, 300)
    optimizer, watching = _Freeing(model.parameters(), frees), Watching()
    model(torch.randn(2, 300)).sum().backward()
    for _ in range(3):
        watching.step(optimizer, model)
    watching.watch.finish()
    assert watching.warned == []


def test_parameters_that_are_freed_before_a_step_are_said_to_be() -> None:
    model = nn.Linear(300, 300)
    optimizer, watching = torch.optim.SGD(model.parameters()), Watching()
    model.weight.untyped_storage().resize_(0)
    watching.step(optimizer, model)
    assert watching.warned == []
    assert (
        watching.kept.of("seen", "weight")[-1]["not_watched"]
        == "its memory is freed between its uses"
    )


PROGRAM = """
    import torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader
    from voirkit import give
    torch.manual_seed(0)
    def freed(t):
        t.untyped_storage().resize_(0)
        return t
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.strided)
    kinds = [freed(torch.randn(512, 512)), freed(torch.randn(1)), torch.empty(3, device="meta"), torch.eye(3).to_sparse(), nested,
             torch._efficientzerotensor((2,)), freed(torch.arange(4))]
    model = nn.Linear(64, 64)
    kept = nn.Linear(64, 64)  # freed between forward and backward, as FSDP does, and held by no optimizer
    kept.register_buffer("gone", freed(torch.randn(512)))
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for i, batch in enumerate(DataLoader(kinds, batch_size=None, collate_fn=lambda t: t)):
        loss = model(kept(torch.randn(4, 64))).square().mean()
        give(loss=loss, batch=batch)
        give(loss=batch)
        copy = kept.weight.detach().clone()
        freed(kept.weight)
        def unshard(grad):
            kept.weight.untyped_storage().resize_(copy.numel() * 4)
            kept.weight.data.copy_(copy)
        loss.register_hook(unshard)
        torch.numel(batch); torch.is_floating_point(batch)
        loss.backward(); opt.step(); opt.zero_grad(set_to_none=i % 2 == 0)
        print(f"{loss.item():.6f}")
    def f(w, x):
        give(loss=(w * x).sum())
        return F.mse_loss(w * x, x)
    w = torch.randn(3)
    print(torch.vmap(torch.func.grad(f), (None, 0))(w, torch.randn(5, 3)).sum().item())
    """


def test_a_program_whose_tensors_are_freed_runs_as_without_voirkit(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(dedent(PROGRAM))
    flags = [
        "--checks",
        "--parameters",
        "--parameters-of",
        "buffers,state",
        "--calls",
        "torch",
        "--memory-snapshot",
        "--log",
        "loss",
    ]
    outputs = []
    for words in ([], ["-m", "voirkit", *flags, "--quiet", "--run-dir", "run"]):
        command = [sys.executable, "-W", "ignore", *words, "main.py"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**CLEAN, "OMP_NUM_THREADS": "1"},
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert "could not be" not in done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
