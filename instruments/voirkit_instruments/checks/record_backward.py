"""Recording of losses and backward passes for ``--checks``.

The facts, by line of the program: unsuitable inputs of torch's loss functions (probabilities
instead of logits, targets of another shape); each backward pass and, rarely, the parameters that it
reaches; losses that are not finite; graphs that outlive their step; ReLU units that are never above
zero.

A graph is only walked through, never changed or kept. Tensors that hooks of the program have stored
elsewhere (``saved_tensors_hooks``, as activation checkpointing does) are not read: reading would
recompute them.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType

from voirkit_instruments.checks.record_facts import (
    BACKWARD,
    Facts,
    ModelFacts,
    Named,
    Watcher,
    digests,
    is_plain,
    is_quiet,
    never_raises,
)
from voirkit_instruments.values import ScalarReader, is_readable, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.checks.record_optimizers import OptimizerFacts


now = time.perf_counter_ns

_MOST_NODES = 30_000
_LOSS_NODES = 6
A_DIFFERENCE = "a difference"  # name of a loss that is written by hand
_LOSS_PARTS = (
    "MeanBackward",
    "SumBackward",
    "PowBackward",
    "AbsBackward",
    "SqrtBackward",
    "MulBackward",
    "DivBackward",
    "SubBackward",
)
_PENDING = 32  # number of losses on a device that are read together, with one wait for the device
_NAMED = 5

_KEY = "voirkit"
# For each line of the program, the graphs of the first ``_EACH`` backward passes are marked, then
# only each ``_SELDOM``-th; the newest ``_MOST_MARKERS`` markers are kept.
_EACH, _SELDOM, _MOST_MARKERS = 64, 16, 64
# number of nodes of a graph that are marked, from the root on: more than the root, because the
# program may keep a loss from before it was scaled or divided
_DEEP = 3
# number of newest graphs that do not count: they may be alive because the program's variables are
# not reassigned yet
_USUAL = 2


class Marker:
    """An object that lives as long as the graph node that holds it."""


class KeptGraphs:
    """Detects graphs that outlive their step, by line of the backward pass: ``total += loss`` keeps
    each graph as long as ``total`` lives.

    A graph node is a C++ object, whose Python object comes and goes. The node's ``metadata`` lives
    as long as the node; apart from this class, only torch's anomaly mode uses it. A marker is put
    there, and a weak reference to the marker tells if the node still exists. Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._markers: dict[str | None, deque[weakref.ref[Marker]]] = {}

    def mark(self, root: Any, where: str | None, n: int) -> None:
        """Mark the graph of a backward pass that begins, the ``n``-th of its line."""
        if n > _EACH and n % _SELDOM:
            return
        marker, node = Marker(), root.grad_fn
        for _ in range(_DEEP):
            # not the node of a leaf, which lives as long as the leaf
            if node is None or hasattr(node, "variable"):
                break
            node.metadata[_KEY] = marker
            following = node.next_functions
            node = following[0][0] if following else None
        self._markers.setdefault(where, deque(maxlen=_MOST_MARKERS)).append(weakref.ref(marker))

    def alive(self, where: str | None) -> int:
        """Count the marked graphs of a line that are alive, from the newest back to the first that
        is not, without the newest ``_USUAL``."""
        markers = list(self._markers.get(where, ()))[:-_USUAL]
        for n, marker in enumerate(reversed(markers)):
            if marker() is None:
                return n
        return len(markers)


class UntrackedParameter:
    """A parameter whose changes are detected by a digest of its values. Either it gets gradients
    but no optimizer holds it, or it gets none."""

    def __init__(self, parameter: Any, digest: float) -> None:
        self.reference = weakref.ref(parameter)
        self.digest = digest
        self.changed = False


