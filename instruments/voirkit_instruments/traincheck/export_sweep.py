"""The lines of one process, with names and values as TrainCheck (0.2.0) spells them, in the order
of time: each call opened and closed once, nested in its thread, no two lines at one moment.

TrainCheck asserts all that, and drops or refuses what is otherwise. Calls on one object from two
threads end it too, and so do calls on objects that happen to lie at the same address in two
processes or one after the other: an object has a number of its own in each thread.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from voirkit_instruments.parameters.record_plan import CHANGED, GRAD_NONE, GRAD_ZERO

KIND = "parameter"
STEP, ZERO_GRAD, SIGHT = "step", "zero_grad", "seen"

# (start_ns, end_ns, tid, category, name, value, number, arguments as JSON)
Row = tuple[int, int, int, str, str, "int | None", "float | None", "str | None"]


class Figure(NamedTuple):
    """Something recorded of one parameter; see docs/parameters.md."""

    category: str
    parameter: str
    value: int | None
    number: float | None
    arguments: str | None


@dataclass(eq=False)
class Moment:
    """A step, a ``zero_grad``, or (``SEEN``) only the sight of parameters."""

    kind: str
    start_ns: int
    end_ns: int
    tid: int
    n: int  # number of the optimizer's step
    optimizer: str | None  # arguments of the record of the optimizer, as JSON
    figures: list[Figure] = field(default_factory=list)
    is_entered: bool = False  # what was so before it has been written
    is_left: bool = False  # and what was so after it


def moments(batches: Iterator[list[Row]]) -> Iterator[Moment]:
    """Rows of the same start as one moment."""
    now: Moment | None = None
    for batch in batches:
        for start, end, tid, category, name, value, number, arguments in batch:
            is_optimizer = category in (STEP, ZERO_GRAD)
            if now is None or start != now.start_ns or is_optimizer:
                if now is not None:
                    yield now
                now = Moment(
                    category if is_optimizer else SIGHT,
                    start,
                    end,
                    tid,
                    value or 0,
                    arguments if is_optimizer else None,
                )
            if not is_optimizer:
                now.figures.append(Figure(category, name, value, number, arguments))
    if now is not None:
        yield now


class Coming:
    """The moments that are still to come, in order."""

    def __init__(self, source: Iterator[Moment]) -> None:
        self._source = source
        self._waiting: deque[Moment] = deque()

    def until(self, end_ns: int) -> Iterator[Moment]:
        """Those that began before some time; they stay."""
        while not self._waiting or self._waiting[-1].start_ns < end_ns:
            more = next(self._source, None)
            if more is None:
                break
            self._waiting.append(more)
        return (moment for moment in list(self._waiting) if moment.start_ns < end_ns)

    def remove(self, moment: Moment) -> None:
        self._waiting.remove(moment)

    def over(self, at_ns: int) -> Moment | None:
        """The first one, if it had ended by some time and nothing has entered it."""
        for moment in self.until(at_ns):
            if not moment.is_entered and moment.end_ns <= at_ns:
                return moment
        return None


TYPE = "torch.nn.Parameter"
_UNKNOWN = object()


class _Parameter:
    """The state of one parameter. ``data`` and ``grad`` are numbers that differ where the tensors
    do, 0 of zeros; None: no gradient."""

    def __init__(self, sign: int, norm: float | None) -> None:
        self.sign = sign
        self.attributes = ""
        self.optimizer: int | None = None
        # the first thing known of it; equal in ranks that begin alike
        self.digest: object = f"norm {norm}"
        self.changes = 0
        self.flags = 0
        self.zeroed = 0
        self.data = 0 if norm == 0 else sign * _number(self.digest)
        self.grad: int | None = None
        # the fields of the last line, by stage: TrainCheck reads each stage by itself
        self.written: dict[str, tuple[str, ...]] = {}

    def now(self) -> tuple[str, ...]:
        return (
            f'"data":{self.data}',
            f'"grad":{"null" if self.grad is None else self.grad}',
            self.attributes,
        )

    def changed(self, digest: object = None) -> None:
        if digest is not None:
            self.digest = digest
            self.changes = 0
        else:
            self.changes += 1
        self.data = self.sign * _number(self.digest, self.changes)


class Variables:
    """The parameters of one process as TrainCheck's variables: a line whenever one is not what the
    lines before say of it.

    TrainCheck counts what changes between two lines of a variable to the call in which the second
    one lies. So the gradient that a step gets is written before it, what the step has made of the
    data inside it, and what ``zero_grad`` has made of the gradient inside that.

    Args:
        names: Of all parameters of the run. Their order gives half of them negative numbers:
            TrainCheck words what takes both signs as ``non-zero``, and what happens to be positive
            in one run as ``above_zero``, which the next run would break.
        norms: The first known norm of each.
        is_sparing: Whether data or a gradient that is as before is left out. TrainCheck compares
            ranks at the step of the first line that has a value where it infers, at that of the
            last where it checks: in runs of several ranks these must be one line.
    """

    def __init__(self, names: Sequence[str], norms: Mapping[str, float], is_sparing: bool) -> None:
        self._norms = norms
        self._is_sparing = is_sparing
        self._sign = {name: -1 if i % 2 else 1 for i, name in enumerate(sorted(names))}
        self._parameters: dict[str, _Parameter] = {}
        self._clears: object = _UNKNOWN

    def enter(self, moment: Moment) -> None:
        """Before a step or ``zero_grad``."""
        for figure in moment.figures:
            if figure.category == "seen":
                self._see(figure)
        if moment.kind == STEP:
            figures = _by_parameter(moment.figures)
            for name in self._names_in(moment):
                self._before_step(name, moment.n, figures.get(name, {}))

    def leave(self, moment: Moment) -> None:
        """After a step or ``zero_grad``."""
        figures_by_name = _by_parameter(moment.figures)
        for name in self._names_in(moment):
            parameter = self._parameters[name]
            figures = figures_by_name.get(name, {})
            if moment.kind != STEP:
                parameter.zeroed = _flags(figures.get("zeroed"), parameter.zeroed)
                if parameter.zeroed & (GRAD_NONE | GRAD_ZERO):
                    self._clear(parameter, None if parameter.zeroed & GRAD_NONE else 0)
            elif parameter.flags & CHANGED:
                digest = figures.get("digest")
                parameter.changed(None if digest is None else (digest.value, digest.arguments))

    def _clear(self, parameter: _Parameter, to: int | None) -> None:
        """A gradient is gone, or zero. A run that does both has the way that came first in its
        lines: TrainCheck ends with an AssertionError where it is to generalise None and one single
        number."""
        if parameter.grad != to:
            if self._clears is _UNKNOWN:
                self._clears = to
            if self._clears == to:
                parameter.grad = to

    def changed(self, stage: str) -> Iterator[tuple[str, bool]]:
        """The lines (without time, thread and the like) of all parameters that are not as a stage's
        lines have them, and whether it is the first of the stage."""
        for name, parameter in self._parameters.items():
            now = parameter.now()
            before = parameter.written.get(stage)
            if before == now:
                continue
            parameter.written[stage] = now
            fields = []
            for new, old in zip(now[:2], before or ("", ""), strict=False):
                if new != old or not self._is_sparing:
                    fields.append(new)
            attributes = ",".join((*fields, parameter.attributes))
            head = f'"var_name":{json.dumps(name)},"var_type":"{TYPE}","mode":"post_observe"'
            yield f'{head},"attributes":{{{attributes}}},"type":"state_change"', before is None

    def _names_in(self, moment: Moment) -> list[str]:
        """The parameters of the optimizer of a moment."""
        if moment.optimizer is None:
            return []
        optimizer = json.loads(moment.optimizer).get("optimizer")
        return [
            name for name, parameter in self._parameters.items() if parameter.optimizer == optimizer
        ]

    def _see(self, figure: Figure) -> None:
        facts = json.loads(figure.arguments or "{}")
        name = figure.parameter
        parameter = self._parameters.get(name)
        if parameter is None:
            parameter = _Parameter(self._sign.get(name, 1), self._norms.get(name))
            self._parameters[name] = parameter
        parameter.optimizer = facts.get("optimizer")
        parameter.attributes = _attributes(facts)

    def _before_step(self, name: str, n: int, figures: Mapping[str, Figure]) -> None:
        parameter = self._parameters[name]
        flags = _flags(figures.get("state"), parameter.flags)
        parameter.flags = flags
        gradient = figures.get("grad_norm")
        norm = None if gradient is None else gradient.number
        if flags & GRAD_NONE:
            parameter.grad = None
        elif flags & GRAD_ZERO or norm == 0:
            parameter.grad = 0
        elif norm is None:
            parameter.grad = parameter.sign * _number("gradient", name, n)
        else:
            parameter.grad = parameter.sign * _number("gradient", norm)


def _by_parameter(figures: Iterable[Figure]) -> dict[str, dict[str, Figure]]:
    by_parameter: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        by_parameter.setdefault(figure.parameter, {})[figure.category] = figure
    return by_parameter


def _flags(figure: Figure | None, before: int) -> int:
    return before if figure is None or figure.value is None else figure.value


def _attributes(facts: Mapping[str, Any]) -> str:
    shape = [int(n) for n in str(facts.get("shape", "")).split(",") if n.strip()]
    device = str(facts.get("device", "cpu")).partition(":")[0]
    attributes = {
        "dtype": f"torch.{facts.get('dtype', '')}",
        "is_cpu": device == "cpu",
        "is_cuda": device == "cuda",
        "is_leaf": True,
        "ndim": len(shape),
        "requires_grad": bool(facts.get("requires_grad")),
        "shape": shape,
    }
    return json.dumps(attributes, separators=(",", ":"))[1:-1]


def _number(*key: object) -> int:
    """A whole number of at most 2**53 for a key, never 0: whoever reads JSON keeps it exactly."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) | 1


