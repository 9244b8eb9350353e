"""Suggests the first lines of a voirfile for a script: probes of its model, loader, loss and steps.

The values to probe are called readings (``READINGS``). Each selector has passed the check that
every run makes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from voirkit.probes.selector.offers import reference, refusal
from voirkit.probes.selector.training_loops import (
    SIDE_WORK,
    WRAPPERS,
    Block,
    Script,
    TrainingLoop,
    argument,
    assignments,
    batch_name,
    called_name,
    calls,
    fetched_batch,
    loss_names,
    nodes_of_turn,
    only_counts,
    sliced_batch,
)
from voirkit.probes.source import dotted, names_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from voirkit.probes.selector.catalogue import Catalogue
    from voirkit.probes.selector.training_loops import LoopNode

READINGS = ("use_cuda", "model", "loader", "loss", "step+batch", "compute_start/end")
NAMES = {
    "use_cuda": ("use_cuda", "use_gpu", "cuda", "with_cuda", "on_gpu"),
    "model": ("model", "net", "network", "module"),
    "loader": (
        "train_loader",
        "trainloader",
        "train_dataloader",
        "loader",
        "dataloader",
        "data_loader",
        "train_dl",
    ),
}
# Parts of names of objects that are called on batches but are not a model.
NOT_A_MODEL = (
    "crit",
    "loss",
    "optim",
    "sched",
    "scaler",
    "token",
    "transform",
    "collate",
    "augment",
    "metric",
    "log",
)
IN_PLACE = "it has no name of its own: set a variable to it"
A_WHILE_LOOP = (
    "a while loop has no variable of its own; voirkit's recorder gives the step and its batch"
)
AN_ATTRIBUTE = "it is an attribute: set a variable to it first"
NO_VARIABLE = "the target of the loop is no variable"
ONLY_COUNTS = "its turns only count: give what is meant with giving.give"
FETCHES_ITSELF = "its turns fetch their batch themselves: give what is meant with giving.give"
MOST_CALLERS = 4  # maximum number of callers through which a parameter is followed


@dataclass(frozen=True)
class Candidate:
    """A place in a script where one reading may be probed."""

    reading: str  # one of READINGS
    line: int  # source line where the variable is set
    selector: str = ""  # the selector; empty if none can be written now
    # line of code for an instrument, even if there is an obstacle; empty if unknown
    code: str = ""
    obstacle: str = ""  # reason why this place cannot be probed; empty if it can be
    note: str = ""  # further information for the user


@dataclass(frozen=True)
class _BlockVariable:
    """A variable with its block and line. The name is empty for a value that has no name."""

    block: Block
    name: str
    line: int


class Candidates:
    """The candidates of a script for each reading."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._script = Script(catalogue)
        self._loop: TrainingLoop | None = next(iter(self._script.loops), None)

    def line(self, reading: str) -> str | None:
        """Return the line to write into an instrument of the voirfile for one of ``READINGS``; None
        if nothing in the script looks like it."""
        candidate = self.find(reading)
        return candidate.code if candidate and not candidate.obstacle else None

    def find(self, reading: str) -> Candidate | None:
        """Return the best candidate for a reading, even if it cannot be probed; None if nothing
        looks like it."""
        first = None
        for candidate in self._candidates(reading):
            if not candidate.obstacle:
                return candidate
            first = first or candidate
        return first

    def other_loops(self) -> list[tuple[str, int]]:
        """Return (where, line) for other training loops that have their own ``.backward()``."""
        loops = self._script.loops
        known_calls = _backward_nodes(loops[0]) if loops else set()
        places = []
        for loop in loops[1:]:
            backward_calls = _backward_nodes(loop)
            if known_calls.isdisjoint(backward_calls):
                places.append((".".join(loop.block.path) or "the top level", loop.node.lineno))
                known_calls |= backward_calls
        return places

    def options(self) -> int | None:
        """Return the line in which argparse reads the script's command line; None if not found."""
        for block in self._script.blocks:
            for name in ("parse_args", "parse_known_args"):
                for call in calls(block.nodes, name):
                    return call.lineno
        return None

    def _candidates(self, reading: str) -> Iterator[Candidate]:
        if reading == "loss":
            yield from self._loss_candidates()
        elif reading in ("step+batch", "compute_start/end"):
            yield from self._step_candidates(reading)
        elif reading == "use_cuda":
            yield from self._use_cuda_candidates()
        else:
            variables = self._models() if reading == "model" else self._loaders()
            for variable in variables:
                yield self._variable_candidate(reading, variable)
            yield from self._named_candidates(reading)

    # The candidates for each reading

    def _loss_candidates(self) -> Iterator[Candidate]:
        backward_calls = self._script.backward_calls
        for block, call in backward_calls:
            for name in loss_names(call):
                line = self._line_of(block, name) or call.lineno
                variable = _BlockVariable(block, name, line)
                if _times_set(block, name) > 1:
                    yield self._last_loss_candidate(variable, call)
                else:
                    yield self._variable_candidate("loss", variable)
        # If backward() is in a closure that cannot be probed, the loop may get the loss from the
        # closure; then the variable that the loop sets to it is a candidate.
        if self._loop:
            block = self._loop.block
            for name, value in assignments(block.nodes):
                if "loss" in name.lower() and isinstance(value, ast.Call):
                    variable = _BlockVariable(block, name, value.lineno)
                    yield self._variable_candidate("loss", variable)
        for _, call in backward_calls[:1]:
            yield Candidate("loss", call.lineno, obstacle=IN_PLACE)

    def _last_loss_candidate(self, variable: _BlockVariable, call: ast.Call) -> Candidate:
        """Return a candidate for a loss that is set several times.

        It gives the loss once, at the end of each iteration or call. Earlier values may be parts of
        the loss, or the loss before it was divided for gradient accumulation.
        """
        block, name = variable.block, variable.name
        times = f"It is set {_times_set(block, name)} times in {_label(block)}"
        loop = self._loop_around(block, call)
        turn = batch_name(loop) if isinstance(loop, ast.For | ast.AsyncFor) else None
        is_called_for_each = loop is None and block.function is not None
        if "." in name or (turn is None and not is_called_for_each):
            candidate = self._variable_candidate("loss", variable)
            return replace(candidate, note=f"{times}, and each is an event.")
        if turn is None:
            event, period = "#exit", "call"
        else:
            event, period = f"#endloop_{turn}", "turn of the loop"
        captured = _captured_as(name, "loss")
        candidate = self._checked_candidate("loss", variable.line, block, f"({captured}) > {event}")
        code = f'ov.probe("{candidate.selector}")["loss"].give("loss")'
        note = f"{times}: what it is at the end of each {period} is given."
        return replace(candidate, code=code, note=note)

    def _loop_around(self, block: Block, call: ast.Call) -> LoopNode | None:
        """Return the loop whose iterations have one loss each.

        It is the training loop if that contains the call, otherwise the innermost loop around it.
        """
        loops = [
            node
            for node in block.nodes
            if isinstance(node, ast.For | ast.AsyncFor | ast.While) and call in ast.walk(node)
        ]
        if self._loop is not None and self._loop.node in loops:
            return self._loop.node
        return loops[-1] if loops else None

    def _step_candidates(self, reading: str) -> Iterator[Candidate]:
        if self._loop is None:
            return
        node = self._loop.node
        if isinstance(node, ast.While):
            yield Candidate(reading, node.lineno, obstacle=A_WHILE_LOOP)
            return
        turn = batch_name(node)
        if turn is None:
            yield Candidate(reading, node.lineno, obstacle=NO_VARIABLE)
            return
        batch: str | None = turn
        is_counter = only_counts(node.iter)
        if is_counter:
            batch = fetched_batch(node) or sliced_batch(node)
        if batch is None:
            yield Candidate(reading, node.lineno, obstacle=ONLY_COUNTS)
            return
        if is_counter and reading != "step+batch":
            yield Candidate(reading, node.lineno, obstacle=FETCHES_ITSELF)
            return
        captured = _captured_as(batch, "batch")
        if reading == "step+batch":
            events = f"({captured}) > #endloop_{turn} as step"
        else:
            events = (
                f"({captured}, !#loop_{turn} as compute_start, !!#endloop_{turn} as compute_end)"
            )
        yield self._checked_candidate(reading, node.lineno, self._loop.block, events)

    def _use_cuda_candidates(self) -> Iterator[Candidate]:
        yield from self._named_candidates("use_cuda")
        for variable in self._variables_named("device"):
            candidate = self._variable_candidate("device", variable)
            code = ""
            if candidate.selector:
                code = (
                    f'ov.probe("{candidate.selector}")["device"].map(lambda device: {{"use_cuda":'
                    ' "cuda" in str(device)}).give()'
                )
            yield replace(candidate, reading="use_cuda", code=code)

    def _models(self) -> Iterator[_BlockVariable]:
        """Yield variables that are called on batches, or whose ``parameters()`` are requested as
        for an optimizer."""
        blocks = [block for block, _ in self._script.backward_calls[:1]]
        if self._loop:
            blocks.append(self._loop.block)
        batch = self._batch()
        for group in (dict.fromkeys(blocks), self._script.blocks):
            scores: dict[tuple[Block, str], int] = {}
            for block in group:
                for name, points in self._model_points(block, batch):
                    scores[block, name] = scores.get((block, name), 0) + points
            for block, name in sorted(scores, key=lambda key: -scores[key]):
                if scores[block, name] > 1:
                    yield from self._trace_to_origin(block, name)

    def _batch(self) -> str | None:
        """Return the variable that holds a batch in the training loop."""
        if self._loop is None:
            return None
        node = self._loop.node
        return fetched_batch(node) if isinstance(node, ast.While) else batch_name(node)

    def _model_points(self, block: Block, batch: str | None) -> Iterator[tuple[str, int]]:
        """Yield names that may be a model, each with points for how likely this is."""
        for node in block.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            owner, _, method = name.rpartition(".")
            if owner and method in ("parameters", "train", "eval", "state_dict"):
                yield owner, 3 if method == "parameters" else 1
            elif name and _may_be_a_model(name) and self._is_variable(block, name):
                points = 0
                if any(batch in names_in(value) for value in node.args):
                    points += 2
                if method in NAMES["model"]:
                    points += 2
                yield name, points

    def _loaders(self) -> Iterator[_BlockVariable]:
        """Yield the variable that is iterated over for the batches that reach ``backward``.

        Yield nothing if the loop makes its batches itself.
        """
        if self._loop is None:
            return
        block, node = self._loop.block, self._loop.node
        iterated: ast.expr | None = None if isinstance(node, ast.While) else node.iter
        if iterated is None or only_counts(iterated):
            iterated = _call_of_next(node)
            if iterated is None:
                return
        name = _iterated_name(iterated)
        for other, value in assignments(block.nodes):  # such as it = iter(loader)
            if other != name or not isinstance(value, ast.Call):
                continue
            if called_name(value) in WRAPPERS:
                name = _iterated_name(value)
        if name:
            yield from self._trace_to_origin(block, name)
        else:
            yield _BlockVariable(block, "", node.lineno)

    def _is_evaluated(self, block: Block, name: str, depth: int = MOST_CALLERS) -> bool:
        """True if a loader is not for training: by its name, or because no loop over it leads to
        ``backward``."""
        words = [*block.path, name]
        if any(word in part.lower() for part in words for word in SIDE_WORK):
            return True
        uses = list(self._uses(block, name, depth))
        return bool(uses) and not any(uses)

    def _uses(self, block: Block, name: str, depth: int) -> Iterator[bool]:
        """Yield a flag for each loop over a variable, in this block and in the functions that the
        variable is passed to: True if the loop leads to ``backward``."""
        training_loops = {loop.node for loop in self._script.loops}
        for node in block.nodes:
            if isinstance(node, ast.For | ast.AsyncFor) and _iterated_name(node.iter) == name:
                yield node in training_loops
            if isinstance(node, ast.Call) and depth:
                for callee, parameter in self._script.receivers(block, node, name):
                    yield from self._uses(callee, parameter, depth - 1)

    # Finding variables, and where their values are created

    def _named_candidates(self, reading: str) -> Iterator[Candidate]:
        """Yield variables with a usual name for the reading.

        Loaders for evaluation are left out, and all loaders if there is a training loop, since it
        shows the variable that it iterates over.
        """
        if reading == "loader" and self._loop is not None:
            return
        for name in NAMES[reading]:
            for variable in self._variables_named(name):
                if reading != "loader" or not self._is_evaluated(variable.block, name):
                    yield self._variable_candidate(reading, variable)

    def _variables_named(self, name: str) -> Iterator[_BlockVariable]:
        """Yield variables of functions with that name, then parameters, then the top level's."""
        for kind in ("variables", "parameters"):
            for block in self._script.blocks:
                variable = getattr(block.function, kind, {}).get(name)
                if variable is not None:
                    yield _BlockVariable(block, name, variable.line)
        for block in self._script.blocks:
            if block.function is None and self._is_variable(block, name):
                yield _BlockVariable(block, name, self._catalogue.names[name].line)

    def _trace_to_origin(self, block: Block, name: str) -> Iterator[_BlockVariable]:
        """Yield a variable where its value is created, then where the value is passed on.

        The origin comes first, since a value created in ``main`` is set there only once.
        """
        chain = [(block, name)]
        for _ in range(MOST_CALLERS):
            origin = self._origin(*chain[-1])
            if origin is None or origin in chain:
                break
            chain.append(origin)
        for caller, caller_name in chain[::-1]:
            line = self._line_of(caller, caller_name)
            if line is not None:
                yield _BlockVariable(caller, caller_name, line)
        _, first_name = chain[-1]
        # the name may be a global variable that the function reads
        variable = self._catalogue.names.get(first_name)
        if variable is not None and not variable.origin:
            yield _BlockVariable(block, first_name, variable.line)

    def _origin(self, block: Block, name: str) -> tuple[Block, str] | None:
        """Return (block, name) of the variable from which a parameter or attribute gets its
        value."""
        if name.startswith("self."):
            return self._origin_of_attribute(block, name)
        if block.function is None or name not in block.function.parameters:
            return None
        for caller, call in self._script.callers(block):
            value = argument(call, block, name)
            if value is not None and self._is_variable(caller, dotted(value)):
                return caller, dotted(value)
        return None

    def _origin_of_attribute(self, block: Block, name: str) -> tuple[Block, str] | None:
        """Return (block, name) of the variable to which a method of the same class sets an
        attribute."""
        methods = [
            other
            for other in self._script.blocks
            if other.path and other.path[:-1] == block.path[:-1]
        ]
        for method in methods:
            for target, value in assignments(method.nodes):
                if target == name and isinstance(value, ast.Name) and method.binds(value.id):
                    return method, value.id
        return None

    def _is_variable(self, block: Block, name: str) -> bool:
        """True if a name is a variable of the block or top level, or an attribute of ``self``."""
        if name.startswith("self."):
            return name.count(".") == 1 and bool(block.path)
        if block.binds(name):
            return True
        variable = self._catalogue.names.get(name)
        if variable is None:
            return False
        is_definition = "def" in variable.forms or "class" in variable.forms
        return not is_definition and variable.origin is None

    def _line_of(self, block: Block, name: str) -> int | None:
        """Return the line in which a variable is first set in a block; None if it is not."""
        function = block.function
        if function is None:
            variables = self._catalogue.names
        else:
            variables = function.parameters | function.variables | function.attributes
        return variables[name].line if name in variables else None

    def _variable_candidate(self, reading: str, variable: _BlockVariable) -> Candidate:
        name, line = variable.name, variable.line
        if not name:
            return Candidate(reading, line, obstacle=IN_PLACE)
        if "." in name:
            return Candidate(reading, line, obstacle=AN_ATTRIBUTE)
        focus = f" > {_captured_as(name, reading)}"
        return self._checked_candidate(reading, line, variable.block, focus)

    def _checked_candidate(self, reading: str, line: int, block: Block, ending: str) -> Candidate:
        function = block.function or self._catalogue.top
        selector = reference(function, self._catalogue.module) + ending
        obstacle = refusal(selector, self._catalogue)
        return Candidate(reading, line, selector, f'ov.probe("{selector}").give()', obstacle)


