"""Lines for a voirfile that a script's source suggests: where its loss, batches, model and loader are.

Reads the source only; never runs it. ``voirkit init`` writes a voirfile of them, ``--verify`` shows those that are missing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from voirkit.probes.offers import reference, refusal
from voirkit.probes.syntax import dotted
from voirkit.probes.training import Block, Script, TrainingLoop, argument, assignments, batch_name, calls, counts, loss_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from voirkit.probes.catalogue import Catalogue

READINGS = ("use_cuda", "model", "loader", "loss", "step+batch", "compute_start/end")
NAMES = {
    "use_cuda": ("use_cuda", "use_gpu", "cuda", "with_cuda", "on_gpu"),
    "model": ("model", "net", "network", "module"),
    "loader": ("train_loader", "trainloader", "train_dataloader", "loader", "dataloader", "data_loader", "train_dl"),
}
NO_MODEL = ("crit", "loss", "optim", "sched", "scaler", "token", "transform", "collate", "augment", "metric", "log")
IN_PLACE = "it has no name of its own: set a variable to it"
AN_ATTRIBUTE = "it is an attribute: set a variable to it first"
MOST_CALLERS = 4  # that a parameter is followed through


@dataclass(frozen=True)
class Candidate:
    """What a script offers for one reading.

    Attributes:
        reading: One of READINGS.
        line: Of the source: where it is set.
        selector: The selector; empty if none can be written now.
        code: The line for an instrument, or what it would be without the obstacle; empty if that is not known.
        obstacle: Why it can not be probed; empty if it can.
        note: What else one should know.
    """

    reading: str
    line: int
    selector: str = ""
    code: str = ""
    obstacle: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Named:
    """A variable: its name, the block that it belongs to, the line."""

    block: Block
    name: str
    line: int


class Candidates:
    """What a script offers for each reading.

    Args:
        catalogue: The script's.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._script = Script(catalogue)
        self._loop: TrainingLoop | None = next(iter(self._script.loops), None)

    def line(self, reading: str) -> str | None:
        """The line to write into an instrument of the voirfile, or None if nothing in the script looks like it.

        Args:
            reading: ``loss``, ``step+batch``, ``compute_start/end``, ``use_cuda``, ``model`` or ``loader``.
        """
        found = self.find(reading)
        return found.code if found and not found.obstacle else None

    def find(self, reading: str) -> Candidate | None:
        """The best candidate for a reading, also if it can not be probed; None if nothing looks like it."""
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
                found = self._variable("loss", named)
                times = [value for other, value in assignments(block.nodes) if other == name]
                note = f"It is set {len(times)} times in {_label(block)}, and each is an event." if len(times) > 1 else ""
                yield replace(found, note=note)
        if self._loop:  # backward in a closure that can not be probed: the loop may get its loss from it
            for name, value in assignments(self._loop.block.nodes):
                if "loss" in name.lower() and isinstance(value, ast.Call):
                    yield self._variable("loss", _Named(self._loop.block, name, value.lineno))
        for _, call in self._script.learning[:1]:
            yield Candidate("loss", call.lineno, obstacle=IN_PLACE)

    def _turns(self, reading: str) -> Iterator[Candidate]:
        if self._loop is None:
            return
        block, node = self._loop.block, self._loop.node
        turn = batch_name(node)
        if turn is None:
            yield Candidate(reading, node.lineno, obstacle="the target of the loop is no variable")
            return
        batch: str | None = turn
        if counts(node.iter):
            batch = next((name for name, value in assignments(node.body) if _fetches(value)), None)
        if batch is None or (counts(node.iter) and reading != "step+batch"):
            missing = "its turns only count" if batch is None else "its turns fetch their batch themselves"
            yield Candidate(reading, node.lineno, obstacle=f"{missing}: give what is meant with giving.give")
            return
        captured = _as(batch, "batch")
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
        batch = batch_name(self._loop.node) if self._loop else None
        for group in (dict.fromkeys(blocks), self._script.blocks):
            scores: dict[tuple[Block, str], int] = {}
            for block in group:
                for name, points in self._model_points(block, batch):
                    scores[block, name] = scores.get((block, name), 0) + points
            for block, name in sorted(scores, key=lambda key: -scores[key]):
                if scores[block, name] > 1:
                    yield from self._traced(block, name)

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
        if self._loop is None:
            return
        block, iterated = self._loop.block, self._loop.node.iter
        if counts(iterated):
            iterated = next((n for n in ast.walk(self._loop.node) if isinstance(n, ast.Call) and dotted(n.func) == "next"), iterated)
        name = _iterated(iterated)
        for other, value in assignments(block.nodes):  # it = iter(loader)
            if other == name and isinstance(value, ast.Call) and dotted(value.func) in ("iter", "enumerate", "tqdm", "zip"):
                name = _iterated(value)
        if name:
            yield from self._traced(block, name)
        else:
            yield _Named(block, "", self._loop.node.lineno)

    # variables

    def _called(self, reading: str) -> Iterator[Candidate]:
        for name in NAMES[reading]:
            yield from (self._variable(reading, named) for named in self._every(name))

    def _every(self, name: str) -> Iterator[_Named]:
        """Variables of that name, then parameters, then at the top level."""
        functions = [block for block in self._script.blocks if block.function]
        for block in functions:
            if block.function and name in block.function.variables:
                yield _Named(block, name, block.function.variables[name].line)
        for block in functions:
            if block.function and name in block.function.parameters:
                yield _Named(block, name, block.function.parameters[name].line)
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
        return self._checked(reading, named.line, block, f" > {_as(name, reading)}")

    def _checked(self, reading: str, line: int, block: Block, rest: str) -> Candidate:
        selector = reference(block.function or self._catalogue.top, self._catalogue.module) + rest
        refused = refusal(selector, self._catalogue)
        return Candidate(reading, line, selector, f'ov.probe("{selector}").give()', refused)


def _label(block: Block) -> str:
    return ".".join(block.path) or "the script"


def _as(name: str, wanted: str) -> str:
    return name if name == wanted else f"{name} as {wanted}"


def _fetches(value: ast.expr) -> bool:
    """Whether an expression fetches a batch: ``next(it)``, ``get_batch(...)``, ``sample_batch()``."""
    names: Iterable[str] = (dotted(n.func).lower() for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(name == "next" or "batch" in name for name in names)


def _iterated(node: ast.expr) -> str:
    """The name behind ``enumerate(tqdm(loader))``; empty for a loader that is made in place."""
    for _ in range(MOST_CALLERS):
        if not isinstance(node, ast.Call) or dotted(node.func).endswith(("Loader", "loader")):
            break
        if not node.args:  # loader.batches()
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            break
        node = node.args[0]
    return dotted(node)