_OPTIMIZES = (STEP, ZERO_GRAD)


class Call(NamedTuple):
    """A call to be written; times are the host's clock, ``object`` is 0 for none."""

    start_ns: int
    end_ns: int
    tid: int
    object: int
    step: int
    stage: str
    spelled: Spelled


class _Open(NamedTuple):
    """A call whose end is still to be written; compared by when that is, of the same moment what
    began last ends first."""

    end_ns: int
    order: int
    tid: int
    object: int
    head: str
    tail: str
    moment: Moment | None
    step: int
    stage: str


class Sweep:
    """The writer of one process's lines.

    Args:
        pid: What the process is called: a number unlike that of all others, the same in another run
            of the script, since TrainCheck makes conditions of processes and threads. Threads are
            numbered in it, in the order in which they are met.
        shift_ns: Added to the times of the host's clock.
        coming: Steps of optimizers and the like, by start.
        optimizers: Names of the parameters that an optimizer holds, by the id of the object.
        place: Step and stage of a moment.
        begins_ns: What optimizers did before that is known, and not written.
    """

    def __init__(
        self,
        pid: int,
        rank: int,
        shift_ns: int,
        coming: Coming,
        variables: Variables,
        optimizers: Mapping[int, Sequence[str]],
        place: Callable[[int], tuple[int, str]],
        begins_ns: int,
    ) -> None:
        self._pid = pid
        self._rank = rank
        self._shift_ns = shift_ns
        self._coming = coming
        self._variables = variables
        self._optimizers = optimizers
        self._place = place
        self._begins_ns = begins_ns
        self._last_ns = -(1 << 62)
        self._calls = 0
        self._objects = pid << 32
        self._threads: dict[int, int] = {}
        self._open: list[_Open] = []
        self._stacks: dict[int, list[_Open]] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # of objects by thread and id
        self._metas: dict[tuple[int, str], str] = {}
        self._is_first = True

    def enter(self, call: Call) -> Iterator[str]:
        """The line of a call's entry, and of all that comes before it."""
        while (moment := self._coming.over(call.start_ns)) is not None:
            yield from self._write(moment)
        yield from self.finish(call.start_ns)
        spelled = call.spelled
        stack = self._stacks.setdefault(call.tid, [])
        parameters = self._optimizers.get(call.object)
        moment = None
        if parameters is not None and spelled.leaf in _OPTIMIZES:
            moment = self._moment_of(call, spelled.leaf)
        meta = self._meta(call.step, call.stage)
        if moment is not None:
            yield from self._enter(moment, call.step, call.stage)
        number = "null"
        proxies = ""
        if call.object and spelled.is_bound:
            key = call.tid, call.object
            if key not in self._numbers or _is_new_object(call, stack):
                self._objects += 1
                self._numbers[key] = self._objects
                if parameters is not None:
                    proxies = _proxies(parameters)
                    if spelled.leaf != "__init__":  # it was made before calls were recorded
                        yield from self._constructor(call, self._objects, proxies)
                        proxies = ""
            number = str(self._numbers[key])
        if self._is_first and not proxies:
            proxies = _proxies(())  # the reader looks for it, if only in vain
        self._is_first = False
        head = self._head(call, meta, number)
        end_ns = call.end_ns
        if stack:  # they may take turns: coroutines, generators
            end_ns = min(end_ns, stack[-1].end_ns)
        kind = "function_call (post) (exception)" if spelled.is_error else "function_call (post)"
        open_call = _Open(
            max(end_ns, call.start_ns),
            -self._calls,
            call.tid,
            call.object,
            head,
            f'"type":"{kind}",{spelled.ends}',
            moment,
            call.step,
            call.stage,
        )
        heapq.heappush(self._open, open_call)
        stack.append(open_call)
        time_ns = self._time(call.start_ns)
        yield f'{head}"type":"function_call (pre)",{proxies}{spelled.begins},"time":{time_ns}}}\n'

    def finish(self, until_ns: int) -> Iterator[str]:
        """The lines of calls that ended by some time."""
        while self._open and self._open[0].end_ns <= until_ns:
            call = heapq.heappop(self._open)
            self._stacks[call.tid].remove(call)
            moment = call.moment
            if moment is not None and not moment.is_left:  # the innermost call ends first
                yield from self._leave(moment, call.step, call.stage, call.end_ns)
            yield f'{call.head}{call.tail},"time":{self._time(call.end_ns)}}}\n'

    def end(self) -> Iterator[str]:
        forever = 1 << 62
        while (moment := self._coming.over(forever)) is not None:
            yield from self._write(moment)
        yield from self.finish(forever)

    def _moment_of(self, call: Call, leaf: str) -> Moment | None:
        for moment in self._coming.until(call.end_ns):
            if moment.kind == leaf and moment.tid == call.tid and moment.end_ns > call.start_ns:
                return moment
        return None

    def _write(self, moment: Moment) -> Iterator[str]:
        """A moment that lies in no recorded call of its optimizer."""
        if moment.start_ns < self._begins_ns:
            self._variables.enter(moment)
            self._variables.leave(moment)
            self._coming.remove(moment)
            return
        step, stage = self._place(moment.start_ns)
        yield from self.finish(moment.start_ns)
        yield from self._enter(moment, step, stage)
        yield from self.finish(moment.end_ns)
        yield from self._leave(moment, step, stage, moment.end_ns)

    def _enter(self, moment: Moment, step: int, stage: str) -> Iterator[str]:
        if moment.is_entered:
            return
        moment.is_entered = True
        self._variables.enter(moment)
        yield from self._changed(moment, step, stage, moment.start_ns)

    def _leave(self, moment: Moment, step: int, stage: str, at_ns: int) -> Iterator[str]:
        moment.is_left = True
        self._variables.leave(moment)
        yield from self._changed(moment, step, stage, at_ns)
        self._coming.remove(moment)

    def _changed(self, moment: Moment, step: int, stage: str, at_ns: int) -> Iterator[str]:
        for line, is_first in self._variables.changed(stage):
            # What a parameter is when it is first seen was made before: TrainCheck compares ranks
            # by steps.
            meta = self._meta(max(step - 1, 0) if is_first else step, stage)
            thread = self._thread(moment.tid)
            head = f'"process_id":{self._pid},"thread_id":{thread},{meta}'
            yield f'{{{head},{line},"time":{self._time(at_ns)}}}\n'

    def _head(self, call: Call, meta: str, number: str) -> str:
        self._calls += 1
        thread = self._thread(call.tid)
        return (
            f'{{"func_call_id":"{self._pid}_{self._calls}","thread_id":{thread},'
            f'"process_id":{self._pid},{meta},{call.spelled.head},"obj_id":{number},'
        )

    def _constructor(self, call: Call, number: int, proxies: str) -> Iterator[str]:
        """The call of an optimizer's ``__init__``, as far as it is known: what it was given."""
        kind = call.spelled.type or "torch.optim.optimizer.Optimizer"
        constructor = call.spelled._replace(head=head_of(f"{kind}.__init__", True))
        head = self._head(call._replace(spelled=constructor), self._meta(0, INIT), str(number))
        args = f'"args":{{"0":{{{json.dumps(kind)}:{{}}}}}},"kwargs":{{}}'
        yield f'{head}"type":"function_call (pre)",{proxies}{args},"time":{self._next()}}}\n'
        result = '"return_values":{"NoneType":null}'
        yield f'{head}"type":"function_call (post)",{result},"time":{self._next()}}}\n'

    def _thread(self, tid: int) -> int:
        number = self._threads.get(tid)
        if number is None:
            number = (self._pid << 20) + len(self._threads)
            self._threads[tid] = number
        return number

    def _meta(self, step: int, stage: str) -> str:
        meta = self._metas.get((step, stage))
        if meta is None:
            if len(self._metas) > 1000:
                self._metas.clear()
            meta = f'"meta_vars":{{"step":{step},"stage":"{stage}","rank":{self._rank}}}'
            self._metas[step, stage] = meta
        return meta

    def _time(self, at_ns: int) -> int:
        self._last_ns = max(at_ns + self._shift_ns, self._last_ns + 1)
        return self._last_ns

    def _next(self) -> int:
        self._last_ns += 1
        return self._last_ns


