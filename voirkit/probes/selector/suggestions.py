"""What a source file offers to probe: each function's variables, loops and returns, and the lines that a voirfile could begin with.

Each selector has passed the check that every run makes. Where the script trains is guessed from its source (the loop that leads to
``.backward()``), which is never run.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cached_property

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.check import check_all
from voirkit.probes.source import arguments, dotted
from voirkit.probes.source import is_top as is_top_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Literal, TypeAlias

    from voirkit.probes.selector.catalogue import Catalogue, Function, Loop

    Kind: TypeAlias = Literal["parameter", "variable", "loop", "return", "yield"]
    LoopNode: TypeAlias = ast.For | ast.AsyncFor | ast.While

MOST_CALLS = 4  # from the loop to backward(): fit -> epoch -> step -> closure
COUNTERS = {"range", "trange", "arange", "count", "xrange"}
# What gives the elements of its first argument.
PASSING_ON = {"enumerate", "tqdm", "iter", "zip", "islice", "cycle", "track", "progress_bar", "reversed", "list"}
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
        return list(_own_nodes(self.body))

    def binds(self, name: str) -> bool:
        """Whether the function has such a variable or parameter."""
        return self.function is not None and (name in self.function.parameters or name in self.function.variables)


@dataclass(frozen=True)
class TrainingLoop:
    """A loop whose turns lead to ``.backward()``: a ``for`` loop, or a ``while`` loop that fetches a batch in each turn."""

    block: Block  # where the loop stands
    node: LoopNode  # the loop
    calls: tuple[tuple[Block, ast.Call], ...]  # the calls of ``backward``, with the blocks they stand in
    steps: bool  # whether its turns lead to ``.step()`` too
    hops: int  # calls of the script's functions between the loop and ``backward``
    depth: int  # how many loops of the block are around it


class Script:
    """The blocks of a script, and which calls which."""

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

    def handed_to(self, block: Block, call: ast.Call, name: str) -> Iterator[tuple[Block, str]]:
        """The functions of the script that a call gives a variable to, with the parameter that takes it."""
        for called in self._called(block, call):
            for parameter in called.function.parameters if called.function else ():
                given = argument(call, called, parameter)
                if given is not None and dotted(given) == name:
                    yield called, parameter

    def _loops_of(self, block: Block) -> Iterator[TrainingLoop]:
        loops: list[LoopNode] = [node for node in block.nodes if isinstance(node, ast.For | ast.AsyncFor)]
        loops += [node for node in block.nodes if isinstance(node, ast.While) and fetched_batch(node) is not None]
        inside = {loop: list(_own_nodes(loop.body)) for loop in loops}
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
        if isinstance(loop.node, ast.While):
            return 2 if any(True for _ in calls(_own_turn(loop.node), "next")) else 0
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
    inner = behind(iterated)
    if isinstance(inner, ast.Call) and dotted(inner.func).endswith(("Sampler", "sampler", "Loader", "loader")):
        return False
    called = [dotted(n.func).rpartition(".")[2] for n in ast.walk(iterated) if isinstance(n, ast.Call)]
    return any(name in COUNTERS for name in called) and "zip" not in called


def behind(iterated: ast.expr) -> ast.expr:
    """What a loop goes over, behind ``enumerate``, ``tqdm`` and the like."""
    node = iterated
    while isinstance(node, ast.Call) and node.args and dotted(node.func).rpartition(".")[2] in PASSING_ON:
        node = node.args[0]
    return node


def fetched_batch(loop: LoopNode) -> str | None:
    """The variable that takes the batch which each turn fetches itself: ``next(it)``, ``get_batch()``, ``memory.sample(n)``."""
    return next((name for name, value in assignments(_own_turn(loop)) if _fetches(value)), None)


def sliced_batch(loop: ast.For | ast.AsyncFor) -> str | None:
    """The variable that takes what each turn cuts out by its counter: ``indices[start : start + size]``."""
    counters = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for name, value in assignments(_own_turn(loop)):
        used = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        if counters.isdisjoint(used):
            continue
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            return name
        counters.add(name)
    return None


def _own_turn(loop: LoopNode) -> Iterator[ast.AST]:
    """What a turn of a loop does, in source order, but for the turns of loops in it."""
    stack: list[ast.AST] = [*loop.body[::-1]]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.AsyncFor | ast.While):
            continue
        yield node
        stack += list(ast.iter_child_nodes(node))[::-1]


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
    """What a call gives for a parameter of the function; None if that cannot be seen."""
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


def _own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes and all in them but inner functions and classes, in source order."""
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield node
        stack += list(ast.iter_child_nodes(node))[::-1]


