"""The phases of a run, and the generators that wait for them.

An overseer goes through named phases. An instrument is a function of the overseer; if it returns a
generator, the generator yields a phase and is resumed when that phase has ended, with the phase's
value or its exception. Imports nothing of voirkit, and giving only when the stream of given values
is requested.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias, TypeVar

    T = TypeVar("T")
    Instrument: TypeAlias = Callable[..., Any]
    Waiting: TypeAlias = Generator[Any, Any, Any]
    Status: TypeAlias = Literal["pending", "running", "done"]


class StopProgram(BaseException):
    """Raised by an instrument or a subscriber to end the program early and in order.

    A BaseException, so that ``except Exception`` in the program lets it pass, as it does
    KeyboardInterrupt.
    """


class OverseerAbort(BaseException):
    """Raised by an instrument to end the program with the exception it carries as its first
    argument."""


class Phase:
    """A part of a run."""

    def __init__(self, name: str, status: Status = "pending") -> None:
        self.name = name  # what the phase is called
        # ``"pending"``, ``"running"`` while those who waited for it are resumed, then ``"done"``
        self.status: Status = status
        self.value: Any = None  # what the phase resulted in; None until it has ended
        self.exception: BaseException | None = None  # what ended the phase, if it failed

    @property
    def pending(self) -> bool:
        """Whether the phase has not ended yet."""
        return self.status == "pending"

    @property
    def running(self) -> bool:
        """Whether those who waited for the phase are being resumed."""
        return self.status == "running"

    @property
    def done(self) -> bool:
        """Whether all who waited for the phase have been resumed."""
        return self.status == "done"

    def __call__(self, priority: float = 0, throw: bool = True) -> PhaseWithPriority:
        """The phase with a place in its queue.

        Args:
            priority: Who waits with a higher one is resumed earlier.
            throw: Whether what ended the phase (an error, ``sys.exit``, ``ov.stop``, Ctrl-C) is
                thrown into who waits. Without it the phase ends alike however it ends, so that what
                comes after the ``yield`` is done; ``exception`` says how it did.
        """
        return PhaseWithPriority(self, priority, throw)

    def __repr__(self) -> str:
        return f"<Phase {self.name}: {self.status}>"


class PhaseWithPriority:
    """A phase to wait for, the priority of who waits, and whether what ends the phase is thrown
    into it."""

    def __init__(self, phase: Phase, priority: float, throw: bool = True) -> None:
        self.phase = phase
        self.priority = priority
        self.throw = throw


class PhaseSequence:
    """Phases in their order; each is also an attribute under its name."""

    IMMEDIATE: PhaseWithPriority

    def __init__(self, **phases: Phase) -> None:
        self._sequence = list(phases.values())
        self.__dict__.update(phases)

    def __iter__(self) -> Iterator[Phase]:
        return iter(self._sequence)

    if TYPE_CHECKING:  # the phases are attributes

        def __getattr__(self, name: str) -> Phase: ...


class NotAPhase(TypeError):
    """What an instrument yielded is not a phase of its overseer."""


_order = count()  # ties in priority are broken by the order of require()


class SharedState:
    """What instruments of one run share: one object of each type, kept as long as the run is."""

    def shared(self, kind: type[T], *args: Any) -> T:
        """The run's one object of a type; made, with these arguments, when it is first asked
        for."""
        objects: dict[type, Any] = self.__dict__.setdefault("_shared", {})
        if kind not in objects:
            objects[kind] = kind(*args)
        return objects[kind]  # type: ignore[no-any-return]  # it is of that type


class BaseOverseer(SharedState):
    """Goes through phases, and resumes instruments when the phase they wait for has ended.

    A subclass writes ``_run`` (with ``with self.run_phase(...)`` around each phase) and is called
    like a function.

    Args:
        phase_names: The names of the phases, in their order.
        args: Positional arguments for each instrument; the overseer itself if left out.
        kwargs: Keyword arguments for each instrument.
    """

    def __init__(
        self,
        phase_names: Iterable[str],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        boot = Phase("_boot", status="done")
        self.phases = PhaseSequence(_boot=boot, **{name: Phase(name) for name in phase_names})
        self.phases.IMMEDIATE = boot(priority=0)
        self.handlers: set[Instrument] = set()
        self.handler_args = args if args is not None else ()
        self.handler_kwargs = kwargs or {}
        self.status = "init"
        self._to_require: list[Instrument] = []
        # For each phase a heap of (-priority, order of require, generator, whether it is told of an
        # exception).
        self._plan: dict[Phase, list[tuple[float, int, Waiting, bool]]] = {
            phase: [] for phase in self.phases
        }
        # order of require -> the instrument, to name it in errors
        self._names: dict[int, Instrument] = {}
        self.current: Instrument | None = None  # the instrument that runs right now

    # what instruments call

    def require(self, *instruments: Instrument) -> Any:
        """Take in instruments; the same callable only once.

        A generator runs at once through all the phases that are done and then waits for the next.

        Returns:
            Each instrument's ``__state__`` if it has one, else the instrument; one alone as it is,
            several as a list.
        """
        states = [self._require(instrument) for instrument in instruments]
        return states[0] if len(states) == 1 else states

    def stop(self, value: object = None) -> None:
        """End the program early: StopProgram goes through the program and every instrument, and no
        further."""
        raise StopProgram(value)

    def abort(self, exc: BaseException) -> None:
        """End the program with an exception.

        Raises:
            TypeError: It is not an exception.
        """
        if not isinstance(exc, BaseException):
            raise TypeError(f"abort takes an exception, not {type(exc).__name__}")
        raise OverseerAbort(exc)

    # what a subclass may replace

    def _run(self, *args: Any, **kwargs: Any) -> None:
        """Go through the phases."""

    def _on_instrument_error(self, exc: BaseException) -> None:
        """An instrument failed; ``self.current`` is that instrument, and it will not be resumed."""

    def _on_error(self, exc: BaseException) -> None:
        """The program failed."""

    def _finish(self) -> None:
        """The end, however it came."""

    # how it goes

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the program, once."""
        try:
            self._prepare()
            self._run(*args, **kwargs)
        except StopProgram as stop:
            self._on_stop(*stop.args)
        except BaseException as exc:  # raised again
            self._on_error(exc)
            raise
        finally:
            self._finish()

    def run_phase(self, phase: Phase) -> Any:
        """Around the body of a phase: afterwards all who waited for it are resumed.

        Returns:
            A context manager; its value is a function that sets the phase's value.

        The body's exception is thrown into those who waited, and then raised on.
        """
        return self._phase(phase)

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[Callable[[Any], None]]:
        value: Any = None
        failure: BaseException | None = None

        def set_value(result: Any) -> None:
            nonlocal value
            value = result

        try:
            yield set_value
        except OverseerAbort as abort:
            failure = abort.args[0]
        except BaseException as exc:  # the program's, handed to instruments
            failure = exc
        phase.status, phase.value, phase.exception = "running", value, failure
        waiting = self._plan[phase]
        try:
            while waiting:  # those who are resumed may require others, so that they may grow
                _, order, generator, throw = waiting.pop(0)
                self._resume(order, generator, phase, throw)
            phase.status = "done"
        except OverseerAbort as abort:
            raise abort.args[0] from None
        if failure is not None:
            raise failure

    def _prepare(self) -> None:
        if self.status != "init":
            raise RuntimeError("an overseer runs once; make a new one")
        self.status = "running"
        for instrument in self._to_require:
            self.require(instrument)

    def _require(self, instrument: Instrument) -> Any:
        state = getattr(instrument, "__state__", instrument)
        if self.status == "init":
            self._to_require.append(instrument)
            return state
        if instrument in self.handlers:
            return state
        self.handlers.add(instrument)
        order = next(_order)
        self._names[order] = instrument
        outer, self.current = self.current, instrument
        try:
            generator = instrument(*self.handler_args, **self.handler_kwargs)
        except (StopProgram, OverseerAbort, KeyboardInterrupt):
            raise
        except BaseException as exc:  # an instrument may raise anything
            self._on_instrument_error(exc)
            return state
        finally:
            self.current = outer
        if isinstance(generator, Generator):
            self._resume(order, generator, self.phases._boot)
        return state

    def _resume(self, order: int, generator: Waiting, phase: Phase, throw: bool = True) -> None:
        """Resume a generator after a phase, and after all that it asks for and that is done, until
        it has to wait."""
        outer, self.current = self.current, self._names[order]
        try:
            while True:
                phase_wanted = self._step(generator, phase, throw)
                if phase_wanted is None:
                    return
                phase, throw = phase_wanted.phase, phase_wanted.throw
                if not phase.done:
                    self._plan[phase].append((-phase_wanted.priority, order, generator, throw))
                    self._plan[phase].sort()
                    return
        finally:
            self.current = outer

    def _step(self, generator: Waiting, phase: Phase, throw: bool) -> PhaseWithPriority | None:
        """Resume a generator once; what it waits for next, or None if it has ended or failed."""
        try:
            if phase.exception is None or not throw:
                phase_wanted = generator.send(phase.value)
            else:
                phase_wanted = generator.throw(phase.exception)
            if isinstance(phase_wanted, Phase):
                phase_wanted = phase_wanted()
            if (
                not isinstance(phase_wanted, PhaseWithPriority)
                or phase_wanted.phase not in self._plan
            ):
                generator.close()
                raise NotAPhase(phase_wanted)
            return phase_wanted
        except StopIteration:
            return None
        except (StopProgram, OverseerAbort, KeyboardInterrupt) as exc:
            if exc is phase.exception:
                return None
            raise
        except BaseException as exc:
            # the program's own exception, let through, is not a fault of the instrument
            if exc is not phase.exception:
                self._on_instrument_error(exc)
            return None

    def _close(self) -> None:
        """Close all who wait for what does not come any more."""
        for generator, _ in self._each_waiting():
            try:
                generator.close()
            except (StopProgram, OverseerAbort):
                pass  # there is nothing left to end
            except Exception as exc:  # an instrument's own code
                self._on_instrument_error(exc)
        for waiting in self._plan.values():
            waiting.clear()

    def _each_waiting(self) -> Iterator[tuple[Waiting, bool]]:
        """All who wait, and whether they are told of exceptions; each is the current instrument in
        its turn."""
        for waiting in self._plan.values():
            for _, order, generator, throw in sorted(waiting):
                outer, self.current = self.current, self._names[order]
                try:
                    yield generator, throw
                finally:
                    self.current = outer

    def _on_stop(self, value: object = None) -> None:
        """Throw StopProgram into all who wait, but those who asked for no exception."""
        self.status = "stopped"
        for generator, throw in self._each_waiting():
            if throw:
                try:
                    generator.throw(StopProgram(value))
                except (StopProgram, StopIteration):
                    pass
                except BaseException as exc:  # an instrument's own code
                    self._on_instrument_error(exc)


