"""What the parts of ``--checks`` share: how a fact is written into the trace plane, where in the program it happened, which thread is left
out, what is read of tensors, and which models were called: in which mode, with gradients or without, from where.

A fact is a record of the kind and category ``check``: its name says what happened, its arguments ``where`` (``main.py:12``) and more, its
own number is ``value``. Must never raise, and never keep anything of the program alive.

Where tensors are read nothing of the program's own is called, no graph, random number, hook or mode sees it, and nothing is changed: what
cannot be known so is left out, as are tensors that are not plain (sharded over ranks, sparse, quantized, of a subclass), and those whose
memory is freed.
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
from voirkit_instruments.layers import MOST_MODULES, children, drops, keeps_statistics, modules, parameters
from voirkit_instruments.places import Places
from voirkit_instruments.values import ProbeCost, is_readable, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Named = tuple[str, str, bool, int]  # of a parameter: full name, its model's class, whether that trains, the model's number

KIND = CATEGORY = "check"
# What a thread is inside of; a model's call (FORWARD) is left out of another, but for a few steps in which all are seen (COLLECTING).
NOTHING, STEP, COLLECTING, FORWARD, BACKWARD, DEAF = 0, 1, 2, 3, 4, 9

_MOST_KNOWN = 4096

now = time.perf_counter_ns


class Facts:
    """Writes facts.

    Attributes:
        here: What each thread is inside of (one of the levels above).
        span: The recorder's, for facts that last; its first argument is ``name(...)``.
        after_look: Called when an optimizer is looked at: its number, how many steps it has done, where, and what it holds.
        n_steps: How many steps optimizers have done.
        n_passes: How many backward passes have begun.
    """

    n_steps = n_passes = 0

    def __init__(self, recorder: Any, warn: Callable[[str], None]) -> None:
        at_fork("instruments", in_child=self.forked)
        self.recorder, self.span = recorder, recorder.span
        self.here = type("ThreadState", (ThreadState,), {})()  # a class of its own: what it says of all threads is for this one alone
        self.after_look: list[Callable[[int, int, str | None, list[Any]], None]] = []
        self.cost = ProbeCost(recorder)  # what inspecting for facts takes
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
        """The interned arguments of a fact; cheap for those that have been asked for before."""
        key = (where, *more.items())
        found = self._arguments.get(key)
        if found is None:
            if len(self._arguments) > _MOST_KNOWN:
                self._arguments.clear()
            found = self._arguments[key] = self.recorder.arguments({**({"where": where} if where else {}), **more})
        return found

    def mark(self, name: str, where: str | None = None, value: int = 0, /, **more: Any) -> None:
        self.mark_at(name, now(), where, value, **more)

    def mark_at(self, name: str, at_ns: int, where: str | None = None, value: int = 0, /, **more: Any) -> None:
        """Write a fact that is known later than it happened."""
        self.recorder.mark(self.name(name), at_ns, self.arguments(where, **more), value)

    def tally(self, name: str, kind: str) -> None:
        """Count what is looked at: how often is the value of a fact, which is written at each power of two and at the end."""
        n = self._tallies[name, kind] = self._tallies.get((name, kind), 0) + 1
        if n & (n - 1) == 0:
            self.mark(name, None, n, kind=kind)

    def mark_tallies(self) -> None:
        """Write what was counted: the program has ended."""
        for (name, kind), n in self._tallies.items():
            self.mark(name, None, n, kind=kind)

    def where(self) -> str | None:
        """The innermost line of the user's own code that is being run (``main.py:12``), or of a library's where there is none of theirs."""
        return self.places.of(sys._getframe(1))

    def trains(self) -> None:
        """This process makes an optimizer: it trains. One that another has forked is deaf until then."""
        if self._pid != os.getpid() and not _is_worker():
            self._pid = os.getpid()
            type(self.here).inside = self.here.inside = NOTHING

    def forked(self) -> None:
        """This process has been forked, by one that may train, to load or prepare data, most often."""
        type(self.here).inside = self.here.inside = DEAF

    def failed(self, what: str, exc: BaseException) -> None:
        if what not in self._failed:
            self._failed.add(what)
            self._warn(f"checks: {what} could not be examined ({type(exc).__name__}: {exc}); this is reported once.")


def never_raises(what: str, returns: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a method that runs before or after a function of torch: what fails in it is warned of, as ``what``, by its ``_facts``.

    Args:
        returns: What it returns then; to ``Around``, not 0 is that ``enter`` was there.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(self: Any, *passed: Any) -> Any:
            try:
                return method(self, *passed)
            except Exception as exc:
                self._facts.failed(what, exc)
                return returns

        return guarded

    return decorate


class Watcher:
    """What stands around functions of torch and writes facts: ``enter`` and ``leave`` where only the other side matters."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch

    def __deepcopy__(self, memo: object) -> Watcher:
        return self  # torch.compile copies the constants of code, of which its methods are some

    def enter(self, *_: Any) -> int:
        """Nothing is known before the call."""
        return 1

    def leave(self, *_: Any) -> None:
        """Nothing is done after it."""