READINGS = ("use_cuda", "model", "loader", "loss", "step+batch", "compute_start/end")
NAMES = {
    "use_cuda": ("use_cuda", "use_gpu", "cuda", "with_cuda", "on_gpu"),
    "model": ("model", "net", "network", "module"),
    "loader": ("train_loader", "trainloader", "train_dataloader", "loader", "dataloader", "data_loader", "train_dl"),
}
NO_MODEL = ("crit", "loss", "optim", "sched", "scaler", "token", "transform", "collate", "augment", "metric", "log")
IN_PLACE = "it has no name of its own: set a variable to it"
A_WHILE_LOOP = "a while loop has no variable of its own; voirkit's recorder gives the step and its batch"
AN_ATTRIBUTE = "it is an attribute: set a variable to it first"
MOST_CALLERS = 4  # that a parameter is followed through


@dataclass(frozen=True)
class Candidate:
    """What a script offers for one reading."""

    reading: str  # one of READINGS
    line: int  # of the source: where it is set
    selector: str = ""  # the selector; empty if none can be written now
    code: str = ""  # the line for an instrument, or what it would be without the obstacle; empty if that is not known
    obstacle: str = ""  # why it cannot be probed; empty if it can
    note: str = ""  # what else one should know


@dataclass(frozen=True)
class _Named:
    """A variable: its name, the block that it belongs to, the line."""

    block: Block
    name: str
    line: int