class Graphs(Watcher):
    """Code that runs around backward passes, and records facts about them and their graphs."""

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts) -> None:
        super().__init__(facts, torch)
        self._models = models
        self._backward = facts.name("backward")
        self._passes: dict[str | None, int] = {}  # number of backward passes, by line
        self._pending: list[tuple[int, str | None, Any]] = []
        self._is_not_finite = False
        self._tensor = torch.Tensor
        self._read = ScalarReader(torch).read
        self._graphs = KeptGraphs()
        self._units = UnitFacts(facts, torch, models)
        self.unheld: dict[int, UntrackedParameter] = {}

    def enter_backward(self, optimizers: OptimizerFacts) -> Any:
        """Return the function to run before the outermost backward pass."""
        thread = self._facts.here

        def enter(tensors: Any) -> int:
            start_ns = now()
            self._before(tensors, optimizers)
            thread.inside = BACKWARD
            end = now()
            self._facts.cost.add(start_ns, end)
            return end

        return enter

    @never_raises("a backward pass")
    def _before(self, tensors: Any, optimizers: OptimizerFacts) -> None:
        self._facts.n_passes += 1
        where = self._facts.here.where = self._facts.where()
        optimizers.before_backward(where)
        n = self._passes[where] = self._passes.get(where, 0) + 1
        if type(tensors) is self._tensor:
            self._graphs.mark(tensors, where, n)
        if n & (n - 1) == 0 or n == 3:
            self._walk(tensors, where, optimizers, n)
        self._check_loss(tensors, where, optimizers)

    @never_raises("a backward pass")
    def leave_backward(self, start_ns: int, was: int, _tensors: Any) -> None:
        self._facts.here.inside = was
        if start_ns:
            where = getattr(self._facts.here, "where", None)
            self._facts.span(self._backward, start_ns, now(), self._facts.arguments(where), 0)

    # Parameters that a backward pass reaches

    def _walk(self, tensors: Any, where: str | None, optimizers: OptimizerFacts, n: int) -> None:
        roots = self._roots(tensors)
        leaves, units, nodes = self._leaves(roots)
        self._check_difference(roots, where)
        if leaves is None:
            self._facts.mark("graph_too_large", where, nodes)
            return
        held_ids = optimizers.parameter_ids()
        kind = self._torch.nn.Parameter
        unheld = [leaf for leaf in leaves if id(leaf) not in held_ids]
        parameters = [leaf for leaf in unheld if isinstance(leaf, kind)]
        n_leaves = len(leaves)
        is_leaf_root = bool(roots) and all(root.grad_fn is None for root in roots)
        self._facts.mark(
            "reach",
            where,
            n_leaves,
            held=n_leaves - len(unheld),
            parameters=len(parameters),
            leaf_root=is_leaf_root,
        )
        n_alive, living = self._graphs.alive(where), self._count_living()
        self._facts.mark("graph", where, n, nodes=nodes, kept=n_alive, living=living)
        if held_ids:
            self._watch(parameters)
            self._units.examine(units, where, held_ids)

    def _count_living(self) -> int:
        """Count the tensors with a graph that the program holds, among the objects that the garbage
        collector tracks. Views are left out, because their graph is rebuilt when it is accessed."""
        kind = self._tensor
        with self._torch._C.DisableTorchFunction():
            tensors = [thing for thing in gc.get_objects() if type(thing) is kind]
            return sum(not tensor._is_view() and tensor.grad_fn is not None for tensor in tensors)

    def _check_difference(self, roots: list[Any], where: str | None) -> None:
        """Record a hand-written loss that subtracts a target of N numbers from an output of shape
        (N, 1), which gives N x N differences."""
        node = _subtraction_before(roots[0].grad_fn) if len(roots) == 1 else None
        if node is None:
            return
        operands = [operand for operand, _ in node.next_functions if operand is not None]
        # torch before 2.3 has no ``_input_metadata``
        if len(operands) != 1 or not hasattr(node, "_input_metadata"):
            return
        self._facts.tally("loss_call", A_DIFFERENCE)
        shape = tuple(node._input_metadata[0].shape)
        output = tuple(operands[0]._input_metadata[0].shape)
        n = shape[0] if shape else 0
        if n > 1 and shape == (n, n) and output == (n, 1):
            self._facts.mark(
                "loss_shapes",
                where,
                0,
                loss=A_DIFFERENCE,
                input=str(output),
                target=str((n,)),
                becomes=str(shape),
            )

    def _roots(self, tensors: Any) -> list[Any]:
        if type(tensors) is self._torch.Tensor:
            return [tensors]
        several = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
        return [tensor for tensor in several if isinstance(tensor, self._torch.Tensor)]

    def _leaves(self, roots: list[Any]) -> tuple[list[Any] | None, list[Any], int]:
        """Return the leaves of a graph that get gradients (None if the graph is too large), its
        ReLU nodes, and its number of nodes."""
        units: list[Any] = []
        leaves: dict[int, Any] = {}
        stack: list[Any] = []
        with self._torch._C.DisableTorchFunction():
            for root in roots:
                if root.grad_fn is not None:
                    stack.append(root.grad_fn)
                elif root.requires_grad:
                    leaves[id(root)] = root
            visited = set(stack)
            while stack:
                node = stack.pop()
                for following, _ in node.next_functions:
                    if following is None or following in visited:
                        continue
                    visited.add(following)
                    leaf = getattr(following, "variable", None)
                    if leaf is not None:
                        leaves[id(leaf)] = leaf
                    else:
                        stack.append(following)
                        if type(following).__name__ == RELU:
                            units.append(following)
                if len(visited) > _MOST_NODES:
                    return None, [], len(visited)
        return list(leaves.values()), units, len(visited)

    def _watch(self, parameters: list[Any]) -> None:
        new = [parameter for parameter in parameters if not self._is_watched(parameter)][:1000]
        for parameter, digest in zip(new, digests(self._torch, new), strict=True):
            self.unheld[id(parameter)] = UntrackedParameter(parameter, digest)

    def _is_watched(self, parameter: Any) -> bool:
        watched = self.unheld.get(id(parameter))
        return watched is not None and watched.reference() is parameter

    def mark_unheld(self, held_ids: set[int], where: str | None) -> None:
        """Record the parameters that get gradients but are in no optimizer, and how many of them
        have changed."""
        live = self._live_unheld(held_ids)
        if not live:
            return
        unchanged = self._unchanged(live)
        names = self._models.names()
        named = [names.get(id(parameter)) for parameter in unchanged]
        models = {name[3]: name[1] for name in named if name is not None and name[2]}
        held_models = {name[3] for key, name in names.items() if key in held_ids}
        n_unchanged = len(unchanged)
        n_unnamed = named.count(None)
        n_unread = sum(watched.digest < 0 for watched, _ in live)
        n_after = self._count_after(unchanged, held_ids)
        self._facts.mark(
            "unheld",
            where,
            n_unchanged,
            changed=len(live) - n_unchanged,
            unread=n_unread,
            models=", ".join(models.values()),
            partly=not held_models.isdisjoint(models),
            unnamed=n_unnamed,
            after=n_after,
            names=display_names(unchanged, names),
        )

    def _unchanged(self, live: list[tuple[UntrackedParameter, Any]]) -> list[Any]:
        """Return the parameters that have not changed since they were first seen; unreadable ones
        are left out."""
        parameters = [parameter for _, parameter in live]
        for (watched, _), digest in zip(live, digests(self._torch, parameters), strict=True):
            if digest != watched.digest or digest < 0:
                watched.changed = True
        return [parameter for watched, parameter in live if not watched.changed]

    def _live_unheld(self, held_ids: set[int]) -> list[tuple[UntrackedParameter, Any]]:
        """Return the parameters in ``unheld`` that are alive and still in no optimizer, each with
        its tensor. The others are forgotten."""
        live = []
        for key, watched in list(self.unheld.items()):
            parameter = watched.reference()
            if parameter is None or key in held_ids:
                del self.unheld[key]
            else:
                live.append((watched, parameter))
        return live

    def _count_after(self, parameters: list[Any], held_ids: set[int]) -> int:
        """Count the given parameters that are used after the first one that an optimizer holds, so
        that gradients flow through them to it.

        It is unknown where a model uses parameters of its own, outside of its layers. They count if
        the model's very first layer is held.
        """
        order = self._models.in_order()
        first = next((index for index, key in enumerate(order) if key in held_ids), len(order))
        if order and first == 0:
            return len(parameters)
        later = set(order[first:])
        return sum(id(parameter) in later for parameter in parameters)

    # Losses that are not finite

    def _check_loss(self, tensors: Any, where: str | None, optimizers: OptimizerFacts) -> None:
        if type(tensors) is not self._tensor or self._is_not_finite or tensors.numel() != 1:
            return
        if tensors.is_cpu:
            value = self._read(tensors)
            if value is not None:
                self._facts.tally("loss_value", "cpu")
            if value is not None and not abs(value) < float("inf"):
                self._mark_loss(now(), where, value, optimizers)
            return
        if not is_plain(self._torch, tensors):
            return
        self._pending.append((now(), where, tensors.detach()))
        if len(self._pending) >= _PENDING and is_quiet(self._torch):
            self.read_pending(optimizers)

    def read_pending(self, optimizers: OptimizerFacts) -> None:
        pending = [loss for loss in self._pending if is_readable(self._torch, loss[2])]
        self._pending = []
        if not pending or self._is_not_finite:
            return
        with self._torch._C.DisableTorchFunction(), self._torch.no_grad():
            losses = [loss.reshape(()).float() for _, _, loss in pending]
            values = self._torch.stack(losses).tolist()
        for (at_ns, where, _), value in zip(pending, values, strict=True):
            self._facts.tally("loss_value", "device")
            if not abs(value) < float("inf"):
                self._mark_loss(at_ns, where, value, optimizers)
                return

    def _mark_loss(
        self, at_ns: int, where: str | None, value: Any, optimizers: OptimizerFacts
    ) -> None:
        self._is_not_finite = True
        optimizers.loss_not_finite()
        self._facts.mark_at("loss_not_finite", at_ns, where, loss=str(value))