# what is read of tensors: of many at once, with one wait for a device each time

INF = float("inf")
UNKNOWN = -1.0  # of a tensor that is not looked at


def largest(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """The largest absolute value in each tensor: nan or inf if one is in it; -1 where it is not known."""
    return _norms(torch, tensors, INF)


def digests(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """A number of each tensor that is another one when its values are: the sum of their absolute values; -1 where it is not known."""
    return _norms(torch, tensors, 1)


def is_plain(torch: ModuleType, tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and is_readable(torch, tensor)
        and tensor.device.type in ("cpu", "cuda")
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.element_size() > 1  # torch has no norm of float8
        and tensor.numel() > 0
    )


def is_quiet(torch: ModuleType) -> bool:
    """Whether the program would not notice: it looks at no operator itself, compiles nothing and captures no CUDA graph."""
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is None or modes():
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._is_tracing() if hasattr(torch._C, "_is_tracing") else True


def _norms(torch: ModuleType, tensors: Sequence[Any], order: float) -> list[float]:
    found = [UNKNOWN] * len(tensors)
    with quiet(), torch._C.DisableTorchFunction():
        if not is_quiet(torch):
            return found
        groups: dict[Any, list[int]] = {}
        for at, tensor in enumerate(tensors):
            if is_plain(torch, tensor):
                groups.setdefault((tensor.device, tensor.dtype), []).append(at)
        with torch.no_grad():
            for chosen in groups.values():
                norms = torch._foreach_norm([tensors[at].detach() for at in chosen], order)
                for at, value in zip(chosen, torch.stack(norms).tolist(), strict=True):
                    found[at] = abs(value)
    return found


def _is_worker() -> bool:
    """Whether this process is a loader's worker."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


# models: seldom also their layers and the names of their parameters

_RECENT = 64
_WRAPPERS = ("_orig_mod", "module")  # of torch.compile and DistributedDataParallel


class ModelFacts(Watcher):
    """Outermost module calls."""

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
        self.collecting = True  # whether ``called`` is filled
        # the modules that were called with gradients on, in the order of their first call, by identity
        self.called: dict[int, weakref.ref[Any]] = {}
        self.recent: dict[int, weakref.ref[Any]] = {}  # references to the models called last, by number

    def enter_call(self, module: Any) -> int:
        """Before a module call; inside of another only while calls are collected."""
        here, called = self._facts.here, self.called
        if not self.collecting:
            here.inside = FORWARD
            return now()
        if id(module) not in called and self._grad() and len(called) < MOST_MODULES:
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
            if len(self._arguments) > MOST_MODULES:
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
                for name, parameter in parameters(module).items():
                    if parameter is not None:
                        full = f"{path}.{name}" if path else name
                        found.setdefault(id(parameter), (full, type(model).__name__, bool(model.training), number))
        return found

    def embeddings(self) -> dict[int, str]:
        """By identity of their weights, the names of all embeddings of the models called last."""
        nn = self._torch.nn
        found: dict[int, str] = {}
        for _, model in self._live():
            model = unwrapped(model, _WRAPPERS)
            for path, module in modules(model):
                if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                    weight = parameters(module).get("weight")
                    found.setdefault(id(weight), f"{path}.weight" if path else "weight")
        return found

    def mark_trained(self, optimizer: int, graded: set[int], where: str | None) -> None:
        """Write which of the models called last have parameters that an optimizer holds, with gradients; once for each."""
        for number, model in self._live():
            if (number, optimizer) not in self._trained:
                own = [id(p) for _, one in modules(model) for p in parameters(one).values() if p is not None]
                n = sum(key in graded for key in own)
                if n:
                    self._trained.add((number, optimizer))
                    self._facts.mark("trained", where, number, optimizer=optimizer, graded=n, of=len(own))

    def in_order(self) -> list[int]:
        """Identities of the parameters of modules that were called with gradients on, in the order of the calls."""
        found: dict[int, None] = {}
        for known in list(self.called.values()):
            module = known()
            if module is not None and (not children(module) or type(module).__module__.startswith("torch.nn")):
                found.update((id(parameter), None) for parameter in parameters(module).values() if parameter is not None)
        return list(found)


def unwrapped(module: Any, wrappers: tuple[str, ...]) -> Any:
    """The model in what stands around it."""
    while True:
        inside = children(module)
        inner = next((inside[name] for name in wrappers if name in inside), None)
        if inner is None or len(inside) != 1 or parameters(module):
            return module
        module = inner


def modes(torch: ModuleType, module: Any) -> dict[str, int]:
    """How many layers of a model drop values, and how many keep running statistics, in train mode (``on``) and not; its parameters."""
    found = {"dropout_on": 0, "dropout_off": 0, "norm_on": 0, "norm_off": 0, "fresh": 0, "frozen": 0, "trainable": 0}
    for _, one in modules(module):
        state = "on" if one.training else "off"
        if drops(torch, one):
            found[f"dropout_{state}"] += 1
        elif keeps_statistics(torch, one):
            found[f"norm_{state}"] += 1
            found["fresh"] += _is_fresh(torch, one)
        for parameter in parameters(one).values():
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