def _label(block: Block) -> str:
    return ".".join(block.path) or "the script"


def _captured_as(name: str, alias: str) -> str:
    return name if name == alias else f"{name} as {alias}"


def _backward_nodes(loop: TrainingLoop) -> set[ast.Call]:
    return {call for _, call in loop.backward_calls}


def _may_be_a_model(name: str) -> bool:
    return not any(word in name.lower() for word in NOT_A_MODEL)


def _times_set(block: Block, name: str) -> int:
    """Return the number of statements of a block that set a variable."""
    augmented = [dotted(node.target) for node in block.nodes if isinstance(node, ast.AugAssign)]
    assigned = [target for target, _ in assignments(block.nodes)]
    return augmented.count(name) + assigned.count(name)


def _call_of_next(loop: LoopNode) -> ast.Call | None:
    """Return the first ``next(iterator)`` in the body of a loop."""
    for node in nodes_of_turn(loop):
        if isinstance(node, ast.Call) and dotted(node.func) == "next" and node.args:
            return node
    return None


def _iterated_name(node: ast.expr) -> str:
    """Return the name inside ``enumerate(tqdm(loader))``; empty for a loader created in place."""
    for _ in range(MOST_CALLERS):
        if not isinstance(node, ast.Call) or dotted(node.func).endswith(("Loader", "loader")):
            break
        if not node.args:  # such as loader.batches()
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            break
        passes_on = called_name(node) in WRAPPERS or called_name(node) == "next"
        if not passes_on and not _is_loader_name(dotted(node.args[0])):
            return ""  # batches of another function, such as buffer.get(batch_size)
        node = node.args[0]
    return dotted(node)


def _is_loader_name(name: str) -> bool:
    word = name.lower().rpartition(".")[2]
    if "loader" in word or word == "dl":
        return True
    return word.endswith(("batches", "_dl", "_iter"))
