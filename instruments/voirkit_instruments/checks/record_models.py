"""Calls of models: in which mode, with gradients or without, from where; seldom also their layers and the names of their parameters. And
what goes into torch's loss functions: probabilities where logits are expected, targets of another shape; by the line that does it.
"""

from __future__ import annotations

import time
import weakref

from voirkit_instruments.checks.record_facts import COLLECTING, FORWARD, Watcher, never_raises
from voirkit_instruments.checks.record_values import is_quiet
from voirkit_instruments.loader_numbers import Ordinals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

    Named = tuple[str, str, bool, int]


now = time.perf_counter_ns

_MOST_MODULES = 50_000
_RECENT = 64
_DROPS = ("DropPath", "StochasticDepth", "DropBlock2d")  # of timm and torchvision
_WRAPPERS = ("_orig_mod", "module")  # of torch.compile and DistributedDataParallel


class ModelFacts(Watcher):
    """Outermost module calls.

    Attributes:
        collecting: Whether ``called`` is filled.
        called: The modules that were called with gradients on, in the order of their first call, by identity.
        recent: References to the models called last, by number.
    """

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._ordinals = Ordinals()
        self._call = facts.name("call")
        self._written: dict[tuple[int, bool, bool], str] = {}
        self._arguments: dict[tuple[Any, ...], int] = {}
        self._trained: set[tuple[int, int]] = set()
        self._boring: set[int] = set()
        self._is_loss = torch.nn.modules.loss._Loss
        self._grad = torch.is_grad_enabled
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self.collecting = True
        self.called: dict[int, weakref.ref[Any]] = {}
        self.recent: dict[int, weakref.ref[Any]] = {}

    def enter_call(self, module: Any) -> int:
        """Before a module call; inside of another only while calls are collected."""
        here, called = self._facts.here, self.called
        if not self.collecting:
            here.inside = FORWARD
            return now()
        if id(module) not in called and self._grad() and len(called) < _MOST_MODULES:
            called[id(module)] = weakref.ref(module)
        if here.inside == COLLECTING:
            return 0
        here.inside = COLLECTING
        return now()

    def leave_call(self, began: int, was: int, module: Any) -> None:
        self._facts.here.inside = was
        if not began:
            return
        if not isinstance(module, self._is_loss) and self._graph_task() == -1:  # else a checkpoint's recomputation
            self._outermost(began, module)

    @never_raises("a model")
    def _outermost(self, began: int, module: Any) -> None:
        if type(module).__name__ == "OptimizedModule":
            module = unwrapped(module, _WRAPPERS[:1])
        number = self._ordinals.of(module)
        if number in self._boring:
            return
        training, grad = bool(module.training), bool(self._grad())
        key = (number, training, grad)
        if key not in self._written:
            if not is_quiet(self._torch):  # it is being traced or exported
                return
            self._inspect(number, module, training, grad)
            if number in self._boring:
                return
        if number not in self.recent:
            self._remember(number, module)
        where = self._facts.where()
        args = self._arguments.get((where, key))
        if args is None:
            if len(self._arguments) > _MOST_MODULES:
                self._arguments.clear()
            args = self._arguments[where, key] = self._facts.arguments(where, model=number, training=training, grad=grad)
        self._facts.span(self._call, began, now(), args, 0)

    def _remember(self, number: int, module: Any) -> None:
        self.recent[number] = weakref.ref(module)
        for old in [number for number, known in self.recent.items() if known() is None]:
            del self.recent[old]
        while len(self.recent) > _RECENT:
            del self.recent[next(iter(self.recent))]

    def _inspect(self, number: int, module: Any, training: bool, grad: bool) -> None:
        """Write what layers of a model depend on its mode, if that is not as it was written before."""
        found = modes(self._torch, module)
        written = ",".join(str(n) for key, n in found.items() if key != "fresh")
        if not any(found.values()):
            self._boring.add(number)
        elif self._written.get((number, training, grad)) != written:
            self._facts.mark("model", self._facts.where(), number, kind=type(module).__name__, training=training, grad=grad, **found)
        self._written[number, training, grad] = written

    def inspect_again(self) -> None:
        """The modes of single layers may have changed meanwhile."""
        for number, module in self._live():
            for of, training, grad in list(self._written):
                if of == number and training == bool(module.training):
                    self._inspect(number, module, training, grad)

    def _live(self) -> Iterator[tuple[int, Any]]:
        for number, known in list(self.recent.items()):
            module = known()
            if module is not None:
                yield number, module

    def names(self) -> dict[int, Named]:
        """By identity of a parameter of the models called last: its full name, its model's class, whether that trains, its number."""
        found: dict[int, Named] = {}
        for number, model in self._live():
            model = unwrapped(model, _WRAPPERS)
            for path, module in modules(model):
                for name, parameter in _parameters(module).items():
                    if parameter is not None:
                        full = f"{path}.{name}" if path else name
                        found.setdefault(id(parameter), (full, type(model).__name__, bool(model.training), number))
        return found

    def mark_trained(self, optimizer: int, graded: set[int], where: str | None) -> None:
        """Write which of the models called last have parameters that an optimizer holds, with gradients; once for each."""
        for number, model in self._live():
            if (number, optimizer) not in self._trained:
                own = [id(p) for _, one in modules(model) for p in _parameters(one).values() if p is not None]
                n = sum(key in graded for key in own)
                if n:
                    self._trained.add((number, optimizer))
                    self._facts.mark("trained", where, number, optimizer=optimizer, graded=n, of=len(own))

    def in_order(self) -> list[int]:
        """Identities of the parameters of modules that were called with gradients on, in the order of the calls."""
        found: dict[int, None] = {}
        for known in list(self.called.values()):
            module = known()
            if module is not None and (not _children(module) or type(module).__module__.startswith("torch.nn")):
                found.update((id(parameter), None) for parameter in _parameters(module).values() if parameter is not None)
        return list(found)