class Candidates:
    """What a script offers for each reading."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._script = Script(catalogue)
        self._loop: TrainingLoop | None = next(iter(self._script.loops), None)

    def line(self, reading: str) -> str | None:
        """The line to write into an instrument of the voirfile for one of ``READINGS``, or None if nothing in the script looks like it."""
        found = self.find(reading)
        return found.code if found and not found.obstacle else None

    def find(self, reading: str) -> Candidate | None:
        """The best candidate for a reading, also if it cannot be probed; None if nothing looks like it."""
        found = next(iter(self._all(reading)), None)
        usable = next((c for c in self._all(reading) if not c.obstacle), None)
        return usable or found

    def other_loops(self) -> list[tuple[str, int]]:
        """Other loops that train, with a ``.backward()`` of their own: (where, line)."""
        taken = {call for _, call in self._loop.calls} if self._loop else set()
        others = []
        for loop in self._script.loops[1:]:
            own = {call for _, call in loop.calls}
            if not own & taken:
                others.append((".".join(loop.block.path) or "the top level", loop.node.lineno))
                taken |= own
        return others

    def options(self) -> int | None:
        """The line in which argparse reads the script's command line."""
        for block in self._script.blocks:
            for name in ("parse_args", "parse_known_args"):
                for call in calls(block.nodes, name):
                    return call.lineno
        return None

    def _all(self, reading: str) -> Iterator[Candidate]:
        if reading == "loss":
            yield from self._loss()
        elif reading in ("step+batch", "compute_start/end"):
            yield from self._turns(reading)
        elif reading == "use_cuda":
            yield from self._use_cuda()
        else:
            found = self._models() if reading == "model" else self._loaders()
            yield from (self._variable(reading, named) for named in found)
            yield from self._called(reading)

    # each reading

    def _loss(self) -> Iterator[Candidate]:
        for block, call in self._script.learning:
            for name in loss_names(call):
                named = _Named(block, name, self._set_in(block, name) or call.lineno)
                yield self._losses(named, call) if _times_set(block, name) > 1 else self._variable("loss", named)
        if self._loop:  # backward in a closure that cannot be probed: the loop may get its loss from it
            for name, value in assignments(self._loop.block.nodes):
                if "loss" in name.lower() and isinstance(value, ast.Call):
                    yield self._variable("loss", _Named(self._loop.block, name, value.lineno))
        for _, call in self._script.learning[:1]:
            yield Candidate("loss", call.lineno, obstacle=IN_PLACE)

    def _losses(self, named: _Named, call: ast.Call) -> Candidate:
        """A loss that is set several times: what it is at the end of the turn or of the call, one event for each.

        Of the values before, some may be a part of it, or it before it was divided for accumulation.
        """
        block, name = named.block, named.name
        times = f"It is set {_times_set(block, name)} times in {_label(block)}"
        loop = self._loop_around(block, call)
        turn = batch_name(loop) if isinstance(loop, ast.For | ast.AsyncFor) else None
        is_called_for_each = loop is None and block.function is not None
        if "." in name or (turn is None and not is_called_for_each):
            return replace(self._variable("loss", named), note=f"{times}, and each is an event.")
        end, often = ("#exit", "call") if turn is None else (f"#endloop_{turn}", "turn of the loop")
        found = self._checked("loss", named.line, block, f"({_captured_as(name, 'loss')}) > {end}")
        note = f"{times}: what it is at the end of each {often} is given."
        return replace(found, code=f'ov.probe("{found.selector}")["loss"].give("loss")', note=note)

    def _loop_around(self, block: Block, call: ast.Call) -> LoopNode | None:
        """The loop whose turns have one loss each: that of the steps, if the call stands in it, else the innermost around it."""
        loops = [n for n in block.nodes if isinstance(n, ast.For | ast.AsyncFor | ast.While) and any(one is call for one in ast.walk(n))]
        if self._loop is not None and self._loop.node in loops:
            return self._loop.node
        return loops[-1] if loops else None

    def _turns(self, reading: str) -> Iterator[Candidate]:
        if self._loop is None:
            return
        block, node = self._loop.block, self._loop.node
        if isinstance(node, ast.While):
            yield Candidate(reading, node.lineno, obstacle=A_WHILE_LOOP)
            return
        turn = batch_name(node)
        if turn is None:
            yield Candidate(reading, node.lineno, obstacle="the target of the loop is no variable")
            return
        batch: str | None = turn
        if counts(node.iter):
            batch = fetched_batch(node) or sliced_batch(node)
        if batch is None or (counts(node.iter) and reading != "step+batch"):
            missing = "its turns only count" if batch is None else "its turns fetch their batch themselves"
            yield Candidate(reading, node.lineno, obstacle=f"{missing}: give what is meant with giving.give")
            return
        captured = _captured_as(batch, "batch")
        selector = f"({captured}) > #endloop_{turn} as step"
        if reading != "step+batch":
            selector = f"({captured}, !#loop_{turn} as compute_start, !!#endloop_{turn} as compute_end)"
        yield self._checked(reading, node.lineno, block, selector)

    def _use_cuda(self) -> Iterator[Candidate]:
        yield from self._called("use_cuda")
        for named in self._every("device"):
            found = self._variable("device", named)
            code = f'ov.probe("{found.selector}")["device"].map(lambda device: {{"use_cuda": "cuda" in str(device)}}).give()'
            yield replace(found, reading="use_cuda", code=code if found.selector else "")

    def _models(self) -> Iterator[_Named]:
        """What is called on batches, or has its ``parameters()`` given to an optimizer."""
        blocks = [block for block, _ in self._script.learning[:1]]
        blocks += [self._loop.block] if self._loop else []
        batch = self._batch()
        for group in (dict.fromkeys(blocks), self._script.blocks):
            scores: dict[tuple[Block, str], int] = {}
            for block in group:
                for name, points in self._model_points(block, batch):
                    scores[block, name] = scores.get((block, name), 0) + points
            for block, name in sorted(scores, key=lambda key: -scores[key]):
                if scores[block, name] > 1:
                    yield from self._traced(block, name)

    def _batch(self) -> str | None:
        """The variable that holds a batch in the training loop."""
        if self._loop is None:
            return None
        return fetched_batch(self._loop.node) if isinstance(self._loop.node, ast.While) else batch_name(self._loop.node)

    def _model_points(self, block: Block, batch: str | None) -> Iterator[tuple[str, int]]:
        for node in block.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            owner, _, method = name.rpartition(".")
            if owner and method in ("parameters", "train", "eval", "state_dict"):
                yield owner, 3 if method == "parameters" else 1
            elif name and not any(word in name.lower() for word in NO_MODEL) and self._is_variable(block, name):
                on_batch = any(isinstance(n, ast.Name) and n.id == batch for a in node.args for n in ast.walk(a))
                yield name, (2 if on_batch else 0) + (2 if name.rpartition(".")[2] in NAMES["model"] else 0)

    def _loaders(self) -> Iterator[_Named]:
        """What is iterated over for the batches that reach ``backward``; nothing where the loop makes its batches itself."""
        if self._loop is None:
            return
        block, node = self._loop.block, self._loop.node
        iterated: ast.expr | None = None if isinstance(node, ast.While) else node.iter
        if iterated is None or counts(iterated):
            iterated = next((n for n in _own_turn(node) if isinstance(n, ast.Call) and dotted(n.func) == "next" and n.args), None)
            if iterated is None:
                return
        name = _iterated(iterated)
        for other, value in assignments(block.nodes):  # it = iter(loader)
            if other == name and isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in PASSING_ON:
                name = _iterated(value)
        if name:
            yield from self._traced(block, name)
        else:
            yield _Named(block, "", node.lineno)

    def _is_evaluated(self, block: Block, name: str, depth: int = MOST_CALLERS) -> bool:
        """Whether a loader is iterated over by loops that lead to no ``backward``, and by no other."""
        words = [*block.path, name]
        if any(word in part.lower() for part in words for word in SIDE_WORK):
            return True
        uses = list(self._uses(block, name, depth))
        return bool(uses) and not any(uses)

    def _uses(self, block: Block, name: str, depth: int) -> Iterator[bool]:
        """For each loop over a variable, here and in the functions that it is handed to: whether its turns lead to ``backward``."""
        training = {loop.node for loop in self._script.loops}
        for node in block.nodes:
            if isinstance(node, ast.For | ast.AsyncFor) and _iterated(node.iter) == name:
                yield node in training
            if isinstance(node, ast.Call) and depth:
                for called, parameter in self._script.handed_to(block, node, name):
                    yield from self._uses(called, parameter, depth - 1)

    # variables

    def _called(self, reading: str) -> Iterator[Candidate]:
        """What is called as readings mostly are; no loader of an evaluation, and none where the training loop shows what it goes over."""
        if reading == "loader" and self._loop is not None:
            return
        for name in NAMES[reading]:
            for named in self._every(name):
                if reading != "loader" or not self._is_evaluated(named.block, name):
                    yield self._variable(reading, named)

    def _every(self, name: str) -> Iterator[_Named]:
        """Variables of that name, then parameters, then at the top level."""
        for kind in ("variables", "parameters"):
            for block in self._script.blocks:
                found = getattr(block.function, kind, {}).get(name)
                if found is not None:
                    yield _Named(block, name, found.line)
        for block in self._script.blocks:
            if block.function is None and self._is_variable(block, name):
                yield _Named(block, name, self._catalogue.names[name].line)

    def _traced(self, block: Block, name: str) -> Iterator[_Named]:
        """A variable where it is made, then where it is handed over: a value made in ``main`` is set there once."""
        chain = [(block, name)]
        for _ in range(MOST_CALLERS):
            before = self._origin(*chain[-1])
            if before is None or before in chain:
                break
            chain.append(before)
        for place, word in chain[::-1]:
            line = self._set_in(place, word)
            if line is not None:
                yield _Named(place, word, line)
        name = chain[-1][1]
        if name in self._catalogue.names and not self._catalogue.names[name].origin:  # a global that the function reads
            yield _Named(block, name, self._catalogue.names[name].line)

    def _origin(self, block: Block, name: str) -> tuple[Block, str] | None:
        """What a parameter or an attribute was called in the function that it comes from."""
        if name.startswith("self."):
            for other in self._script.blocks:
                if other.path[:-1] == block.path[:-1] and other.path:
                    for target, value in assignments(other.nodes):
                        if target == name and isinstance(value, ast.Name) and other.binds(value.id):
                            return other, value.id
            return None
        if block.function is None or name not in block.function.parameters:
            return None
        for caller, call in self._script.callers(block):
            given = argument(call, block, name)
            if given is not None and self._is_variable(caller, dotted(given)):
                return caller, dotted(given)
        return None

    def _is_variable(self, block: Block, name: str) -> bool:
        """Whether it is a variable of the block or an attribute of ``self``."""
        if name.startswith("self."):
            return name.count(".") == 1 and bool(block.path)
        known = self._catalogue.names.get(name)
        makes = known is not None and ("def" in known.forms or "class" in known.forms or known.origin is not None)
        return block.binds(name) or (known is not None and not makes)

    def _set_in(self, block: Block, name: str) -> int | None:
        """The line in which a variable is set in a block."""
        if block.function is None:
            return self._catalogue.names[name].line if name in self._catalogue.names else None
        found = block.function.parameters | block.function.variables | block.function.attributes
        return found[name].line if name in found else None

    def _variable(self, reading: str, named: _Named) -> Candidate:
        block, name = named.block, named.name
        if not name:
            return Candidate(reading, named.line, obstacle=IN_PLACE)
        if "." in name:
            return Candidate(reading, named.line, obstacle=AN_ATTRIBUTE)
        return self._checked(reading, named.line, block, f" > {_captured_as(name, reading)}")

    def _checked(self, reading: str, line: int, block: Block, rest: str) -> Candidate:
        selector = reference(block.function or self._catalogue.top, self._catalogue.module) + rest
        refused = refusal(selector, self._catalogue)
        return Candidate(reading, line, selector, f'ov.probe("{selector}").give()', refused)


