"""Finds the training loops of a script: the loops whose iterations lead to ``.backward()``.

The calls between the script's functions are followed. All is guessed from the source alone, which
is never run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from voirkit.probes.source import arguments, body_of, dotted, names_in, stored_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from voirkit.probes.selector.catalogue import Catalogue, Function

    LoopNode: TypeAlias = ast.For | ast.AsyncFor | ast.While
    CallSite: TypeAlias = tuple["Block", ast.Call]  # a call, and the block that contains it

# maximum number of nested calls that are followed from a loop to backward(), such as fit -> epoch
# -> step -> closure
MOST_CALLS = 4
COUNTERS = {"range", "trange", "arange", "count", "xrange"}
# Functions that return the elements of their first argument, or an iterator over them.
WRAPPERS = {
    "enumerate",
    "tqdm",
    "iter",
    "zip",
    "islice",
    "cycle",
    "track",
    "progress_bar",
    "reversed",
    "list",
}
# Methods of torch's own objects: `optimizer.step()` is not a call of the script's `Trainer.step`,
# unless it is `self.step()`.
TORCH_METHODS = {
    "step",
    "backward",
    "forward",
    "train",
    "eval",
    "to",
    "cuda",
    "zero_grad",
    "parameters",
    "update",
    "scale",
}
# Words in the names of functions and loaders that do not train the model.
SIDE_WORK = ("pretrain", "pre_train", "warm", "eval", "valid", "test", "bench")
# Ends of names of objects that have a ``backward`` method but are not a loss.
NOT_A_LOSS = (
    "self",
    "scaler",
    "accelerator",
    "fabric",
    "engine",
    "torch",
    "autograd",
    "amp",
    "optimizer",
    "manager",
)
_FUNCTIONS_AND_CLASSES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, eq=False)
class Block:
    """The statements of a function's body, or of the script's top level (``function`` is None)."""

    function: Function | None
    body: tuple[ast.stmt, ...]

    @property
    def path(self) -> tuple[str, ...]:
        """The function's path; empty at the top level."""
        return self.function.path if self.function else ()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes in the block except inner functions and classes, in source order."""
        return list(nodes_in_order(self.body, _FUNCTIONS_AND_CLASSES))

    def binds(self, name: str) -> bool:
        """True if the function has a variable or parameter of that name."""
        if self.function is None:
            return False
        return name in self.function.parameters or name in self.function.variables


@dataclass(frozen=True)
class TrainingLoop:
    """A loop whose iterations lead to ``.backward()``: a ``for`` loop, or a ``while`` loop that
    fetches a batch in each iteration."""

    block: Block  # the block that contains the loop
    node: LoopNode  # the loop's syntax node
    backward_calls: tuple[CallSite, ...]
    steps: bool  # True if the iterations lead to ``.step()`` too
    hops: int  # number of calls of the script's functions between the loop and ``backward``
    depth: int  # number of loops around this one in the same block


class Script:
    """The blocks of a script, and the calls between them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.blocks = [
            Block(function, tuple(function.node.body))
            for function in catalogue.functions
            if not isinstance(function.node, ast.Lambda)
        ]
        top_level = body_of(catalogue.top.node)
        self.blocks.append(Block(None, tuple(top_level)))
        self._block_by_path = {block.path: block for block in self.blocks}
        self._classes = {definition.path[-1]: definition.path for definition in catalogue.classes}
        self._instances = dict(self._find_instances())

    def _find_instances(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield names that are set to an instance of one of the script's classes, with the path of
        the class."""
        for block in self.blocks:
            for name, value in assignments(block.nodes):
                if not isinstance(value, ast.Call):
                    continue
                path = self._classes.get(dotted(value.func))
                if path is not None:
                    yield name, path

    @cached_property
    def loops(self) -> list[TrainingLoop]:
        """The training loops, the likeliest first."""
        loops = [loop for block in self.blocks for loop in self._training_loops(block)]
        # a stable sort: equally likely loops stay in source order
        return sorted(loops, key=self._likeliness, reverse=True)

    @cached_property
    def backward_calls(self) -> list[CallSite]:
        """All calls of ``backward``, those of the likeliest loop first."""
        likeliest = list(self.loops[0].backward_calls) if self.loops else []
        sites = [(block, call) for block in self.blocks for call in calls(block.nodes, "backward")]
        return likeliest + [site for site in sites if site not in likeliest]

    def callers(self, callee: Block) -> Iterator[CallSite]:
        """Yield the calls of a function of the script."""
        for block in self.blocks:
            for node in block.nodes:
                if isinstance(node, ast.Call) and callee in self._callees(block, node):
                    yield block, node

    def receivers(self, block: Block, call: ast.Call, name: str) -> Iterator[tuple[Block, str]]:
        """Yield the functions of the script to which a call passes a variable, each with the
        parameter that gets it."""
        for callee in self._callees(block, call):
            for parameter in callee.function.parameters if callee.function else ():
                value = argument(call, callee, parameter)
                if value is not None and dotted(value) == name:
                    yield callee, parameter

    def _training_loops(self, block: Block) -> Iterator[TrainingLoop]:
        bodies = {
            loop: list(nodes_in_order(loop.body, _FUNCTIONS_AND_CLASSES))
            for loop in _loops_over_batches(block)
        }
        for loop, body in bodies.items():
            backward_calls = self._calls_reached(block, body, "backward")
            if not backward_calls:
                continue
            sites = tuple(site for _, site in backward_calls)
            steps = bool(self._calls_reached(block, body, "step"))
            hops = min(hops for hops, _ in backward_calls)
            depth = sum(loop in other for other in bodies.values())
            yield TrainingLoop(block, loop, sites, steps, hops, depth)

    def _calls_reached(
        self, block: Block, nodes: Iterable[ast.AST], name: str
    ) -> list[tuple[int, CallSite]]:
        """Return the calls of a method in the nodes and in the functions that they call, each with
        the number of calls in between."""
        sites: list[tuple[int, CallSite]] = []
        visited: set[Block] = set()
        level = [(block, list(nodes))]
        for hops in range(MOST_CALLS):
            callees: list[Block] = []
            for caller, inner in level:
                sites += [(hops, (caller, call)) for call in calls(inner, name)]
                for node in inner:
                    if isinstance(node, ast.Call):
                        callees += self._callees(caller, node)
            unvisited = [callee for callee in dict.fromkeys(callees) if callee not in visited]
            level = [(callee, callee.nodes) for callee in unvisited]
            visited.update(unvisited)
        return sites

    def _callees(self, block: Block, call: ast.Call) -> list[Block]:
        """Return the script's functions that a call runs: by name, as a method, or passed as an
        argument (``optimizer.step(closure)``)."""
        paths: list[tuple[str, ...]] = []
        values = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
        for node in values:
            if isinstance(node, ast.Name):
                paths += [(*block.path, node.id), (node.id,)]
                if node is call.func and node.id in self._classes:
                    paths.append((*self._classes[node.id], "__init__"))
        if isinstance(call.func, ast.Attribute):
            paths += self._methods(block, call.func.value, call.func.attr)
        callees = [self._block_by_path[path] for path in paths if path in self._block_by_path]
        return [
            callee
            for callee in dict.fromkeys(callees)
            if callee is not block and callee.function is not None
        ]

    def _methods(self, block: Block, owner: ast.expr, name: str) -> list[tuple[str, ...]]:
        """Return the paths of the methods that ``owner.name`` may refer to."""
        if isinstance(owner, ast.Call):
            cls = self._classes.get(dotted(owner.func))
            return [(*cls, name)] if cls else []
        same_name = self._methods_named(name)
        if dotted(owner) == "self":
            method = (*block.path[:-1], name)
            return [method] if method in same_name else same_name
        cls = self._instances.get(dotted(owner))
        if cls:
            return [(*cls, name)]
        return [] if name in TORCH_METHODS else same_name

    def _methods_named(self, name: str) -> list[tuple[str, ...]]:
        paths = [block.path for block in self.blocks if len(block.path) > 1]
        classes = self._classes.values()
        return [path for path in paths if path[-1] == name and path[:-1] in classes]

    def _likeliness(self, loop: TrainingLoop) -> tuple[int, bool, bool, int, int]:
        name = "/".join(loop.block.path).lower()
        is_side_work = any(word in name for word in SIDE_WORK)
        return _batch_rank(loop), loop.steps, not is_side_work, -loop.hops, loop.depth


def _loops_over_batches(block: Block) -> list[LoopNode]:
    """Return the ``for`` loops, then the ``while`` loops that fetch a batch in each iteration."""
    loops = [node for node in block.nodes if isinstance(node, _LOOPS)]
    while_loops = [loop for loop in loops if isinstance(loop, ast.While)]
    for_loops = [loop for loop in loops if loop not in while_loops]
    return for_loops + [loop for loop in while_loops if fetched_batch(loop) is not None]


def _batch_rank(loop: TrainingLoop) -> int:
    """Return 2 if the loop iterates over something named or created like a loader, 0 if it only
    counts, otherwise 1."""
    if isinstance(loop.node, ast.While):
        calls_next = any(True for _ in calls(nodes_of_turn(loop.node), "next"))
        return 2 if calls_next else 0
    iterated = [
        dotted(node).lower()
        for node in ast.walk(loop.node.iter)
        if isinstance(node, ast.Name | ast.Attribute)
    ]
    loaders = {name for name, value in assignments(loop.block.nodes) if _makes_loader(value)}
    if any(_is_called_as_batches(name) or name in loaders for name in iterated):
        return 2
    return 0 if only_counts(loop.node.iter) else 1


def _is_called_as_batches(name: str) -> bool:
    return "loader" in name or "batches" in name or name.endswith(("_dl", "_iter"))


def _makes_loader(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and "loader" in dotted(value.func).lower()


def nodes_in_order(
    nodes: Iterable[ast.AST], without: tuple[type[ast.AST], ...]
) -> Iterator[ast.AST]:
    """Yield nodes and all nodes in them, in source order. Nodes of the types in ``without`` are
    skipped with everything in them."""
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, without):
            continue
        yield node
        children = list(ast.iter_child_nodes(node))
        stack += children[::-1]


def nodes_of_turn(loop: LoopNode) -> Iterator[ast.AST]:
    """Yield the nodes in the body of a loop, in source order, without inner loops."""
    return nodes_in_order(loop.body, (*_FUNCTIONS_AND_CLASSES, *_LOOPS))


def batch_name(loop: ast.For | ast.AsyncFor) -> str | None:
    """Return the first name of the loop's target that is not the counter of an ``enumerate``."""
    names = stored_names(ast.walk(loop.target))
    is_numbered = "enumerate" in names_in(loop.iter)
    if is_numbered and isinstance(loop.target, ast.Tuple) and len(names) > 1:
        counter = getattr(loop.target.elts[0], "id", None)
        names = [name for name in names if name != counter]
    return names[0] if names else None


def only_counts(iterated: ast.expr) -> bool:
    """True if a loop over the expression only counts."""
    innermost = unwrap_iterable(iterated)
    maker = dotted(innermost.func) if isinstance(innermost, ast.Call) else ""
    if maker.endswith(("Sampler", "sampler", "Loader", "loader")):
        return False
    callees = [called_name(node) for node in ast.walk(iterated) if isinstance(node, ast.Call)]
    return any(name in COUNTERS for name in callees) and "zip" not in callees


def unwrap_iterable(iterated: ast.expr) -> ast.expr:
    """Return the expression inside ``enumerate``, ``tqdm`` and the like."""
    node = iterated
    while isinstance(node, ast.Call) and node.args and called_name(node) in WRAPPERS:
        node = node.args[0]
    return node


def called_name(call: ast.Call) -> str:
    """Return ``f`` for ``f()`` and ``module.f()``; empty for a call of any other expression."""
    return dotted(call.func).rpartition(".")[2]


def fetched_batch(loop: LoopNode) -> str | None:
    """Return the variable that gets the batch which each iteration fetches itself: ``next(it)``,
    ``get_batch()``, ``memory.sample(n)``."""
    for name, value in assignments(nodes_of_turn(loop)):
        if _fetches(value):
            return name
    return None


def _fetches(value: ast.expr) -> bool:
    """True if an expression fetches a batch: ``next(it)``, ``get_batch(...)``, ``sample_batch()``,
    ``memory.sample(n)``."""
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func).lower()
        # sample() of a probability distribution has no argument
        is_sampled = name.endswith(".sample") and bool(node.args or node.keywords)
        if name == "next" or "batch" in name or is_sampled:
            return True
    return False