def unwrapped(module: Any, wrappers: tuple[str, ...]) -> Any:
    """The model in what stands around it."""
    while True:
        children = _children(module)
        inner = next((children[name] for name in wrappers if name in children), None)
        if inner is None or len(children) != 1 or _parameters(module):
            return module
        module = inner


def modules(module: Any) -> list[tuple[str, Any]]:
    """A module and all inside of it, each once, with their full names; not through methods that a program may have overridden."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    stack = [("", module)]
    while stack and len(found) < _MOST_MODULES:
        path, one = stack.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        found.append((path, one))
        stack += [(f"{path}.{name}" if path else name, child) for name, child in reversed(list(_children(one).items()))]
    return found


def modes(torch: ModuleType, module: Any) -> dict[str, int]:
    """How many layers of a model drop values, and how many keep running statistics, in train mode (``on``) and not; its parameters."""
    nn = torch.nn
    drops, norms, rnn = nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.modules.rnn.RNNBase
    found = {"dropout_on": 0, "dropout_off": 0, "norm_on": 0, "norm_off": 0, "fresh": 0, "frozen": 0, "trainable": 0}
    for _, one in modules(module):
        state = "on" if one.training else "off"
        if isinstance(one, drops):
            found[f"dropout_{state}"] += one.p > 0
        elif isinstance(one, rnn):
            found[f"dropout_{state}"] += one.dropout > 0 and one.num_layers > 1
        elif isinstance(one, nn.MultiheadAttention):
            found[f"dropout_{state}"] += one.dropout > 0
        elif isinstance(one, norms):
            found[f"norm_{state}"] += bool(one.track_running_stats)
            found["fresh"] += bool(one.track_running_stats) and _is_fresh(torch, one)
        elif type(one).__name__ in _DROPS:
            found[f"dropout_{state}"] += (getattr(one, "drop_prob", None) or getattr(one, "p", None) or 0) > 0
        for parameter in _parameters(one).values():
            if parameter is not None:
                found["trainable" if parameter.requires_grad else "frozen"] += 1
    return found


def _is_fresh(torch: ModuleType, norm: Any) -> bool:
    """Whether a layer's statistics are as they were made: files of before torch 0.4 bring statistics without a number of batches."""
    counted: Any = getattr(norm, "num_batches_tracked", None)
    mean: Any = getattr(norm, "running_mean", None)
    if any(type(one) is not torch.Tensor or one.device.type not in ("cpu", "cuda") for one in (counted, mean)):
        return False
    with torch._C.DisableTorchFunction():
        return int(counted) == 0 and not bool(mean.any())