def _subtraction_before(node: Any) -> Any:
    """Return the graph node of the difference that a loss is computed from; None if there is
    none."""
    for _ in range(_LOSS_NODES):
        if node is None or node.name().rstrip("0123456789") not in _LOSS_PARTS:
            return None
        if node.name() == "SubBackward0":
            return node
        following = node.next_functions
        node = following[0][0] if following else None
    return None


def display_names(parameters: Sequence[Any], names: dict[int, Named]) -> str:
    """Return the first few parameters as text: by name or, if it is unknown, by shape."""
    words = []
    for parameter in parameters[:_NAMED]:
        name = names.get(id(parameter))
        words.append(name[0] if name else f"a parameter of shape {tuple(parameter.shape)}")
    return ", ".join(words)


RELU = "ReluBackward0"
# Operations that may stand between parameters and a ReLU.
_LAYERS = (
    "Addmm",
    "Mm",
    "Bmm",
    "Convolution",
    "NativeBatchNorm",
    "CudnnBatchNorm",
    "MiopenBatchNorm",
    "NativeLayerNorm",
    "NativeGroupNorm",
    "UnsafeView",
    "View",
    "ReshapeAlias",
    "Add",
    "Linear",
    "MkldnnConvolution",
    "MkldnnLinear",
)
_BEFORE_RELU = (*_LAYERS, "T", "Transpose")
_MOST_LAYERS, _MOST_ELEMENTS = 64, 1 << 22
_FEWEST_UNITS = 4