class GivenOverseer(BaseOverseer):
    """An overseer with a stream of given values.

    Attributes:
        given: The stream; giving is imported when it is first asked for.
    """

    _given: Any = None
    _when_given: Sequence[Callable[[Any], None]] = ()
    _given_closed = False

    @property
    def given(self) -> Any:
        """A ``giving`` stream of all that is given, by the program and by instruments, in any
        thread."""
        if self._given is None:
            stream = self._make_given()
            if self._given is not None:
                return self._given  # importing giving asked for it as well
            self._given = stream
            if not self._given_closed:
                self._given.__enter__()
            for callback in self._when_given:
                callback(self._given)
        return self._given

    def _make_given(self) -> Any:
        from threading import RLock

        from giving import given

        self._lock = RLock()
        return given()

    def give(self, **data: Any) -> None:
        """Give values into ``self.given``, from any thread; they have arrived when the call
        returns.

        Those given by several threads arrive one after the other.
        """
        given = self.given
        from giving import give
        from giving.gvr import global_context

        with self._lock:
            if global_context.get():
                give(**data)
            else:  # another thread: its context is empty
                given._push(data)

    def queue(self, **data: Any) -> None:
        """The same as ``give``, and ``$queued`` holds the time (seconds since the epoch), as in
        voir."""
        self.give(**data, **{"$queued": time.time()})

    def _end_streams(self) -> None:
        """End the stream, so that reductions come out."""
        if self._given is not None and not self._given_closed:
            self._given.__exit__(None, None, None)
        self._given_closed = True

    def _finish(self) -> None:
        self._end_streams()
        super()._finish()
