"""The trace lines of one process in TrainCheck's (0.2.0) format, in the order of time.

Each call is opened and closed once, calls in a thread are nested, and no two lines have the same
time: TrainCheck asserts all this, and drops or refuses other lines. It also fails if two threads
call methods of one object, or if two objects have the same address, in two processes or one after
the other. So each object gets a number of its own in each thread.
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
    """One recorded value of a parameter, such as its norm or its flags; see docs/parameters.md."""

    category: str
    parameter: str
    value: int | None
    number: float | None
    arguments: str | None


@dataclass(eq=False)
class Moment:
    """An optimizer's step or ``zero_grad``, with the values of parameters recorded at its start;
    or (kind ``SIGHT``) only such values."""

    kind: str
    start_ns: int
    end_ns: int
    tid: int
    n: int  # number of the optimizer's step
    optimizer: str | None  # arguments of the ``step`` or ``zero_grad`` record, as JSON
    figures: list[Figure] = field(default_factory=list)
    is_entered: bool = False  # True once the parameters' state at its start has been written
    is_left: bool = False  # True once the parameters' state at its end has been written


def moments(batches: Iterator[list[Row]]) -> Iterator[Moment]:
    """Group rows with the same start into moments; each step or ``zero_grad`` begins a new one."""
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
    """Queue of the moments that are still to be written, ordered by start."""

    def __init__(self, source: Iterator[Moment]) -> None:
        self._source = source
        self._waiting: deque[Moment] = deque()

    def until(self, end_ns: int) -> Iterator[Moment]:
        """Return the moments that began before ``end_ns``, without removing them."""
        while not self._waiting or self._waiting[-1].start_ns < end_ns:
            more = next(self._source, None)
            if more is None:
                break
            self._waiting.append(more)
        return (moment for moment in list(self._waiting) if moment.start_ns < end_ns)

    def remove(self, moment: Moment) -> None:
        self._waiting.remove(moment)

    def over(self, at_ns: int) -> Moment | None:
        """Return the first moment that had ended by ``at_ns`` and has not been entered; None if
        there is none."""
        for moment in self.until(at_ns):
            if not moment.is_entered and moment.end_ns <= at_ns:
                return moment
        return None


TYPE = "torch.nn.Parameter"
_UNKNOWN = object()


class _Parameter:
    """The state of one parameter.

    ``data`` and ``grad`` are numbers that stand for the tensors: different tensors have different
    numbers, and 0 is a tensor of zeros. A ``grad`` of None is no gradient.
    """

    def __init__(self, sign: int, norm: float | None) -> None:
        self.sign = sign
        self.attributes = ""
        self.optimizer: int | None = None
        # Identifies the data. Until a digest is known, it is the first norm, which is equal in
        # ranks that begin with equal parameters.
        self.digest: object = f"norm {norm}"
        self.changes = 0
        self.flags = 0
        self.zeroed = 0
        self.data = 0 if norm == 0 else sign * _number(self.digest)
        self.grad: int | None = None
        # The fields of the last line written in each stage. A line is written only if its fields
        # differ from those in the same stage, because TrainCheck reads each stage by itself.
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
    """The parameters of one process as TrainCheck's variables. A parameter gets a line when its
    state differs from its last line.

    TrainCheck attributes a change between two lines of a variable to the call that contains the
    second line. So the gradient of a step is written before the step, the data that the step
    changed inside the step, and the gradient that ``zero_grad`` cleared inside ``zero_grad``.

    Args:
        names: Names of all parameters of the run. Every second name in sorted order gets negative
            numbers: TrainCheck describes values of both signs as ``non-zero``. It would describe
            values that happen to be positive in one run as ``above_zero``, which the next run would
            violate.
        norms: The first known norm of each parameter.
        is_sparing: Whether unchanged data and an unchanged gradient are left out of a line.
            TrainCheck compares ranks at the step of the first line with a value when it infers, and
            of the last such line when it checks. In runs of several ranks this must be the same
            line.
    """

    def __init__(self, names: Sequence[str], norms: Mapping[str, float], is_sparing: bool) -> None:
        self._norms = norms
        self._is_sparing = is_sparing
        self._sign = {name: -1 if i % 2 else 1 for i, name in enumerate(sorted(names))}
        self._parameters: dict[str, _Parameter] = {}
        self._clears: object = _UNKNOWN

    def enter(self, moment: Moment) -> None:
        """Set the parameters to their state before a step or ``zero_grad``."""
        for figure in moment.figures:
            if figure.category == "seen":
                self._see(figure)
        if moment.kind == STEP:
            figures = _by_parameter(moment.figures)
            for name in self._names_in(moment):
                self._before_step(name, moment.n, figures.get(name, {}))

    def leave(self, moment: Moment) -> None:
        """Set the parameters to their state after a step or ``zero_grad``."""
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
        """Set a gradient to None or 0 after ``zero_grad``. In a run that does both, only the way
        that came first is written: TrainCheck ends with an AssertionError when it has to generalise
        over None and a single number."""
        if parameter.grad != to:
            if self._clears is _UNKNOWN:
                self._clears = to
            if self._clears == to:
                parameter.grad = to

    def changed(self, stage: str) -> Iterator[tuple[str, bool]]:
        """Yield a line for each parameter whose state differs from its last line in a stage, and
        True if it is the parameter's first line in that stage. The lines lack the process, thread,
        step and time."""
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
        """Return the names of the parameters of a moment's optimizer."""
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
    """Return an integer for a key: never 0, and less than 2**53, which every JSON reader keeps
    exactly."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) | 1


_OPTIMIZES = (STEP, ZERO_GRAD)


class Call(NamedTuple):
    """A call to be written. Times are of the host's clock; ``object`` is the id of the object whose
    method was called, or 0."""

    start_ns: int
    end_ns: int
    tid: int
    object: int
    step: int
    stage: str
    spelled: Spelled


class _Open(NamedTuple):
    """A call whose end is still to be written. Ordered by end; of calls with the same end, the last
    to begin comes first."""

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
        pid: Number of the process: unique in the run, and the same in another run of the script,
            since TrainCheck infers conditions on processes and threads. The threads of a process
            are numbered in the order of their first lines.
        shift_ns: Added to the times of the host's clock.
        coming: The moments (optimizer steps, ``zero_grad``, sights) to be written.
        optimizers: Names of the parameters that an optimizer holds, by the id of the optimizer.
        place: Returns the step and stage at a time.
        begins_ns: Moments before this time only update the state of parameters; they get no lines.
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
        # (thread id, id of an object) -> number of the object in that thread
        self._numbers: dict[tuple[int, int], int] = {}
        self._metas: dict[tuple[int, str], str] = {}
        self._is_first = True

    def enter(self, call: Call) -> Iterator[str]:
        """Yield the line of a call's entry, after all lines of earlier times."""
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
                    # The optimizer was created before calls were recorded: write a call of its
                    # constructor first.
                    if spelled.leaf != "__init__":
                        yield from self._constructor(call, self._objects, proxies)
                        proxies = ""
            number = str(self._numbers[key])
        if self._is_first and not proxies:
            proxies = _proxies(())  # TrainCheck's reader looks for this field, even if it is empty
        self._is_first = False
        head = self._head(call, meta, number)
        end_ns = call.end_ns
        # Calls of coroutines and generators may interleave instead of nesting. So each call is made
        # to end no later than the call around it.
        if stack:
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
        """Yield the lines of the exits of calls that ended by ``until_ns``."""
        while self._open and self._open[0].end_ns <= until_ns:
            call = heapq.heappop(self._open)
            self._stacks[call.tid].remove(call)
            moment = call.moment
            # several nested calls may share a moment; its end is written with the innermost call,
            # which ends first
            if moment is not None and not moment.is_left:
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
        """Yield the lines of a moment that lies in no recorded call of its optimizer."""
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
            # A parameter's first line shows its state from before this step, so it gets the number
            # of the step before: TrainCheck compares ranks by step.
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
        """Yield the lines of a call of an optimizer's ``__init__`` that was not recorded. Only the
        parameters that it was given are known."""
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
    """True if a call creates its object: a constructor, but not a base class's constructor that
    another constructor calls."""
    if call.spelled.leaf != "__init__":
        return False
    return not any(open_call.object == call.object for open_call in stack)