class Layer:
    """Figures about one ReLU layer.

    Attributes:
        alive: True for each unit whose output has been above zero; a tensor on the layer's device.
        name: Name of the parameter before the layer.
        rows: Number of inspected outputs of each unit.
    """

    def __init__(self, alive: Any, name: str) -> None:
        self.alive = alive
        self.name = name
        self.rows = 0


class UnitFacts:
    """Records units of ReLU layers whose output is never above zero, by line of the backward pass.
    The outputs are read from the graph, which stores them.

    Only a ReLU right after an operation with parameters counts: a hinge loss is also a ReLU, but
    its output is zero when all is well.
    """

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts) -> None:
        self._facts = facts
        self._torch = torch
        self._models = models
        self._layers: dict[str | None, list[Layer]] = {}
        self._passes: dict[str | None, int] = {}

    def examine(self, nodes: Sequence[Any], where: str | None, held_ids: set[int]) -> None:
        """Read the stored outputs of a graph's ReLU nodes, in the order of the nodes."""
        results = []
        with quiet(), self._torch._C.DisableTorchFunction():
            if not is_quiet(self._torch):
                return
            for node in nodes[:_MOST_LAYERS]:
                parameter = _parameter_before(node, held_ids)
                raw = node._raw_saved_result
                if parameter is None or not hasattr(raw, "unpack_hook"):
                    continue
                if raw.unpack_hook is not None:  # reading the output would recompute it
                    continue
                result = node._saved_result
                if is_plain(self._torch, result) and result.ndim > 1:
                    results.append((parameter, result.detach()))
            if results:
                with self._torch.no_grad():
                    self._add(results, where)

    def _add(self, results: list[tuple[Any, Any]], where: str | None) -> None:
        torch, layers = self._torch, self._layers.get(where)
        # dimension of the units: the last of sequences (3 dimensions), otherwise the channels
        axes = [2 if result.ndim == 3 else 1 for _, result in results]
        sizes = [result.shape[axis] for (_, result), axis in zip(results, axes, strict=True)]
        # start anew: the first graph of this line, or one with other layers than the graph before
        if layers is None or [len(layer.alive) for layer in layers] != sizes:
            layers = self._layers[where] = self._new_layers(results, sizes)
            self._passes[where] = 0
        self._passes[where] += 1
        for layer, (_, result), axis in zip(layers, results, axes, strict=True):
            rows = max(1, _MOST_ELEMENTS * len(result) // max(result.numel(), 1))
            part = result[:rows]
            reduced = [dimension for dimension in range(part.ndim) if dimension != axis]
            layer.alive |= ~(part.amax(reduced) <= 0)  # nan counts as alive
            layer.rows += part.numel() // len(layer.alive)
        counts = torch.stack([layer.alive.sum().cpu() for layer in layers]).tolist()
        dead = [(layer, len(layer.alive) - n) for layer, n in zip(layers, counts, strict=True)]
        self._mark_worst(dead, where)

    def _new_layers(self, results: list[tuple[Any, Any]], sizes: list[int]) -> list[Layer]:
        torch, names, layers = self._torch, self._models.names(), []
        for (parameter, result), n in zip(results, sizes, strict=True):
            name = names[id(parameter)][0] if id(parameter) in names else ""
            alive = torch.zeros(n, dtype=torch.bool, device=result.device)
            layers.append(Layer(alive, name))
        return layers

    def _mark_worst(self, dead: list[tuple[Layer, int]], where: str | None) -> None:
        large = [pair for pair in dead if len(pair[0].alive) >= _FEWEST_UNITS]
        if not large:
            return
        layer, n = max(large, key=lambda pair: pair[1] / len(pair[0].alive))
        self._facts.mark(
            "units",
            where,
            self._passes[where],
            layers=len(dead),
            units=len(layer.alive),
            dead=n,
            rows=layer.rows,
            after=layer.name,
        )


def _parameter_before(node: Any, held_ids: set[int]) -> Any:
    """Return the first parameter right before a ReLU that an optimizer holds; None if the ReLU's
    input comes from no layer."""
    level = [following for following, _ in node.next_functions]
    for _ in range(3):
        deeper: list[Any] = []
        for before in level:
            leaf = getattr(before, "variable", None)
            if leaf is not None and id(leaf) in held_ids:
                return leaf
            if before is None:
                continue
            operation = before.name().rstrip("0123456789").removesuffix("Backward")
            if operation in _BEFORE_RELU:
                deeper += [following for following, _ in before.next_functions]
        level = deeper
    return None


_MADE_BY = {
    "SoftmaxBackward": "softmax",
    "LogSoftmaxBackward": "log_softmax",
    "SigmoidBackward": "sigmoid",
}
# Operations that change the shape or type of a tensor but not its values (or, as clamps, only the
# smallest and largest values).
_SAME = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Transpose",
    "Permute",
    "T",
    "Squeeze",
    "Unsqueeze",
    "ToCopy",
    "Clone",
    "Slice",
    "Select",
    "Alias",
    "Expand",
    "Index",
    "AsStrided",
    "Split",
    "Unbind",
    "Cat",
    "Contiguous",
    "Stack",
    "Clamp",
    "ClampMin",
    "ClampMax",
)
_MOST_BETWEEN = 8
# The first ``_EACH_LOSS`` calls of a loss function are inspected, then only each
# ``_SELDOM_LOSS``-th; at most ``_MOST_WRITTEN`` facts are written for one line.
_EACH_LOSS, _SELDOM_LOSS, _MOST_WRITTEN = 256, 257, 3


