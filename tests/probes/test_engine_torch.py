# ruff: noqa: F811, F841, PT017, RET504, TC003 -- programs to watch: their variables are what matters
"""The engine with torch.compile: right events and results, or torch says that it can not."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit import probing

torch = pytest.importorskip("torch")


def step(x: Any) -> Any:
    loss = (x * 2).sum()
    return loss + 1


def train(x: Any) -> Any:
    w = x + 1
    return step(w)


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_with_taps_gives_its_events_and_its_result() -> None:
    function = compiled(train)
    plain = function(torch.ones(2))
    seen: list[Any] = []
    with probing("step > loss", env=globals()) as probe:
        probe.subscribe(seen.append)
        assert function(torch.ones(2)) == plain
    assert function(torch.ones(2)) == plain
    assert [event["loss"].item() for event in seen] == [8.0]
    assert "_torchdynamo_disable" not in vars(step)


@pytest.mark.filterwarnings("ignore")
def test_a_function_without_taps_of_its_own_still_compiles_whole() -> None:
    with probing("step > loss", env=globals()) as probe:
        probe.subscribe(lambda event: None)
        assert compiled(lambda x: x * 3, fullgraph=True)(torch.ones(1)).item() == 3.0


def test_backward_of_an_autograd_function_is_seen() -> None:
    class Square(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            back = 2 * x * grad
            return back

    seen: list[Any] = []
    with probing("Square.backward > back", env={"Square": Square}) as probe:
        probe.subscribe(seen.append)
        x = torch.ones(1, requires_grad=True)
        Square.apply(x).sum().backward()
    assert [event["back"].item() for event in seen] == [2.0]
