"""The hot path of the steps instrument in Python, for where the C extension ``_steps`` is not: the
same names, the same records.

What is called before and after functions of torch are closures: the quickest (a module call costs 1
microsecond), and torch.compile, which copies the constants of code, copies a method with its object
but no function.
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

# What a thread is inside of. The order says what may begin inside of what: forward in IDLE and
# IN_STEP (a closure), backward also in IN_FORWARD (a gradient penalty), most others also in
# IN_BACKWARD (hooks), nothing in SUPPRESSED.
IDLE, IN_STEP, IN_FORWARD, IN_BACKWARD, SUPPRESSED = 0, 1, 2, 3, 9


_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_BITS, _LEAST, _MOST = (1 << 64) - 1, -(1 << 63), (1 << 63) - 1


def digest_indices(indices: Any) -> int | None:
    """A digest of the indices of a batch in their order, 64 bits, signed; None of what is no list
    of whole numbers of 64 bits, nor one of them."""
    digest = 0xCBF29CE484222325
    for index in indices if type(indices) is list else (indices,):
        if type(index) is not int or not _LEAST <= index <= _MOST:
            return None
        digest = (digest ^ (index & _BITS)) * 0x9E3779B97F4A7C15 & _BITS
        digest ^= digest >> 32
    return digest - (1 << 64) if digest > _MOST else digest


class HotPath:
    """The state that the functions around torch's share, and those functions.

    Functions that ``enter`` gives are called before: they return when the call began. Those that
    the others give are called after, with that (0: it is not to be recorded), with what the thread
    was inside of, and more. They must never raise but what ``span`` raises, which is the program's,
    of a signal handler.

    Args:
        failed: Called with what could not be recorded, and why.

    Attributes:
        here: Of each thread, what it is inside of; which optimizer it has stepped (``stepped``: the
            arguments of that step's record; 0: none since somebody has set it to 0); how many items
            its last batch has (``items``; -1: not known); and the loss, a float, of the walk
            through a graph that is about to begin (``loss``; None: it is not known).
        own_ns: What these functions took, each time that they were called.
        spans: How many records were made in that time.
        trained: How many walks through graphs and steps of optimizers there were.
        called: How many outermost module calls.
    """

    def __init__(self, span: Callable[..., None], failed: Callable[[str, Exception], None]) -> None:
        # a class of its own: what it says of all threads is for this one alone
        attributes = {"stepped": 0, "items": -1, "loss": None}
        self.here: Any = type("ThreadState", (ThreadState,), attributes)()
        self._span = span
        self._failed = failed
        self.device: Any = None  # times on a GPU, once there is one
        self.own_ns = self.spans = self.trained = self.called = 0

    def everywhere(self, inside: int) -> None:
        """Put this thread, and those that come, inside of this."""
        type(self.here).inside = self.here.inside = inside

    def forget(self) -> None:
        """Forget descriptions, which may be of something else now; nothing is kept here."""

    def enter(self, level: int) -> Enter:
        """Before what is on some level."""
        thread = self.here

        def enter(*_: object) -> int:
            asked_ns = now()
            if level == IN_STEP and thread.inside == IN_STEP:  # the step of the class above
                return 0
            thread.inside = level
            if level != SUPPRESSED and self.device is not None:
                self.device.begin()
            start_ns = now()
            self.own_ns += start_ns - asked_ns
            return start_ns

        return enter

    def leave(self, name: int, level: int) -> Leave:
        """After what is always described alike."""
        thread, span = self.here, self._span

        def leave(start_ns: int, was: int, *_: object) -> None:
            end = now()
            thread.inside = was
            if start_ns:
                span(name, start_ns, end)
                if level != SUPPRESSED and self.device is not None:
                    self.device.end(name, 0)
                self._count(end)

        return leave

    def leave_backward(self, name: int, with_loss: int) -> Leave:
        """After a walk through a graph. ``with_loss``: the name of its record where ``here.loss``
        is known, and is its own number."""
        thread, span = self.here, self._span

        def leave(start_ns: int, was: int, *_: object) -> None:
            end = now()
            thread.inside = was
            loss, thread.loss = thread.loss, None
            if start_ns:
                self.trained += 1
                if type(loss) is float:
                    span(with_loss, start_ns, end, 0, *_as_integer(_as_double(loss)))
                else:
                    span(name, start_ns, end)
                if self.device is not None:
                    self.device.end(name, 0)
                self._count(end)

        return leave

    def _count(self, end: int) -> None:
        self.spans += 1
        self.own_ns += now() - end

    def leave_call(
        self, describe: Describe, grad_enabled: Callable[[], bool], graph_task: Callable[[], int]
    ) -> Leave:
        """After a module call.

        Args:
            describe: Gives, for a module and whether it trains and has gradients, the name and
                arguments.
            grad_enabled: torch's.
            graph_task: torch's: -1 outside of a thread of the autograd engine.
        """
        thread, span, failed = self.here, self._span, self._failed

        def leave(start_ns: int, was: int, module: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
                return
            try:
                if was == IDLE and graph_task() != -1:  # a checkpoint's recomputation
                    if self.device is not None:
                        self.device.drop()
                    return
                name, args = describe(module, bool(module.training), bool(grad_enabled()))
            except Exception as exc:  # ``training`` may be code of the program's
                failed("a module call", exc)
                return
            self.called += 1
            span(name, start_ns, end, args)
            if self.device is not None:
                self.device.end(name, args)
            self._count(end)

        return leave

    def leave_step(
        self, describe: Describe, find_device: Callable[[], None], cuda: Any = None
    ) -> Leave:
        """After an optimizer's step.

        Args:
            describe: Gives, for an optimizer, the name and arguments.
            find_device: Called where no device is used yet.
            cuda: torch's module, whose ``_initialized`` tells whether there is anything to look at;
                None: look each time.
        """
        thread, span, failed = self.here, self._span, self._failed

        def leave(start_ns: int, was: int, optimizer: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
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
            except Exception as exc:  # an optimizer of another library, or a device that failed
                failed("an optimizer's step", exc)
                return
            self.trained += 1
            thread.stepped = args
            span(name, start_ns, end, args)
            self._count(end)

        return leave

    def leave_fetch(
        self, describe: Describe, other: Callable[..., None], tensor: type, modes: Callable[[], int]
    ) -> Leave:
        """After a request for a batch.

        Args:
            describe: Gives, for an iterator, the name and arguments.
            other: Records a batch that is not of plain tensors, or none: called with begin, end,
                iterator and batch.
            tensor: torch's own type of them.
            modes: How many modes of the program look at what is asked of a tensor.
        """
        thread = self.here

        def leave(start_ns: int, was: int, iterator: Any, batch: Any = ABSENT) -> None:
            end = now()
            thread.inside = was
            if start_ns:
                other(start_ns, end, iterator, batch)
                self._count(end)

        return leave

    def leave_indices(self, name: int, other: Callable[[Any], None]) -> Leave:
        """After the sampler of a loader has said which items the next batch has: a record of their
        digest at the end of that.

        Args:
            name: Of the records.
            other: Records indices that are no list of whole numbers of 64 bits, nor one; must not
                raise.
        """
        thread, span = self.here, self._span

        def leave(start_ns: int, was: int, indices: Any = ABSENT) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
                return
            digest = digest_indices(indices)
            if digest is None:
                other(indices)
            else:
                span(name, end, end, 0, digest)
            self._count(end)

        return leave

    def collection(
        self, name: int, describe: Callable[[int], int], least_ns: int
    ) -> Callable[[str, dict[str, int]], None]:
        """A callback for ``gc.callbacks`` that records pauses. Collections do not overlap, whatever
        threads there are.

        Args:
            name: Of the records; their value is how many objects were collected.
            describe: The arguments of a generation.
            least_ns: Shorter pauses are not recorded.
        """
        span, failed, thread = self._span, self._failed, type(self.here)
        start_ns = 0

        def collection(phase: str, info: dict[str, int]) -> None:
            nonlocal start_ns
            at_ns = now()
            if phase == "start":
                start_ns = at_ns
                return
            if not start_ns or at_ns - start_ns < least_ns or thread.inside == SUPPRESSED:
                return
            try:
                args = describe(info["generation"])
            except Exception as exc:  # python would print it, in the middle of the program
                failed("a garbage collection", exc)
                return
            span(name, start_ns, at_ns, args, info["collected"])
            self._count(at_ns)

        return collection

    def watch_copies(self, method: Any, leave: Callable[..., None], *_: object) -> Watched:
        """The replacement in a class of a method written in C. ``leave``: called with begin,
        object, result and device after it has returned another object. What else is passed is for
        the usual copies, which C records itself."""
        return Watched(self, method, leave)


class Watched:
    """The same as ``_steps_watched.h``, with a frame of Python: a warning of the method names this
    file, on python 3.10 a traceback too."""

    def __init__(self, hot: HotPath, method: Any, leave: Callable[..., None]) -> None:
        thread = hot.here

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_suppressed = thread.inside > IN_BACKWARD
            device = None if is_suppressed else hot.device
            if device is not None:
                device.begin()
            start_ns = now()
            result = None
            try:
                result = method(self, *args, **kwargs)
                return result
            except BaseException as exc:  # whatever the method raises: it goes on to the program
                without_this_frame(exc)
                raise
            finally:
                if not is_suppressed:
                    end = now()
                    if result is not None and result is not self:
                        leave(start_ns, self, result, device)
                    elif device is not None:
                        device.drop()
                    hot.own_ns += now() - end

        call.__name__ = method.__name__
        call.__qualname__ = f"Tensor.{method.__name__}"
        call.__doc__ = method.__doc__
        self._method = method
        self._call = call

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self._method if tensor is None else MethodType(self._call, tensor)
