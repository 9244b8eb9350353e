"""Probes on what torch does with functions: compiling, scripting, autograd, modules and their hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from voirkit import probing, streams
from voirkit.probes import compatibility

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def double(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y + 1
    return z


def outer(x: torch.Tensor) -> torch.Tensor:
    return double(x) * 3


def other(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def lonely(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Counter:
    def __init__(self) -> None:
        self.total = torch.zeros(3)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total + 0


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


def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said on stderr from now on, also what has been said before in this process."""
    told: list[str] = []
    monkeypatch.setattr(streams, "report", told.append)
    monkeypatch.setattr(compatibility, "_reported_functions", set())
    return told


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
        assert torch.equal(
            torch.compile(function, backend=backend, fullgraph=fullgraph)(X), function(X)
        )
    assert len(seen) == events * (
        1 if fullgraph else 2
    )  # one when compiled, but not as one graph; one for the comparison


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_was_compiled_before_it_was_probed_is_seen_or_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = reports(monkeypatch)
    monkeypatch.setattr(compatibility, "_reported", set())
    whole = torch.compile(outer, backend="eager")
    whole(X)
    with probing("double > y").values() as seen:
        assert torch.equal(whole(X), outer(X))
    if TORCH >= (2, 2):
        assert (len(seen), told) == (2, [])
    else:  # does not notice that a function has changed
        assert len(seen) == 1
        assert told == [
            "something was compiled by torch.compile before a probe was on: if it calls the probed function, that is not seen there."
        ]
    before = len(seen)
    whole(X)
    assert len(seen) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_attribute_that_is_added_to_in_a_compiled_function_is_what_it_would_be(
    fullgraph: bool,
) -> None:
    counter = Counter()
    add = torch.compile(counter.add, backend="eager", fullgraph=fullgraph)
    with probing("Counter.add > self.total").values() as seen:
        assert torch.equal(add(X), X)
        assert torch.equal(add(X), X * 2)
    assert torch.equal(counter.total, X * 2)
    assert len(seen) == (0 if fullgraph else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "selector", ["outer(x) > double > y", "double(!#enter as begin, y, !!#value as end)"]
)
def test_what_several_taps_of_a_compiled_function_tell_belongs_together(selector: str) -> None:
    with probing(selector).values() as seen:
        torch.compile(outer, backend="eager")(X)
        compiled_events = len(seen)
        outer(X)
    assert [sorted(event) for event in seen[:compiled_events]] == [
        sorted(event) for event in seen[compiled_events:]
    ]
    assert compiled_events


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_function_runs_as_it_is_and_that_it_is_not_seen_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = reports(monkeypatch)
    with probing("double > y").values() as seen:
        assert torch.equal(torch.jit.script(outer)(X), (X * 2 + 1) * 3)
    assert seen == []
    assert len(told) == 1
    assert told[0].startswith("double (")
    assert told[0].endswith(
        "has probes and is compiled by torch.jit.script: they see nothing in the compiled code."
    )


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_was_scripted_before_it_was_probed_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = reports(monkeypatch)
    torch.jit.script(other)
    torch.jit.script(Layer())
    with probing("other > #enter"), probing("Layer.forward > hidden"):
        pass
    assert [text.split(" (")[0] for text in told] == ["other", "Layer.forward"]


@pytest.mark.filterwarnings("ignore")
def test_scripting_what_has_no_probe_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = reports(monkeypatch)
    with probing("Counter.add > self.total"):
        torch.jit.script(lonely)
    assert told == []


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