def _is_new_object(call: Call, stack: Sequence[_Open]) -> bool:
    """True if a call makes its object: a constructor, but not that of a base class in another."""
    if call.spelled.leaf != "__init__":
        return False
    return not any(open_call.object == call.object for open_call in stack)


def _proxies(names: Sequence[str]) -> str:
    proxies = [[name, TYPE] for name in names] or [["", ""]]
    return f'"proxy_obj_names":{json.dumps(proxies, separators=(",", ":"))},'


INIT, TRAINING, EVALUATION = "init", "training", "evaluation"  # stages of a run
# Functions of Python that call themselves `torch`'s; all others in that module are C functions,
# which TrainCheck finds in a class.
_PYTHON = {
    "compile",
    "cond",
    "get_default_device",
    "get_device_module",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_storage",
    "is_tensor",
    "is_warn_always_enabled",
    "set_default_device",
    "set_default_dtype",
    "set_default_tensor_type",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_warn_always",
    "typename",
    "use_deterministic_algorithms",
    "while_loop",
}
# The prefixes of tensors' types by dtype, as Tensor.type() has them.
_TENSORS = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
# Functions that no relation of TrainCheck looks at; parts of their names.
_NOT_LOOKED_AT = (
    "torch._VariableFunctionsClass",
    "torch.nn.functional",
    "torch._tensor.Tensor.backward",
    "torch.autograd",
    "._",
    "<locals>",
)