def _label(block: Block) -> str:
    return ".".join(block.path) or "the script"


def _captured_as(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"


def _times_set(block: Block, name: str) -> int:
    """How many statements of a block set a variable."""
    changed = [node for node in block.nodes if isinstance(node, ast.AugAssign) and dotted(node.target) == name]
    return len(changed) + sum(other == name for other, _ in assignments(block.nodes))


def _fetches(value: ast.expr) -> bool:
    """Whether an expression fetches a batch: ``next(it)``, ``get_batch(...)``, ``sample_batch()``, ``memory.sample(n)``."""
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func).lower()
        is_sampled = name.endswith(".sample") and bool(node.args or node.keywords)  # a distribution's has no argument
        if name == "next" or "batch" in name or is_sampled:
            return True
    return False


def _iterated(node: ast.expr) -> str:
    """The name behind ``enumerate(tqdm(loader))``; empty for a loader that is made in place."""
    for _ in range(MOST_CALLERS):
        if not isinstance(node, ast.Call) or dotted(node.func).endswith(("Loader", "loader")):
            break
        if not node.args:  # loader.batches()
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            break
        called = dotted(node.func).rpartition(".")[2]
        if called != "next" and called not in PASSING_ON and not _is_loader_name(dotted(node.args[0])):
            return ""  # batches of another function, such as buffer.get(batch_size)
        node = node.args[0]
    return dotted(node)