class LossFacts(Watcher):
    """Records unsuitable inputs of loss functions."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._written: set[tuple[str, str, str | None]] = set()
        self._calls: dict[str, int] = {}
        self._shapes: dict[tuple[str, str | None], int] = {}

    def enter_with_logits(self, function: str) -> Callable[..., int]:
        """Return the function to run before a loss that expects logits, or log probabilities."""
        return lambda value: self._check_source(function, value) or 1

    def enter_with_pair(self, function: str) -> Callable[..., int]:
        """Return the function to run before a loss whose input and target have the same shape, or
        are broadcast to it."""
        return lambda *arguments: self._compare(function, *arguments) or 1

    @never_raises("the input of a loss")
    def _compare(self, function: str, value: Any, target: Any, reduction: Any) -> None:
        n = self._calls[function] = self._calls.get(function, 0) + 1
        if (n > _EACH_LOSS and n % _SELDOM_LOSS) or reduction == "none":
            return
        tensor = self._torch.Tensor
        if not issubclass(type(value), tensor):
            return
        if not issubclass(type(target), tensor):
            return
        with self._torch._C.DisableTorchFunction():
            if value.requires_grad or target.requires_grad:
                self._facts.tally("loss_call", function)
            shape, other = tuple(value.shape), tuple(target.shape)
            if shape == other or not (value.requires_grad or target.requires_grad):
                return
        if not _pairs_all(shape, other):
            return
        where = self._facts.where()
        n = self._shapes[function, where] = self._shapes.get((function, where), 0) + 1
        if n <= _MOST_WRITTEN:
            self._facts.mark(
                "loss_shapes",
                where,
                n,
                loss=function,
                becomes=str(_broadcast(shape, other)),
                input=str(shape),
                target=str(other),
            )

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
        source = _source_of(node)
        if not self._torch.is_grad_enabled():
            source = source or "evaluated"
        elif node is not None:
            self._facts.tally("loss_call", function)
        if source is None:
            return
        where = self._facts.where()
        if (function, source, where) not in self._written:
            self._written.add((function, source, where))
            self._facts.mark("loss_input", where, loss=function, input=source)


def _pairs_all(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if two shapes have the same number of elements but broadcast to all pairs of them, as
    (n, 1) and (n,) do. All pairs are intended if both shapes have equally many dimensions, or if
    the loss has no reduction."""
    if len(shape) == len(other):
        return False
    if _without_ones(shape) != _without_ones(other):
        return False
    return _broadcast(shape, other) != _broadcast(shape, shape)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _broadcast(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which two shapes are broadcast, without leading dimensions of 1."""
    n = max(len(shape), len(other))
    shape = (1,) * (n - len(shape)) + shape
    other = (1,) * (n - len(other)) + other
    sizes = tuple(map(max, shape, other))
    while sizes[:1] == (1,):
        sizes = sizes[1:]
    return sizes


def _source_of(node: Any) -> str | None:
    """Return the function of ``_MADE_BY`` that made a tensor, by the tensor's graph node; None if
    another one did. Operations that keep the values (``_SAME``) are skipped."""
    for _ in range(_MOST_BETWEEN):
        if node is None:
            return None
        name = node.name().rstrip("0123456789")
        if name in _MADE_BY:
            return _MADE_BY[name]
        if name.removesuffix("Backward") not in _SAME:
            return None
        node = node.next_functions[0][0] if node.next_functions else None
    return None