def _proxies(names: Sequence[str]) -> str:
    proxies = [[name, TYPE] for name in names] or [["", ""]]
    return f'"proxy_obj_names":{json.dumps(proxies, separators=(",", ":"))},'


INIT, TRAINING, EVALUATION = "init", "training", "evaluation"  # TrainCheck's stages of a run
# Python functions of the module `torch`. All other functions in that module are C functions, which
# TrainCheck looks up in the class torch._VariableFunctionsClass.
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
# The prefix of a tensor's type name by dtype, as in Tensor.type().
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
# If a function's name contains one of these, no relation of TrainCheck examines the function.
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
    leaf: str  # the last part of the function's name
    is_bound: bool  # True if the function is a bound method in all its calls
    type: str  # type of the first argument; empty without arguments
    begins: str  # fields of the line at the entry, from ``args`` on, without braces
    ends: str  # fields of the line at the exit
    is_error: bool  # True if the exit's line says that the call raised


class Spelling:
    """Translates the calls of a run to fields of TrainCheck's lines.

    Args:
        calls: The distinct (category, name, arguments as JSON or None) of the run's calls.
    """

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
        # TrainCheck's reader ends with an AssertionError if a function returns tensors in some
        # calls and raises in others.
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
    """Return a function's full name. The name of a module's ``__call__`` is that of its
    ``forward``, unless calls of ``forward`` were recorded too."""
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
    """Return a call's result in TrainCheck's form; the result is a list if it is a tuple whose
    items were all recorded."""
    if isinstance(value, dict) and value.get("type") == "tuple":
        items = value.get("items", ())
        if len(items) == value.get("n"):
            return [_typed(item) for item in items]
    return _typed(value)


def _typed(value: Any) -> dict[str, Any]:
    """Return the summary of a value (docs/calls.md) in TrainCheck's form: the name of the type,
    mapped to the value or to attributes of it."""
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
    """Return a container's items if all were recorded and none is more than a number or a text;
    else None."""
    values = items.values() if isinstance(items, dict) else items
    if len(items) != n or any(isinstance(value, dict | list) for value in values):
        return None
    return items


def _tensor(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type and attributes of a tensor, without its id: ids are reused, and differ
    between two runs of the same script."""
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
