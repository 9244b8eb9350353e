"""Probes on what torch does with functions: compiling, scripting, autograd, modules and their hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from voirkit import probing


def double(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y + 1
    return z


def outer(x: torch.Tensor) -> torch.Tensor:
    return double(x) * 3


def other(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x * 3
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        back = grad * 3
        return back


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + 1
        return hidden


X = torch.arange(3.0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(("function", "events"), [(double, 1), (outer, 1), (other, 0)])
def test_a_compiled_function_gives_the_same_and_its_events(
    backend: str, fullgraph: bool, function: Callable[..., Any], events: int
) -> None:
    with probing("double > y").values() as seen:
        assert torch.equal(torch.compile(function, backend=backend, fullgraph=fullgraph)(X), function(X))
    assert len(seen) == events * (1 if fullgraph else 2)  # one when compiled, but not as one graph; one for the comparison


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_was_compiled_before_it_was_probed_is_seen() -> None:
    compiled = torch.compile(outer, backend="eager")
    compiled(X)
    with probing("double > y").values() as seen:
        assert torch.equal(compiled(X), outer(X))
    assert len(seen) == 2
    compiled(X)
    assert len(seen) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_function_runs_as_it_is() -> None:
    with probing("double > y").values() as seen:
        assert torch.equal(torch.jit.script(double)(X), X * 2 + 1)
    assert seen == []


@pytest.mark.parametrize("selector", ["Triple.forward > out", "Triple.backward > back"])
def test_an_autograd_function_is_seen(selector: str) -> None:
    x = X.clone().requires_grad_()
    with probing(selector).values() as seen:
        Triple.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))  # type: ignore[arg-type]
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore")
def test_modules_with_hooks_and_compiled_are_seen() -> None:
    layer = Layer()
    layer.register_forward_hook(lambda module, args, out: out + 1)
    with probing("Layer.forward > hidden").values() as seen:
        assert torch.equal(layer(X), X + 2)
        assert torch.equal(torch.compile(layer, backend="eager")(X), X + 2)
    assert len(seen) == 2


def test_a_tensor_can_be_compared_in_a_condition_without_harm() -> None:
    with probing("double(x=1) > y").values() as seen:
        assert torch.equal(double(X), X * 2 + 1)
    assert seen == []


def test_no_graph_is_kept_alive() -> None:
    import weakref

    x = X.clone().requires_grad_()
    with probing("double > y").values() as seen:
        y = double(x)
        kept = weakref.ref(y)
        seen.clear()
        del y
    assert kept() is None
