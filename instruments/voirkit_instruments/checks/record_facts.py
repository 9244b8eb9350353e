"""The base of all recorders of ``--checks``: writes facts, tracks what each thread is running,
reads tensors, and records calls of models with their mode, gradients and line.

A fact is a record in the trace of kind and category ``check``. Its name says what happened. Its
arguments are ``where`` (``main.py:12``) and others; ``value`` is a number. The code here must never
raise, and never keep an object of the program alive.

Reading a tensor calls no code of the program, changes nothing, and stays invisible to graphs,
random generators, hooks and modes. Whatever cannot be read in this way is left out, for example
tensors that are not plain (sharded over ranks, sparse, quantized, of a subclass) or whose memory is
freed.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from voirkit.fork import at_fork
from voirkit.intercept import ThreadState
from voirkit_instruments.identity import Ordinals
from voirkit_instruments.layers import (
    MOST_MODULES,
    children,
    drops,
    keeps_statistics,
    modules,
    parameters,
)
from voirkit_instruments.places import Places
from voirkit_instruments.values import ProbeCost, is_readable, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# of a parameter: full name; then of its model: class, True if in train mode, number
Named = tuple[str, str, bool, int]

KIND = CATEGORY = "check"
# Values of ``inside``: what a thread is running. A patched function is only recorded if ``inside``
# is at most the limit of its patch (``Around.most``). So module calls inside a model call are seen
# in the first few steps (``inside`` is COLLECTING), but not later (FORWARD).
IDLE, STEP, COLLECTING, FORWARD, BACKWARD, SUPPRESSED = 0, 1, 2, 3, 4, 9

_MOST_KNOWN = 4096

now = time.perf_counter_ns


class Facts:
    """Writes facts into the trace.

    Attributes:
        here: The state of each thread; its ``inside`` is one of the values above.
        span: The recorder's ``span``, for facts with a duration; the first argument is
            ``name(...)``.
        after_look: Functions to call when an optimizer was examined, with the optimizer's number,
            its number of steps, the line, and its parameters.
        n_steps: Number of steps of all optimizers.
        n_passes: Number of backward passes that have begun.
    """

    n_steps = n_passes = 0

    def __init__(self, recorder: Any, warn: Callable[[str], None]) -> None:
        at_fork("instruments", in_child=self.forked)
        self.recorder = recorder
        self.span = recorder.span
        # Each ``Facts`` makes a subclass: ``inside`` is set on the class to change it in all
        # threads, which must not affect another ``Facts``.
        self.here = type("ThreadState", (ThreadState,), {})()
        self.after_look: list[Callable[[int, int, str | None, list[Any]], None]] = []
        self.cost = ProbeCost(recorder)  # time spent on inspections
        self._warn = warn
        self._pid = os.getpid()
        self._failed: set[str] = set()
        self._arguments: dict[Any, int] = {}
        self.places = Places()
        self._tallies: dict[tuple[str, str], int] = {}

    def name(self, name: str) -> int:
        number: int = self.recorder.name(CATEGORY, name, kind=KIND, value="value")
        return number

    def arguments(self, where: str | None, /, **more: Any) -> int:
        """Return the interned arguments of a fact; cheap if they were requested before."""
        key = (where, *more.items())
        args = self._arguments.get(key)
        if args is None:
            if len(self._arguments) > _MOST_KNOWN:
                self._arguments.clear()
            fields = {"where": where, **more} if where else more
            args = self._arguments[key] = self.recorder.arguments(fields)
        return args

    def mark(self, name: str, where: str | None = None, value: int = 0, /, **more: Any) -> None:
        self.mark_at(name, now(), where, value, **more)

    def mark_at(
        self, name: str, at_ns: int, where: str | None = None, value: int = 0, /, **more: Any
    ) -> None:
        """Write a fact about something that happened at ``at_ns`` but only became known now."""
        self.recorder.mark(self.name(name), at_ns, self.arguments(where, **more), value)

    def tally(self, name: str, kind: str) -> None:
        """Count an inspection. The count is the value of a fact, which is written at each power of
        two and at the end."""
        n = self._tallies[name, kind] = self._tallies.get((name, kind), 0) + 1
        if n & (n - 1) == 0:
            self.mark(name, None, n, kind=kind)

    def mark_tallies(self) -> None:
        """Write the final counts when the program has ended."""
        for (name, kind), n in self._tallies.items():
            self.mark(name, None, n, kind=kind)

    def where(self) -> str | None:
        """Return the innermost line of the user's own code that is running (``main.py:12``); if
        there is none, that of a library other than torch; None without either."""
        return self.places.of(sys._getframe(1))

    def trains(self) -> None:
        """Note that this process makes an optimizer, so it trains. In a forked process, nothing is
        recorded before."""
        if self._pid != os.getpid() and not _is_worker():
            self._pid = os.getpid()
            type(self.here).inside = self.here.inside = IDLE

    def forked(self) -> None:
        """Stop recording in this forked process, which most often loads or prepares data for a
        training process."""
        type(self.here).inside = self.here.inside = SUPPRESSED

    def failed(self, action: str, exc: BaseException) -> None:
        if action not in self._failed:
            self._failed.add(action)
            self._warn(
                f"checks: {action} could not be examined ({type(exc).__name__}: {exc}); this is"
                " reported once."
            )


def never_raises(
    action: str, returns: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method that runs before or after a function of torch: an exception is caught, and
    the method's ``_facts`` warn about ``action``.

    Args:
        returns: The value to return after an exception. Not 0 tells ``Around`` that ``enter`` has
            run.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(self: Any, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            except Exception as exc:  # raised by the program's classes, or by an unknown torch
                self._facts.failed(action, exc)
                return returns

        return guarded

    return decorate


class Watcher:
    """Base of code that runs around functions of torch and writes facts. Its ``enter`` and
    ``leave`` do nothing, for uses that need only the other one."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch

    def __deepcopy__(self, memo: object) -> Watcher:
        # This object is not copied. torch.compile copies the constants of code objects, which
        # include methods of this object; they must stay methods of this one object.
        return self

    def enter(self, *_: Any) -> int:
        """Do nothing before the call."""
        return 1

    def leave(self, *_: Any) -> None:
        """Do nothing after the call."""


