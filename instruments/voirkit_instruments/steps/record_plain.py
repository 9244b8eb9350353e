"""Pure-Python version of the hot path of the steps instrument, used where the C extension
``_steps`` is missing; it has the same names and writes the same records.

The callbacks around torch's functions are closures for two reasons. Closures are fastest (a module
call costs 1 microsecond). And torch.compile copies the constants of code: it would copy a method
together with its object, but does not copy a function.
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

# States of a thread: the operation it is inside of. The order says which operation may start inside
# another. A forward pass may start in IDLE and IN_STEP (from a step's closure), a backward pass
# also in IN_FORWARD (for a gradient penalty). Most others may also start in IN_BACKWARD (from
# hooks), and nothing may start in SUPPRESSED.
IDLE, IN_STEP, IN_FORWARD, IN_BACKWARD, SUPPRESSED = 0, 1, 2, 3, 9


_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_BITS, _LEAST, _MOST = (1 << 64) - 1, -(1 << 63), (1 << 63) - 1


def digest_indices(indices: Any) -> int | None:
    """Return a signed 64-bit digest of the indices of a batch, in order; None unless they are a
    list of 64-bit integers or a single one."""
    digest = 0xCBF29CE484222325
    for index in indices if type(indices) is list else (indices,):
        if type(index) is not int or not _LEAST <= index <= _MOST:
            return None
        digest = (digest ^ (index & _BITS)) * 0x9E3779B97F4A7C15 & _BITS
        digest ^= digest >> 32
    return digest - (1 << 64) if digest > _MOST else digest


class HotPath:
    """The callbacks around torch's functions, and the state that they share.

    Callbacks from ``enter`` run before a function and return its start time. Callbacks from the
    other methods run after the function. They are passed the start time (0: do not record the
    call), what the thread was inside of before, and further variables. No callback may raise; only
    exceptions of the program's signal handlers may pass through ``span``.

    Args:
        span: Writes a record into the trace.
        failed: Called with the kind of record that could not be made, and the exception.

    Attributes:
        here: State of each thread. ``inside``: what the thread is inside of. ``stepped``: arguments
            of the record of its last optimizer step; 0 if it has not stepped since this was set to
            0. ``items``: number of items in its last batch; -1 if unknown. ``loss``: the loss of
            the backward pass that is about to start, a float; None if unknown.
        own_ns: Total time that the callbacks took.
        spans: Number of records made in that time.
        trained: Number of backward passes and optimizer steps.
        called: Number of outermost module calls.
    """

    def __init__(self, span: Callable[..., None], failed: Callable[[str, Exception], None]) -> None:
        # A subclass of ThreadState for this HotPath alone: class attributes are all threads'
        # defaults.
        attributes = {"stepped": 0, "items": -1, "loss": None}
        self.here: Any = type("ThreadState", (ThreadState,), attributes)()
        self._span = span
        self._failed = failed
        self.device: Any = None  # recorder of GPU times, once the program uses a GPU
        self.own_ns = self.spans = self.trained = self.called = 0

    def everywhere(self, inside: int) -> None:
        """Set ``inside`` for this thread and for all new ones."""
        type(self.here).inside = self.here.inside = inside

    def forget(self) -> None:
        """Forget cached descriptions, whose objects may have changed. This version caches none."""

    def enter(self, level: int) -> Enter:
        """Return the callback to run before a function. It sets the thread's state to ``level``."""
        thread = self.here

        def enter(*_: object) -> int:
            asked_ns = now()
            if level == IN_STEP and thread.inside == IN_STEP:  # a base class's step: not recorded
                return 0
            thread.inside = level
            if level != SUPPRESSED and self.device is not None:
                self.device.begin()
            start_ns = now()
            self.own_ns += start_ns - asked_ns
            return start_ns

        return enter

    def leave(self, name: int, level: int) -> Leave:
        """Return the callback to run after a function whose records are all alike, except for their
        times."""
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
        """Return the callback to run after a backward pass. ``with_loss``: name of the record if
        ``here.loss`` is known; the loss is then the record's value."""
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
        """Return the callback to run after a module call.

        Args:
            describe: Returns the name and arguments of the record. Called with the module, its
                training mode, and whether gradients are enabled.
            grad_enabled: ``torch.is_grad_enabled``.
            graph_task: torch's ``_current_graph_task_id``: -1 outside of the autograd engine's
                threads.
        """
        thread, span, failed = self.here, self._span, self._failed

        def leave(start_ns: int, was: int, module: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
                return
            try:
                if was == IDLE and graph_task() != -1:  # recomputed by activation checkpointing
                    if self.device is not None:
                        self.device.drop()
                    return
                name, args = describe(module, bool(module.training), bool(grad_enabled()))
            except Exception as exc:  # ``training`` may be a property of the program
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
        """Return the callback to run after an optimizer step.

        Args:
            describe: Returns the name and arguments of an optimizer's record.
            find_device: Called while no GPU times are recorded, to see if the program uses a GPU.
            cuda: ``torch.cuda``, whose ``_initialized`` tells if the program uses a GPU; None: call
                ``find_device`` after each step.
        """
        thread, span, failed = self.here, self._span, self._failed

        def leave(start_ns: int, was: int, optimizer: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
                return
            try:
                if type(optimizer) is tuple:  # a decorated step gets all arguments as a tuple
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
        """Return the callback to run after a request for a batch.

        Args:
            describe: Returns the name and arguments of an iterator's record. Used only by the C
                version, like ``tensor`` and ``modes``.
            other: Records a request that the C version does not: the batch is missing, or consists
                of more than plain tensors. Called with start, end, iterator and batch.
            tensor: ``torch.Tensor``.
            modes: Returns the number of active modes of the program that intercept tensor
                functions.
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
        """Return the callback to run after the sampler of a loader has returned the indices of the
        next batch. It records a digest of the indices at that moment.

        Args:
            name: Name of the records.
            other: Records indices that are neither a list of 64-bit integers nor a single one; must
                not raise.
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
        """Return a callback for ``gc.callbacks`` that records pauses. Collections do not overlap,
        whatever the number of threads.

        Args:
            name: Name of the records; their value is the number of collected objects.
            describe: Returns the arguments of the record of a generation.
            least_ns: Pauses shorter than this are not recorded.
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
            except Exception as exc:  # if raised, Python would print it amid the program's output
                failed("a garbage collection", exc)
                return
            span(name, start_ns, at_ns, args, info["collected"])
            self._count(at_ns)

        return collection

    def watch_copies(self, method: Any, leave: Callable[..., None], *_: object) -> Watched:
        """Return the replacement in a class of a method written in C. ``leave``: called after the
        method has returned another object, with start, object, result and device. Further arguments
        serve the C version, which records usual copies itself."""
        return Watched(self, method, leave)


class Watched:
    """Descriptor that replaces a method written in C, to record the copies that the method makes.

    It is the counterpart of the class in ``_steps_watched.h``, but adds a Python frame. Warnings
    that the method issues therefore name this file; on Python 3.10 tracebacks do too.
    """

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
            except BaseException as exc:  # the method's own exception: it goes on to the program
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
