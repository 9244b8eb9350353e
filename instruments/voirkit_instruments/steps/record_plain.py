"""The hot path of the steps instrument in Python, for where the C extension ``_steps`` is not: the same names, the same records.

What is called before and after functions of torch are closures: the quickest (a module call costs 1 microsecond), and torch.compile, which
copies the constants of code, copies a method with its object but no function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from types import MethodType
from typing import Any

from voirkit.intercept import ThreadState, without_this_frame
from voirkit.probes.around import ABSENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    Enter = Callable[..., int]
    Leave = Callable[..., None]
    Describe = Callable[..., tuple[int, int]]

now = time.perf_counter_ns

# What a thread is inside of. The order says what may begin inside of what: forward in IDLE and IN_STEP (a closure), backward also in
# IN_FORWARD (a gradient penalty), most others also in IN_BACKWARD (hooks), nothing in SUPPRESSED.
IDLE, IN_STEP, IN_FORWARD, IN_BACKWARD, SUPPRESSED = 0, 1, 2, 3, 9


_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_BITS, _LEAST, _MOST = (1 << 64) - 1, -(1 << 63), (1 << 63) - 1


def digest_indices(indices: Any) -> int | None:
    """64 bits, signed, that stand for the indices of a batch in their order; None of what is no list of whole numbers of 64 bits, nor
    one of them."""
    digest = 0xCBF29CE484222325
    for index in indices if type(indices) is list else (indices,):
        if type(index) is not int or not _LEAST <= index <= _MOST:
            return None
        digest = (digest ^ (index & _BITS)) * 0x9E3779B97F4A7C15 & _BITS
        digest ^= digest >> 32
    return digest - (1 << 64) if digest > _MOST else digest


class HotPath:
    """What the functions around torch's share.

    Functions that ``enter`` gives are called before: they return when the call began. Those that the others give are called after, with
    that (0: it is not to be recorded), with what the thread was inside of, and more. They must never raise but what ``span`` raises, which
    is the program's, of a signal handler.

    Args:
        failed: Told what could not be recorded, and why.

    Attributes:
        here: Says what each thread is inside of; which optimizer it has stepped (``stepped``: the arguments of that step's record; 0:
            none since somebody has set it to 0); how many items its last batch has (``items``; -1: not known); and the loss, a float, of
            the walk through a graph that is about to begin (``loss``; None: it is not known).
        own_ns: What these functions took, each time that they were called.
        spans: How many records were made in that time.
        trained: How many walks through graphs and steps of optimizers there were.
        called: How many outermost module calls.
    """

    def __init__(self, span: Callable[..., None], failed: Callable[[str, Exception], None]) -> None:
        self.here = type(
            "ThreadState", (ThreadState,), {"stepped": 0, "items": -1, "loss": None}
        )()  # a class of its own: what it says of all threads is for this one alone
        self._span, self._failed = span, failed
        self.device: Any = None  # times on a GPU, once there is one
        self.own_ns = self.spans = self.trained = self.called = 0

    def everywhere(self, inside: int) -> None:
        """This thread, and those that come, are inside of this."""
        type(self.here).inside = self.here.inside = inside

    def forget(self) -> None:
        """What was described may be something else now; nothing is kept here."""

    def enter(self, level: int) -> Enter:
        """Before what is on some level."""
        here = self.here

        def enter(*_: object) -> int:
            asked = now()
            if level == IN_STEP and here.inside == IN_STEP:  # the step of the class above
                return 0
            here.inside = level
            if level != SUPPRESSED and self.device is not None:
                self.device.begin()
            began = now()
            self.own_ns += began - asked
            return began

        return enter

    def leave(self, name: int, level: int) -> Leave:
        """After what is always described alike."""
        here, span = self.here, self._span

        def leave(began: int, was: int, *_: object) -> None:
            end = now()
            here.inside = was
            if began:
                span(name, began, end)
                if level != SUPPRESSED and self.device is not None:
                    self.device.end(name, 0)
                self._count(end)

        return leave

    def leave_backward(self, name: int, with_loss: int) -> Leave:
        """After a walk through a graph. ``with_loss``: the name of its record where ``here.loss`` is known, and is its own number."""
        here, span = self.here, self._span

        def leave(began: int, was: int, *_: object) -> None:
            end = now()
            here.inside = was
            loss, here.loss = here.loss, None
            if began:
                self.trained += 1
                if type(loss) is float:
                    span(with_loss, began, end, 0, *_as_integer(_as_double(loss)))
                else:
                    span(name, began, end)
                if self.device is not None:
                    self.device.end(name, 0)
                self._count(end)

        return leave

    def _count(self, end: int) -> None:
        self.spans += 1
        self.own_ns += now() - end

    def leave_call(self, describe: Describe, grad_enabled: Callable[[], bool], graph_task: Callable[[], int]) -> Leave:
        """After a module call.

        Args:
            describe: Tells, of a module and whether it trains and has gradients, the name and arguments.
            grad_enabled: torch's.
            graph_task: torch's: -1 outside of a thread of the autograd engine.
        """
        here, span, failed = self.here, self._span, self._failed

        def leave(began: int, was: int, module: Any) -> None:
            end = now()
            here.inside = was
            if not began:
                return
            try:
                if was == IDLE and graph_task() != -1:  # a checkpoint's recomputation
                    if self.device is not None:
                        self.device.drop()
                    return
                name, args = describe(module, bool(module.training), bool(grad_enabled()))
            except Exception as exc:
                failed("a module call", exc)
                return
            self.called += 1
            span(name, began, end, args)
            if self.device is not None:
                self.device.end(name, args)
            self._count(end)

        return leave

    def leave_step(self, describe: Describe, find_device: Callable[[], None], cuda: Any = None) -> Leave:
        """After an optimizer's step.

        Args:
            describe: Tells, of an optimizer, the name and arguments.
            find_device: Called where no device is used yet.
            cuda: torch's module, whose ``_initialized`` tells whether there is anything to look at; None: look each time.
        """
        here, span, failed = self.here, self._span, self._failed

        def leave(began: int, was: int, optimizer: Any) -> None:
            end = now()
            here.inside = was
            if not began:
                return
            try:
                if type(optimizer) is tuple:  # all arguments, of a decorator's function
                    optimizer = optimizer[0]
                name, args = describe(optimizer)
                if self.device is None:
                    if cuda is None or cuda._initialized:
                        find_device()
                else:
                    self.device.end(name, args)
            except Exception as exc:
                failed("an optimizer's step", exc)
                return
            self.trained += 1
            here.stepped = args
            span(name, began, end, args)
            self._count(end)

        return leave

    def leave_fetch(self, describe: Describe, other: Callable[..., None], tensor: type, modes: Callable[[], int]) -> Leave:
        """After a request for a batch.

        Args:
            describe: Tells, of an iterator, the name and arguments.
            other: Records a batch that is not of plain tensors, or none: called with begin, end, iterator and batch.
            tensor: torch's own type of them.
            modes: How many modes of the program look at what is asked of a tensor.
        """
        here = self.here

        def leave(began: int, was: int, iterator: Any, batch: Any = ABSENT) -> None:
            end = now()
            here.inside = was
            if began:
                other(began, end, iterator, batch)
                self._count(end)

        return leave

    def leave_indices(self, name: int, other: Callable[[Any], None]) -> Leave:
        """After the sampler of a loader has said which items the next batch has: a record of their digest at the end of that.

        Args:
            name: Of the records.
            other: Records indices that are no list of whole numbers of 64 bits, nor one; must not raise.
        """
        here, span = self.here, self._span

        def leave(began: int, was: int, indices: Any = ABSENT) -> None:
            end = now()
            here.inside = was
            if not began:
                return
            digest = digest_indices(indices)
            if digest is None:
                other(indices)
            else:
                span(name, end, end, 0, digest)
            self._count(end)

        return leave

    def collection(self, name: int, describe: Callable[[int], int], least_ns: int) -> Callable[[str, dict[str, int]], None]:
        """A callback for ``gc.callbacks`` that records pauses. Collections do not overlap, whatever threads there are.

        Args:
            name: Of the records; their value is how many objects were collected.
            describe: The arguments of a generation.
            least_ns: Shorter pauses are not recorded.
        """
        span, failed, here = self._span, self._failed, type(self.here)
        began = 0

        def collection(phase: str, info: dict[str, int]) -> None:
            nonlocal began
            at = now()
            if phase == "start":
                began = at
                return
            if not began or at - began < least_ns or here.inside == SUPPRESSED:
                return
            try:
                args = describe(info["generation"])
            except Exception as exc:
                failed("a garbage collection", exc)
                return
            span(name, began, at, args, info["collected"])
            self._count(at)

        return collection

    def watch_copies(self, method: Any, leave: Callable[..., None], *_: object) -> Watched:
        """What stands in a class in place of a method written in C. ``leave``: called with begin, object, result and device after it has
        returned another object. What else is passed is for the usual copies, which C records itself."""
        return Watched(self, method, leave)


class Watched:
    """What ``_steps_watched.h`` does, with a frame of Python: a warning of the method names this file, on python 3.10 a traceback too."""

    def __init__(self, hot: HotPath, method: Any, leave: Callable[..., None]) -> None:
        here = hot.here

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            deaf = here.inside > IN_BACKWARD
            device = None if deaf else hot.device
            if device is not None:
                device.begin()
            began = now()
            result = None
            try:
                result = method(self, *args, **kwargs)
                return result
            except BaseException as exc:
                without_this_frame(exc)
                raise
            finally:
                if not deaf:
                    end = now()
                    if result is not None and result is not self:
                        leave(began, self, result, device)
                    elif device is not None:
                        device.drop()
                    hot.own_ns += now() - end

        call.__name__, call.__qualname__, call.__doc__ = method.__name__, f"Tensor.{method.__name__}", method.__doc__
        self._method, self._call = method, call

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self._method if tensor is None else MethodType(self._call, tensor)