class Spelled(NamedTuple):
    """The common part of the lines of calls with the same function, arguments and result."""

    head: str  # fields that name the function
    leaf: str  # the last part of its name
    is_bound: bool  # whether it is called on an object: so all its calls are marked, or none
    type: str  # of the first argument
    begins: str  # fields of the line at the entry, from ``args`` on, without braces
    ends: str  # fields of the line at the exit
    is_error: bool  # whether that line says that it raised


class Spelling:
    """How the calls of a run are spelled. ``calls``: each (category, name, arguments as JSON or
    None) of its calls."""

    def __init__(self, calls: Iterable[tuple[str, str, str | None]]) -> None:
        self._spelled: dict[tuple[str, str, str | None], Spelled] = {}
        functions: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for category, name, text in calls:
            functions.setdefault((category, name), []).append(_read(text))
        self._is_bound = {
            function: all(arguments.get("bound") is True for arguments in sets)
            for function, sets in functions.items()
        }
        self._names = {function: _function(*function, functions) for function in functions}
        # The reader ends with an AssertionError where a function that gives tensors has raised as
        # well.
        self._gives_tensors = set()
        for function, sets in functions.items():
            is_looked_at = not any(part in self._names[function] for part in _NOT_LOOKED_AT)
            if is_looked_at and any(map(_returns_tensor, sets)):
                self._gives_tensors.add(function)

    def of(self, category: str, name: str, arguments: str | None) -> Spelled:
        key = category, name, arguments
        spelled = self._spelled.get(key)
        if spelled is None:
            spelled = self._spelled[key] = self._spell(category, name, _read(arguments))
        return spelled

    def _spell(self, category: str, name: str, arguments: Mapping[str, Any]) -> Spelled:
        function = category, name
        args = [_typed(value) for value in arguments.get("args", ())]
        args_by_index = {str(i): value for i, value in enumerate(args)}
        kwargs = {key: _typed(value) for key, value in arguments.get("kwargs", {}).items()}
        begins = f'"args":{_dumps(args_by_index)},"kwargs":{_dumps(kwargs)}'
        error = arguments.get("error")
        if error is None:
            result = _returned(arguments.get("returns"))
            ends = f'"return_values":{_dumps(result)}'
        else:
            ends = f'"exception":{_dumps(str(error))},"exception_msg":""'
        is_bound = self._is_bound[function]
        head = head_of(self._names[function], is_bound)
        _, _, leaf = name.rpartition(".")
        kind = next(iter(args[0])) if args else ""
        is_error = error is not None and function not in self._gives_tensors
        return Spelled(head, leaf, is_bound, kind, begins, ends, is_error)