# Reading of tensors, many at once, so that a device is waited for only once

INF = float("inf")
UNKNOWN = -1.0  # norm of a tensor that cannot be read


def largest(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """Return the largest absolute value in each tensor: nan or inf if it contains one, -1 if
    unknown."""
    return _norms(torch, tensors, INF)


def digests(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """Return a number for each tensor that changes with its values: the sum of their absolute
    values; -1 if unknown."""
    return _norms(torch, tensors, 1)


def is_plain(torch: ModuleType, tensor: Any) -> bool:
    """True for a tensor of numbers whose norm can be read."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not is_readable(torch, tensor):
        return False
    if tensor.device.type not in ("cpu", "cuda"):
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    # not float8, which has no norm in torch
    return bool(tensor.element_size() > 1 and tensor.numel() > 0)


def is_quiet(torch: ModuleType) -> bool:
    """True if the program would not notice that tensors are read: it intercepts no operators,
    compiles nothing and captures no CUDA graph."""
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is None or modes():
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._is_tracing() if hasattr(torch._C, "_is_tracing") else True


def _norms(torch: ModuleType, tensors: Sequence[Any], order: float) -> list[float]:
    norms = [UNKNOWN] * len(tensors)
    with quiet(), torch._C.DisableTorchFunction():
        if not is_quiet(torch):
            return norms
        groups: dict[Any, list[int]] = {}
        for index, tensor in enumerate(tensors):
            if is_plain(torch, tensor):
                groups.setdefault((tensor.device, tensor.dtype), []).append(index)
        with torch.no_grad():
            for indices in groups.values():
                group = [tensors[index].detach() for index in indices]
                values = torch.stack(torch._foreach_norm(group, order)).tolist()
                for index, value in zip(indices, values, strict=True):
                    norms[index] = abs(value)
    return norms


def _is_worker() -> bool:
    """True in a worker process of a loader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


# Models and, rarely, their layers and the names of their parameters

_RECENT = 64
# At the first ``_SWITCHES`` switches of a model between training and evaluation, the modes of its
# layers are inspected; later only at some switches (see ``_is_switched``).
_SWITCHES = 64
# attribute with the wrapped module: of torch.compile's wrapper, of DistributedDataParallel
_WRAPPERS = ("_orig_mod", "module")


class ModelFacts(Watcher):
    """Records calls of models, which are the outermost module calls."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._ordinals = Ordinals()
        self._call = facts.name("call")
        self._written: dict[tuple[int, bool, bool], str] = {}
        # by model: True if gradients were on at its last call, and how often that changed
        self._switches: dict[int, tuple[bool, int]] = {}
        self._arguments: dict[tuple[Any, ...], int] = {}
        self._trained: set[tuple[int, int]] = set()
        self._boring: set[int] = set()
        self._is_loss = torch.nn.modules.loss._Loss
        self._grad = torch.is_grad_enabled
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self.collecting = True  # True while ``called`` is filled
        # weak references to the modules that were called with gradients on, in the order of their
        # first call, by id
        self.called: dict[int, weakref.ref[Any]] = {}
        # weak references to the models called last, by number
        self.recent: dict[int, weakref.ref[Any]] = {}

    def enter_call(self, module: Any) -> int:
        """Handle the start of a module call; a call inside another only counts in the first few
        steps."""
        thread, called = self._facts.here, self.called
        if not self.collecting:
            thread.inside = FORWARD
            return now()
        if id(module) not in called and self._grad() and len(called) < MOST_MODULES:
            called[id(module)] = weakref.ref(module)
        if thread.inside == COLLECTING:
            return 0
        thread.inside = COLLECTING
        return now()

    def leave_call(self, start_ns: int, was: int, module: Any) -> None:
        self._facts.here.inside = was
        if not start_ns:
            return
        # not during a backward pass, where a call is the recomputation of a checkpoint
        if not isinstance(module, self._is_loss) and self._graph_task() == -1:
            self._outermost(start_ns, module)

    @never_raises("a model")
    def _outermost(self, start_ns: int, module: Any) -> None:
        if type(module).__name__ == "OptimizedModule":
            module = unwrapped(module, _WRAPPERS[:1])
        number = self._ordinals.of(module)
        if number in self._boring:
            return
        training, grad = bool(module.training), bool(self._grad())
        key = (number, training, grad)
        is_switched = self._is_switched(number, grad)
        if key not in self._written:
            if not is_quiet(self._torch):  # the model is being traced or exported
                return
            self._inspect(number, module, training, grad)
            if number in self._boring:
                return
        elif is_switched and is_quiet(self._torch):  # layers may have been put into another mode
            self._inspect(number, module, training, grad)
        if number not in self.recent:
            self._remember(number, module)
        where = self._facts.where()
        args = self._arguments.get((where, key))
        if args is None:
            if len(self._arguments) > MOST_MODULES:
                self._arguments.clear()
            args = self._arguments[where, key] = self._facts.arguments(
                where, model=number, training=training, grad=grad
            )
        self._facts.span(self._call, start_ns, now(), args, 0)

    def _is_switched(self, number: int, grad: bool) -> bool:
        """True if gradients were off at the model's last call and are on now, or vice versa. After
        ``_SWITCHES`` such changes, only every change whose number is a power of two counts."""
        was, switches = self._switches.get(number, (not grad, 0))
        if was == grad:
            return False
        switches += 1
        self._switches[number] = (grad, switches)
        return switches <= _SWITCHES or switches & (switches - 1) == 0

    def _remember(self, number: int, module: Any) -> None:
        self.recent[number] = weakref.ref(module)
        dead = [number for number, reference in self.recent.items() if reference() is None]
        for number in dead:
            del self.recent[number]
        while len(self.recent) > _RECENT:
            del self.recent[next(iter(self.recent))]

    def _inspect(self, number: int, module: Any, training: bool, grad: bool) -> None:
        """Record how many of a model's layers depend on its mode, if that differs from the last
        record."""
        counts = modes(self._torch, module)
        text = ",".join(str(n) for key, n in counts.items() if key != "fresh")
        if not any(counts.values()):
            self._boring.add(number)
        elif self._written.get((number, training, grad)) != text:
            self._facts.mark(
                "model",
                self._facts.where(),
                number,
                kind=type(module).__name__,
                training=training,
                grad=grad,
                **counts,
            )
        self._written[number, training, grad] = text

    def inspect_again(self) -> None:
        """Inspect recent models again: the modes of single layers may have changed during
        training."""
        for number, module in self._live():
            training = bool(module.training)
            if (number, training, True) in self._written:
                self._inspect(number, module, training, True)

    def _live(self) -> Iterator[tuple[int, Any]]:
        for number, reference in list(self.recent.items()):
            module = reference()
            if module is not None:
                yield number, module

    def names(self) -> dict[int, Named]:
        """Return a dict from the id of each parameter of recently called models to its full name,
        the class of the model, True if the model is in train mode, and the model's number."""
        names: dict[int, Named] = {}
        for number, model in self._live():
            model = unwrapped(model, _WRAPPERS)
            kind, training = type(model).__name__, bool(model.training)
            for path, module in modules(model):
                for name, parameter in parameters(module).items():
                    if parameter is not None:
                        full = f"{path}.{name}" if path else name
                        names.setdefault(id(parameter), (full, kind, training, number))
        return names

    def embeddings(self) -> dict[int, str]:
        """Return a dict from the id of the weight of each embedding of recently called models to
        the weight's full name."""
        nn = self._torch.nn
        names: dict[int, str] = {}
        for _, model in self._live():
            model = unwrapped(model, _WRAPPERS)
            for path, module in modules(model):
                if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                    weight = parameters(module).get("weight")
                    names.setdefault(id(weight), f"{path}.weight" if path else "weight")
        return names

    def mark_trained(self, optimizer: int, graded: set[int], where: str | None) -> None:
        """Record which recently called models have parameters with a gradient that the optimizer
        holds, once for each model and optimizer."""
        for number, model in self._live():
            if (number, optimizer) in self._trained:
                continue
            identities = [
                id(parameter)
                for _, module in modules(model)
                for parameter in parameters(module).values()
                if parameter is not None
            ]
            n = sum(identity in graded for identity in identities)
            if n:
                self._trained.add((number, optimizer))
                self._facts.mark(
                    "trained", where, number, optimizer=optimizer, graded=n, of=len(identities)
                )

    def in_order(self) -> list[int]:
        """Return the ids of the parameters of the modules that were called with gradients on, in
        the order of the calls."""
        identities: dict[int, None] = {}
        for reference in list(self.called.values()):
            module = reference()
            if module is None:
                continue
            if children(module) and not type(module).__module__.startswith("torch.nn"):
                continue
            for parameter in parameters(module).values():
                if parameter is not None:
                    identities[id(parameter)] = None
        return list(identities)


def unwrapped(module: Any, wrappers: tuple[str, ...]) -> Any:
    """Return the model inside its wrappers."""
    while True:
        inside = children(module)
        inner = next((inside[name] for name in wrappers if name in inside), None)
        if inner is None or len(inside) != 1 or parameters(module):
            return module
        module = inner


def modes(torch: ModuleType, module: Any) -> dict[str, int]:
    """Count the layers of a model that drop values, and the layers with running statistics, in
    train mode (``on``) and eval mode (``off``). Also count statistics that still have their initial
    values (``fresh``), and frozen and trainable parameters."""
    counts = {
        "dropout_on": 0,
        "dropout_off": 0,
        "norm_on": 0,
        "norm_off": 0,
        "fresh": 0,
        "frozen": 0,
        "trainable": 0,
    }
    for _, layer in modules(module):
        state = "on" if layer.training else "off"
        if drops(torch, layer):
            counts[f"dropout_{state}"] += 1
        elif keeps_statistics(torch, layer):
            counts[f"norm_{state}"] += 1
            counts["fresh"] += _is_fresh(torch, layer)
        for parameter in parameters(layer).values():
            if parameter is not None:
                counts["trainable" if parameter.requires_grad else "frozen"] += 1
    return counts


def _is_fresh(torch: ModuleType, norm: Any) -> bool:
    """True if a layer's statistics still have their initial values. Files from before torch 0.4
    contain statistics without the number of batches, so the mean is checked too."""
    n_batches: Any = getattr(norm, "num_batches_tracked", None)
    mean: Any = getattr(norm, "running_mean", None)
    for tensor in (n_batches, mean):
        if type(tensor) is not torch.Tensor or tensor.device.type not in ("cpu", "cuda"):
            return False
    with torch._C.DisableTorchFunction():
        return int(n_batches) == 0 and not bool(mean.any())