def _is_loader_name(name: str) -> bool:
    word = name.lower().rpartition(".")[2]
    return "loader" in word or word.endswith(("batches", "_dl", "_iter")) or word in ("batches", "dl")


_DEFINED = frozenset({"import", "def", "class", "type"})  # what a module's names are mostly set to, and nobody means to watch


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing in a function."""

    kind: Kind  # what it is
    names: tuple[str, ...]  # the variable; all names of a loop's target; nothing for returns and yields
    lines: tuple[int, ...]  # where: the first value of a variable, the ``for``, each ``return`` or ``yield``
    selectors: tuple[str, ...]  # ready to paste, the most useful first; empty if it cannot be probed
    refused: str  # why not; empty if it can


@dataclass(frozen=True, slots=True)
class FunctionOffers:
    """A function, how selectors begin that name it, why nothing in it can be probed (empty if it can), and what is in it."""

    function: Function
    prefix: str
    refused: str
    offers: tuple[Offer, ...]


def reference(function: Function, module: str = "") -> str:
    """How a selector names a function: ``//Trainer/run``, ``/pkg.module/f``."""
    return "/".join(["", module, *function.path])


def refusal(selector: str, catalogue: Catalogue) -> str:
    """Why a selector of this file cannot be used, without the function's name and place in front; empty if it can."""
    script = None if catalogue.module else catalogue
    try:
        check_all(parse(selector, ""), script, catalogue.filename, modules=lambda name: catalogue if name == catalogue.module else None)
    except SelectorError as error:
        what = error.what.removeprefix(f"selector {selector!r}: ").rstrip(".")
        return re.sub(r"^(?:[\w.]+ \(.*?:\d+\)|the top level of \S+) |cannot be probed(?: for '.*?')?: ", "", what)
    return ""