def head_of(function: str, is_bound: bool) -> str:
    return f'"function":{_dumps(function)},"is_bound_method":{_dumps(is_bound)}'


def _read(arguments: str | None) -> Mapping[str, Any]:
    parsed = json.loads(arguments) if arguments else {}
    return parsed if isinstance(parsed, dict) else {}


def _function(category: str, name: str, functions: Mapping[tuple[str, str], object]) -> str:
    """A function's full name; a module's call is one of its ``forward``, which it leads to."""
    owner, _, leaf = name.rpartition(".")
    if leaf == "__call__" and owner and (category, f"{owner}.forward") not in functions:
        return f"{category}.{owner}.forward"
    if category == "torch":
        if name.startswith("Tensor."):
            return f"torch._tensor.{name}"
        if "." not in name and name not in _PYTHON:
            return f"torch._VariableFunctionsClass.{name}"
    return f"{category}.{name}" if category else name


def _returns_tensor(arguments: Mapping[str, Any]) -> bool:
    if "error" in arguments:
        return False
    returned = _returned(arguments.get("returns"))
    values = returned if isinstance(returned, list) else [returned]
    return any(_is_tensor_type(next(iter(value))) for value in values)


def _is_tensor_type(name: str) -> bool:
    return (name.startswith("torch.") and "Tensor" in name) or "Parameter" in name


