"""Where a script trains: the loop that leads to ``.backward()``, found in the syntax tree and never by running it.

Rests on how training scripts are written, so it guesses; what it returns says where in the source it comes from.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from voirkit.probes.syntax import arguments, dotted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from voirkit.probes.catalogue import Catalogue, Function

MOST_CALLS = 4  # from the loop to backward(): fit -> epoch -> step -> closure
COUNTERS = {"range", "trange", "arange", "count", "xrange"}
# Methods of torch's own objects: `optimizer.step()` is no call of the script's `Trainer.step`, unless it is `self.step()`.
OF_TORCH = {"step", "backward", "forward", "train", "eval", "to", "cuda", "zero_grad", "parameters", "update", "scale"}
SIDE_WORK = ("pretrain", "pre_train", "warm", "eval", "valid", "test", "bench")
NO_LOSS = ("self", "scaler", "accelerator", "fabric", "engine", "torch", "autograd", "amp", "optimizer", "manager")


@dataclass(frozen=True, eq=False)
class Block:
    """Statements that run as one: the body of a function, or the top level of the script (function is None)."""

    function: Function | None
    body: tuple[ast.stmt, ...]

    @property
    def path(self) -> tuple[str, ...]:
        """The function's path; empty at the top level."""
        return self.function.path if self.function else ()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All in it but inner functions and classes, in source order."""
        return list(_own(self.body))

    def binds(self, name: str) -> bool:
        """Whether the function has such a variable or parameter."""
        return self.function is not None and (name in self.function.parameters or name in self.function.variables)


@dataclass(frozen=True)
class TrainingLoop:
    """A ``for`` loop whose turns lead to ``.backward()``.

    Attributes:
        block: Where the loop stands.
        node: The loop.
        calls: The calls of ``backward``, with the blocks they stand in.
        steps: Whether its turns lead to ``.step()`` too.
        hops: Calls of the script's functions between the loop and ``backward``.
        depth: How many loops of the block are around it.
    """

    block: Block
    node: ast.For | ast.AsyncFor
    calls: tuple[tuple[Block, ast.Call], ...]
    steps: bool
    hops: int
    depth: int


class Script:
    """The blocks of a script, and which calls which.

    Args:
        catalogue: The script's.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.blocks = [Block(f, tuple(f.node.body)) for f in catalogue.functions if not isinstance(f.node, ast.Lambda)]
        self.blocks.append(Block(None, tuple(catalogue.top.node.body)))  # type: ignore[arg-type]  # no lambda
        self._by_path = {block.path: block for block in self.blocks}
        self._classes = {c.path[-1]: c.path for c in catalogue.classes}
        self._instances = dict(self._find_instances())

    def _find_instances(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Names that are set to an instance of one of the script's classes."""
        for block in self.blocks:
            for name, value in assignments(block.nodes):
                if isinstance(value, ast.Call) and dotted(value.func) in self._classes:
                    yield name, self._classes[dotted(value.func)]

    @cached_property
    def loops(self) -> list[TrainingLoop]:
        """The loops that train, the likeliest first."""
        found = [loop for block in self.blocks for loop in self._loops_of(block)]
        return sorted(found, key=self._likeliness, reverse=True)  # stable: of equals the first in the source

    @cached_property
    def learning(self) -> list[tuple[Block, ast.Call]]:
        """All calls of ``backward``: those of the likeliest loop first."""
        inside = list(self.loops[0].calls) if self.loops else []
        every = [(block, call) for block in self.blocks for call in calls(block.nodes, "backward")]
        return inside + [one for one in every if one not in inside]

    def callers(self, block: Block) -> Iterator[tuple[Block, ast.Call]]:
        """Who calls a function of the script, and where."""
        for other in self.blocks:
            for node in other.nodes:
                if isinstance(node, ast.Call) and block in self._called(other, node):
                    yield other, node

    def _loops_of(self, block: Block) -> Iterator[TrainingLoop]:
        loops = [node for node in block.nodes if isinstance(node, ast.For | ast.AsyncFor)]
        inside = {loop: list(_own(loop.body)) for loop in loops}
        for loop in loops:
            sites = self._reached(block, inside[loop], "backward")
            if sites:
                hops = min(n for n, _, _ in sites)
                depth = sum(loop in inside[other] for other in loops)
                steps = bool(self._reached(block, inside[loop], "step"))
                yield TrainingLoop(block, loop, tuple((b, call) for _, b, call in sites), steps, hops, depth)

    def _reached(self, block: Block, nodes: Iterable[ast.AST], name: str) -> list[tuple[int, Block, ast.Call]]:
        """The calls of a method in these nodes and in the functions that they call: (hops, block, call)."""
        found: list[tuple[int, Block, ast.Call]] = []
        seen: set[Block] = set()
        level = [(block, list(nodes))]
        for hops in range(MOST_CALLS):
            following: list[Block] = []
            for here, inner in level:
                found += [(hops, here, call) for call in calls(inner, name)]
                following += [b for n in inner if isinstance(n, ast.Call) for b in self._called(here, n)]
            level = [(b, b.nodes) for b in dict.fromkeys(following) if b not in seen]
            seen.update(b for b, _ in level)
        return found

    def _called(self, block: Block, call: ast.Call) -> list[Block]:
        """The script's functions that a call leads to: by name, as a method, or handed over (``optimizer.step(closure)``)."""
        paths: list[tuple[str, ...]] = []
        words = [call.func, *call.args, *(k.value for k in call.keywords)]
        for node in words:
            if isinstance(node, ast.Name):
                paths += [(*block.path, node.id), (node.id,)]
                if node is call.func and node.id in self._classes:
                    paths.append((*self._classes[node.id], "__init__"))
        if isinstance(call.func, ast.Attribute):
            paths += self._methods(block, call.func.value, call.func.attr)
        found = [self._by_path[path] for path in paths if path in self._by_path]
        return [b for b in dict.fromkeys(found) if b is not block and b.function is not None]

    def _methods(self, block: Block, owner: ast.expr, name: str) -> list[tuple[str, ...]]:
        """The methods that ``owner.name`` can mean."""
        every = [b.path for b in self.blocks if len(b.path) > 1 and b.path[-1] == name and b.path[:-1] in self._classes.values()]
        if isinstance(owner, ast.Call):
            cls = self._classes.get(dotted(owner.func))
            return [(*cls, name)] if cls else []
        if dotted(owner) == "self":
            own = (*block.path[:-1], name)
            return [own] if own in every else every
        cls = self._instances.get(dotted(owner))
        if cls:
            return [(*cls, name)]
        return [] if name in OF_TORCH else every

    def _likeliness(self, loop: TrainingLoop) -> tuple[int, bool, bool, int, int]:
        name = "/".join(loop.block.path).lower()
        aside = any(word in name for word in SIDE_WORK)
        return self._over_batches(loop), loop.steps, not aside, -loop.hops, loop.depth

    def _over_batches(self, loop: TrainingLoop) -> int:
        """2 if it goes over what is called or made as a loader, 0 if it only counts."""
        words = [dotted(n).lower() for n in ast.walk(loop.node.iter) if isinstance(n, ast.Name | ast.Attribute)]
        made = {
            name for name, value in assignments(loop.block.nodes) if isinstance(value, ast.Call) and "loader" in dotted(value.func).lower()
        }
        if any("loader" in w or "batches" in w or w.endswith(("_dl", "_iter")) or w in made for w in words):
            return 2
        return 0 if counts(loop.node.iter) else 1


def batch_name(loop: ast.For | ast.AsyncFor) -> str | None:
    """The first name of the loop's target that is not the counter of an ``enumerate``."""
    names = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    numbered = any(isinstance(n, ast.Name) and n.id == "enumerate" for n in ast.walk(loop.iter))
    if numbered and isinstance(loop.target, ast.Tuple) and len(names) > 1:
        names = [name for name in names if name != getattr(loop.target.elts[0], "id", None)]
    return names[0] if names else None


def counts(iterated: ast.expr) -> bool:
    """Whether a loop over it does nothing but count."""
    called = [dotted(n.func).rpartition(".")[2] for n in ast.walk(iterated) if isinstance(n, ast.Call)]
    return any(name in COUNTERS for name in called) and "zip" not in called


def calls(nodes: Iterable[ast.AST], name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that name."""
    for node in nodes:
        if isinstance(node, ast.Call) and name == getattr(node.func, "attr", getattr(node.func, "id", None)):
            yield node


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """``(name, value)`` of each ``name = value``, ``self.name = value`` and ``a, b = x, y``."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from _pairs(node.target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List):
        each = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        values = value.elts if each and isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        for inner, part in zip(target.elts, values, strict=True):
            yield from _pairs(inner, part)
    elif dotted(target):
        yield dotted(target), value


def argument(call: ast.Call, block: Block, parameter: str) -> ast.expr | None:
    """What a call gives for a parameter of the function; None if that can not be seen."""
    assert block.function is not None  # it has parameters
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [a.arg for a in arguments(block.function.node.args)]
    if block.function.kind == "method" and "staticmethod" not in block.function.decorators:
        names = names[1:]
    at = names.index(parameter) if parameter in names else len(call.args)
    seen = call.args[: at + 1]
    return seen[at] if len(seen) > at and not any(isinstance(a, ast.Starred) for a in seen) else None


def loss_names(call: ast.Call) -> list[str]:
    """What a call of ``backward`` may be about, the likeliest first: ``loss.backward()``, ``scaler.scale(loss).backward()``."""
    found: list[str] = []
    stack: list[ast.expr] = [*call.args[:1]]
    if isinstance(call.func, ast.Attribute):
        stack.append(call.func.value)
    while stack:
        node = stack.pop()
        if dotted(node):
            found.append(dotted(node))
        elif isinstance(node, ast.Call):
            stack += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            stack += node.args[:1]
        elif isinstance(node, ast.BinOp):
            stack += [node.right, node.left]
        elif isinstance(node, ast.UnaryOp):
            stack.append(node.operand)
    likely = [name for name in found if not any(name.lower().rpartition(".")[2].endswith(word) for word in NO_LOSS)]
    return sorted(dict.fromkeys(likely), key=lambda name: "loss" not in name.lower())


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes and all in them but inner functions and classes, in source order."""
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield node
        stack += list(ast.iter_child_nodes(node))[::-1]