def offers(catalogue: Catalogue) -> list[FunctionOffers]:
    """The top level, and all functions of a file in source order, lambdas and redefined ones too."""
    every = [_offers_of(function, catalogue) for function in (catalogue.top, *catalogue.functions)]
    return every if every[0].offers else every[1:]


def _offers_of(function: Function, catalogue: Catalogue) -> FunctionOffers:
    name = reference(function, catalogue.module)
    refused = "" if function is catalogue.top else _not_live(function, catalogue) or refusal(f"{name} > #enter", catalogue)
    listed = tuple(_usable_offer(offer, refused, catalogue) for offer in _possible_offers(function, name))
    return FunctionOffers(function, name, refused, listed)


def _not_live(function: Function, catalogue: Catalogue) -> str:
    """Why a selector that names this function means another definition."""
    live = catalogue.candidates(function.path)
    if function in live:
        return ""
    if any(decorator.endswith((".setter", ".deleter")) for decorator in function.decorators):
        return "it is the setter or deleter of a property, whose name means its getter"
    return f"it is defined again in line {live[-1].line}" if live else "its name means something else"


def _usable_offer(offer: Offer, refused: str, catalogue: Catalogue) -> Offer:
    """The offer with those of its selectors that can be used."""
    if refused:
        return Offer(offer.kind, offer.names, offer.lines, (), refused)
    reasons = {selector: refusal(selector, catalogue) for selector in offer.selectors}
    usable = tuple(selector for selector, reason in reasons.items() if not reason)
    reason = next(filter(None, reasons.values()), offer.refused)
    return Offer(offer.kind, offer.names, offer.lines, usable, "" if usable else reason)


def _possible_offers(function: Function, name: str) -> Iterator[Offer]:
    """Everything in the function, with the selectors that one would like to use."""
    inner = {name: variable for name, variable in function.comprehension_variables.items() if not function.knows(name)}
    is_top = is_top_level(function.node)
    for kind, found in (("parameter", function.parameters), ("variable", function.variables | function.attributes | inner)):
        for variable in found.values():
            if is_top and _DEFINED.issuperset(variable.forms):
                continue
            yield Offer(kind, (variable.name,), (variable.line,), (f"{name} > {variable.name}",), "")  # type: ignore[arg-type]
    for loop in function.loops:
        yield Offer("loop", loop.names, (loop.line,), loop_selectors(function, loop, name), "its target is no variable")
    if is_top:
        return
    if function.is_generator:
        yield Offer("yield", (), function.yields, (f"{name} > #yield as item",), "")
    else:
        yield Offer("return", (), function.returns, (f"{name}() as result",), "")


def loop_selectors(function: Function, loop: Loop, name: str) -> tuple[str, ...]:
    """One event a turn, and the pair of events around each turn, under the names that the rates expect. A loop that only counts (``for
    epoch in range(3)``) has no batches, so it keeps the names of the script."""
    node = next((n for n in ast.walk(function.node) if isinstance(n, ast.For | ast.AsyncFor) and n.lineno == loop.line), None)
    batch = batch_name(node) if node is not None else None
    if batch is None:
        return ()
    if node is not None and counts(node.iter):
        return f"{name}({batch}) > #endloop_{batch} as turn", f"{name}({batch}, !#loop_{batch} as begin, !!#endloop_{batch} as end)"
    captured = batch if batch == "batch" else f"{batch} as batch"
    return (
        f"{name}({captured}) > #endloop_{batch} as step",
        f"{name}({captured}, !#loop_{batch} as compute_start, !!#endloop_{batch} as compute_end)",
    )