def sliced_batch(loop: ast.For | ast.AsyncFor) -> str | None:
    """Return the variable that gets the slice which each iteration takes by its counter:
    ``indices[start : start + size]``."""
    counters = names_in(loop.target)
    for name, value in assignments(nodes_of_turn(loop)):
        if counters.isdisjoint(names_in(value)):
            continue
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            return name
        counters.add(name)
    return None


def calls(nodes: Iterable[ast.AST], name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or method of that name."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function_name = getattr(node.func, "id", None)
        if getattr(node.func, "attr", function_name) == name:
            yield node


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) for each ``name = value``, ``self.name = value`` and ``a, b = x, y``."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _targets_with_values(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from _targets_with_values(node.target, node.value)


def _targets_with_values(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List):
        values = [value] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            values = value.elts
        for inner, part in zip(target.elts, values, strict=True):
            yield from _targets_with_values(inner, part)
        return
    name = dotted(target)
    if name:
        yield name, value


def argument(call: ast.Call, callee: Block, parameter: str) -> ast.expr | None:
    """Return the expression that a call passes for a parameter of the function; None if it cannot
    be determined."""
    function = callee.function
    assert function is not None  # the callee has parameters, so it is not the top level
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [name.arg for name in arguments(function.node.args)]
    if function.kind == "method" and "staticmethod" not in function.decorators:
        names = names[1:]
    if parameter not in names:
        return None
    position = names.index(parameter)
    up_to_it = call.args[: position + 1]
    if len(up_to_it) <= position or any(isinstance(value, ast.Starred) for value in up_to_it):
        return None
    return up_to_it[position]


def loss_names(call: ast.Call) -> list[str]:
    """Return the names that may be the loss of a call of ``backward``, the likeliest first:
    ``loss.backward()``, ``scaler.scale(loss).backward()``."""
    names: list[str] = []
    stack: list[ast.expr] = [*call.args[:1]]
    if isinstance(call.func, ast.Attribute):
        stack.append(call.func.value)
    while stack:
        node = stack.pop()
        name = dotted(node)
        if name:
            names.append(name)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                stack.append(node.func.value)
            stack += node.args[:1]
        elif isinstance(node, ast.BinOp):
            stack += [node.right, node.left]
        elif isinstance(node, ast.UnaryOp):
            stack.append(node.operand)
    likely = [name for name in names if not name.lower().rpartition(".")[2].endswith(NOT_A_LOSS)]
    return sorted(dict.fromkeys(likely), key=lambda name: "loss" not in name.lower())