def _returned(value: Any) -> dict[str, Any] | list[dict[str, Any]]:
    """A result; that of several values as a list of them."""
    if isinstance(value, dict) and value.get("type") == "tuple":
        items = value.get("items", ())
        if len(items) == value.get("n"):
            return [_typed(item) for item in items]
    return _typed(value)


def _typed(value: Any) -> dict[str, Any]:
    """A summary of a value (docs/calls.md) as TrainCheck has it: the name of its type with the
    value, or with attributes of it."""
    if not isinstance(value, dict):
        return {type(value).__name__: value}
    if "tensor" in value:
        return _tensor(value)
    kind = str(value.get("type", "object")).removeprefix("builtins.")
    items = value.get("items")
    if items is not None:
        plain = _plain(items, value.get("n"))
        return {kind: {"n": value.get("n")} if plain is None else plain}
    return {kind: {"n": value["n"]} if "n" in value else {}}


def _plain(items: Any, n: object) -> Any:
    """A container's items, if all of them are there and none is more than a number or a text; else
    None."""
    values = items.values() if isinstance(items, dict) else items
    if len(items) != n or any(isinstance(value, dict | list) for value in values):
        return None
    return items


def _tensor(value: Mapping[str, Any]) -> dict[str, Any]:
    """A tensor without its id: those are used again and again, and a run whose tensors lie
    elsewhere would differ from this one."""
    dtype = str(value.get("dtype", ""))
    device = str(value.get("device", "cpu")).partition(":")[0]
    shape = value.get("shape", [])
    kind = str(value["tensor"])
    if "Parameter" in kind:
        kind = "torch.nn.Parameter"
    elif kind == "torch.Tensor":
        module = "torch" if device == "cpu" else f"torch.{device}"
        kind = f"{module}.{_TENSORS.get(dtype, '')}Tensor"
    attributes = {
        "dtype": f"torch.{dtype}",
        "is_cpu": device == "cpu",
        "is_cuda": device == "cuda",
        "ndim": len(shape),
        "requires_grad": bool(value.get("grad")),
        "shape": shape,
    }
    return {kind: attributes}


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