def _children(module: Any) -> dict[str, Any]:
    found = vars(module).get("_modules")
    return found if type(found) is dict or isinstance(found, dict) else {}


def _parameters(module: Any) -> dict[str, Any]:
    found = vars(module).get("_parameters")
    return found if isinstance(found, dict) else {}


_MADE_BY = {"SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax", "SigmoidBackward": "sigmoid"}
# What changes the shape or type of a tensor, and no value but the smallest and largest.
_SAME = ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Slice", "Select",
         "Alias", "Expand", "Index", "AsStrided", "Split", "Unbind", "Cat", "Contiguous",
         "Stack", "Clamp", "ClampMin", "ClampMax")  # fmt: skip
_MOST_NODES = 8
_EACH, _SELDOM, _TOLD = 256, 257, 3  # calls that are all looked at; how seldom later ones are; facts of one line


class LossFacts(Watcher):
    """The inputs of loss functions."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._written: set[tuple[str, str, str | None]] = set()
        self._calls: dict[str, int] = {}
        self._shapes: dict[tuple[str, str | None], int] = {}

    def enter_with_logits(self, function: str) -> Callable[..., int]:
        """Before calls of a loss function that expects logits, or logarithms of probabilities."""
        return lambda value: self._check_source(function, value) or 1

    def enter_with_pair(self, function: str) -> Callable[..., int]:
        """Before calls of a loss function whose input and target have one shape, or are broadcast to one."""
        return lambda *passed: self._compare(function, *passed) or 1

    @never_raises("the input of a loss")
    def _compare(self, function: str, value: Any, target: Any, reduction: Any) -> None:
        n = self._calls[function] = self._calls.get(function, 0) + 1
        if (n > _EACH and n % _SELDOM) or reduction == "none":
            return
        tensor = self._torch.Tensor
        if not (issubclass(type(value), tensor) and issubclass(type(target), tensor)):
            return
        with self._torch._C.DisableTorchFunction():
            one, other = tuple(value.shape), tuple(target.shape)
            if one == other or not (value.requires_grad or target.requires_grad):
                return
        # As many numbers, one dimension more: pairs of all with all are asked for with as many dimensions, or without a reduction.
        if len(one) == len(other) or _without_ones(one) != _without_ones(other) or _broadcast(one, other) == _broadcast(one, one):
            return
        where = self._facts.where()
        n = self._shapes[function, where] = self._shapes.get((function, where), 0) + 1
        if n <= _TOLD:
            shapes = {"input": str(one), "target": str(other)}
            self._facts.mark("loss_shapes", where, n, loss=function, becomes=str(_broadcast(one, other)), **shapes)

    @never_raises("the input of a loss")
    def _check_source(self, function: str, value: Any) -> None:
        tensor = self._torch.Tensor
        if not issubclass(type(value), tensor):
            return
        if type(value) is tensor:
            node = value.grad_fn
        else:
            with self._torch._C.DisableTorchFunction():
                node = value.grad_fn
        made = _made_by(node)
        if made is None and not self._torch.is_grad_enabled():
            made = "evaluated"
        if made is not None:
            where = self._facts.where()
            if (function, made, where) not in self._written:
                self._written.add((function, made, where))
                self._facts.mark("loss_input", where, loss=function, input=made)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two shapes are broadcast to; without dimensions of 1 at its beginning."""
    n = max(len(one), len(other))
    pairs = zip((1,) * (n - len(one)) + one, (1,) * (n - len(other)) + other, strict=True)
    shape = tuple(max(a, b) for a, b in pairs)
    while shape[:1] == (1,):
        shape = shape[1:]
    return shape


def _made_by(node: Any) -> str | None:
    """Which of the functions of ``_MADE_BY`` made a tensor, by its node in the graph; through what changes no value."""
    for _ in range(_MOST_NODES):
        if node is None:
            return None
        name = node.name().rstrip("0123456789")
        if name in _MADE_BY:
            return _MADE_BY[name]
        if name.removesuffix("Backward") not in _SAME:
            return None
        node = node.next_functions[0][0] if node.next_functions else None
    return None
