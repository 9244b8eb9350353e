"""The phases of a run, and the generators that wait for them.

An overseer goes through named phases. An instrument is a function that takes the overseer. If it
returns a generator, the generator yields a phase to wait for, and is resumed when that phase has
ended, with the phase's value or its exception. This module imports nothing of voirkit, and imports
giving only when the stream of given values is requested.
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

    It is a BaseException, like KeyboardInterrupt, so that ``except Exception`` in the program does
    not catch it.
    """


class OverseerAbort(BaseException):
    """Raised by an instrument to end the program with another exception, which is its first
    argument."""


class Phase:
    """A named part of a run."""

    def __init__(self, name: str, status: Status = "pending") -> None:
        self.name = name  # instruments find the phase as ``ov.phases.<name>``
        # ``"pending"``, then ``"running"`` while the generators that waited for the phase are
        # resumed, then ``"done"``
        self.status: Status = status
        self.value: Any = None  # the result of the phase; None until the phase has ended
        self.exception: BaseException | None = None  # the exception that ended the phase, if any

    @property
    def pending(self) -> bool:
        """True if the phase has not ended yet."""
        return self.status == "pending"

    @property
    def running(self) -> bool:
        """True while the generators that waited for the phase are being resumed."""
        return self.status == "running"

    @property
    def done(self) -> bool:
        """True if all generators that waited for the phase have been resumed."""
        return self.status == "done"

    def __call__(self, priority: float = 0, throw: bool = True) -> PhaseWithPriority:
        """Return the phase with a priority, for a generator to yield.

        Args:
            priority: Generators with a higher priority are resumed earlier.
            throw: True to have the exception that ended the phase (an error, ``sys.exit``,
                ``ov.stop``, Ctrl-C) thrown into the generator. With False the generator is resumed
                normally, so that the code after the ``yield`` runs; the exception is then the
                attribute ``exception`` of the phase.
        """
        return PhaseWithPriority(self, priority, throw)

    def __repr__(self) -> str:
        return f"<Phase {self.name}: {self.status}>"


class PhaseWithPriority:
    """A phase to wait for, the priority of the generator that waits, and whether an exception that
    ends the phase is thrown into that generator."""

    def __init__(self, phase: Phase, priority: float, throw: bool = True) -> None:
        self.phase = phase
        self.priority = priority
        self.throw = throw


class PhaseSequence:
    """The phases in order; each phase is also an attribute under its name."""

    IMMEDIATE: PhaseWithPriority

    def __init__(self, **phases: Phase) -> None:
        self._sequence = list(phases.values())
        self.__dict__.update(phases)

    def __iter__(self) -> Iterator[Phase]:
        return iter(self._sequence)

    if TYPE_CHECKING:  # tells type checkers that each phase is an attribute

        def __getattr__(self, name: str) -> Phase: ...


class NotAPhase(TypeError):
    """An instrument yielded something that is not a phase of its overseer."""


_order = count()  # numbers the calls of require(); breaks ties in priority


class SharedState:
    """State that the instruments of one run share: one object of each type, kept as long as the
    run."""

    def shared(self, kind: type[T], *args: Any) -> T:
        """Return the run's only object of a type; the first request makes it, with these
        arguments."""
        objects: dict[type, Any] = self.__dict__.setdefault("_shared", {})
        if kind not in objects:
            objects[kind] = kind(*args)
        return objects[kind]  # type: ignore[no-any-return]  # the object is an instance of ``kind``


class BaseOverseer(SharedState):
    """Goes through phases, and resumes instruments when the phase they wait for has ended.

    A subclass writes ``_run`` (with ``with self.run_phase(...)`` around each phase) and is called
    like a function.

    Args:
        phase_names: The names of the phases, in order.
        args: Positional arguments for each instrument, such as ``(self,)``; none if left out.
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
        # For each phase, the generators that wait for the phase: a sorted list of (-priority,
        # number of the require() call, generator, whether exceptions are thrown into it).
        self._plan: dict[Phase, list[tuple[float, int, Waiting, bool]]] = {
            phase: [] for phase in self.phases
        }
        # number of the require() call -> the required instrument, to name it in errors
        self._names: dict[int, Instrument] = {}
        self.current: Instrument | None = None  # the instrument whose code runs right now

    # Methods that instruments call

    def require(self, *instruments: Instrument) -> Any:
        """Add instruments to the run; the same callable is added only once.

        A generator is resumed at once for all phases that are done, and then waits for the next
        phase.

        Returns:
            For each instrument its ``__state__``, or the instrument itself if it has none: one
            object for one instrument, a list for several.
        """
        states = [self._require(instrument) for instrument in instruments]
        return states[0] if len(states) == 1 else states

    def stop(self, value: object = None) -> None:
        """End the program early: raise StopProgram, which passes through the program and is thrown
        into the instruments. The overseer then ends normally."""
        raise StopProgram(value)

    def abort(self, exc: BaseException) -> None:
        """End the program with an exception.

        Raises:
            TypeError: ``exc`` is not an exception.
        """
        if not isinstance(exc, BaseException):
            raise TypeError(f"abort takes an exception, not {type(exc).__name__}")
        raise OverseerAbort(exc)

    # Methods that a subclass may override

    def _run(self, *args: Any, **kwargs: Any) -> None:
        """Go through the phases."""

    def _on_instrument_error(self, exc: BaseException) -> None:
        """Called when an instrument fails; ``self.current`` is that instrument, and it will not be
        resumed."""

    def _on_error(self, exc: BaseException) -> None:
        """Called when the program fails."""

    def _finish(self) -> None:
        """Called at the end, however the run ended."""

    # Running the phases and resuming the generators

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the program. An overseer can run only once."""
        try:
            self._prepare()
            self._run(*args, **kwargs)
        except StopProgram as stop:
            self._on_stop(*stop.args)
        except BaseException as exc:  # any exception that ended the run; it is raised again
            self._on_error(exc)
            raise
        finally:
            self._finish()

    def run_phase(self, phase: Phase) -> Any:
        """Return a context manager for the body of a phase. After the body, all generators that
        wait for the phase are resumed.

        Returns:
            The context manager; its value is a function that sets the phase's value.

        An exception of the body is thrown into these generators, and then raised again.
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
        except BaseException as exc:  # any exception of the program; it is thrown into instruments
            failure = exc
        phase.status, phase.value, phase.exception = "running", value, failure
        waiting = self._plan[phase]
        try:
            # a resumed generator may require instruments, so the list may grow in the loop
            while waiting:
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
        """Resume a generator after a phase. If the next phase that it yields is done already,
        resume it again, until it has to wait."""
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
        """Resume a generator once; returns the phase that it waits for next, or None if it has
        ended or failed."""
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
            # if the generator lets the program's exception through, the instrument has not failed
            if exc is not phase.exception:
                self._on_instrument_error(exc)
            return None

    def _close(self) -> None:
        """Close all generators that wait for phases that will not come."""
        for generator, _ in self._each_waiting():
            try:
                generator.close()
            except (StopProgram, OverseerAbort):
                pass  # the program has ended already, so that there is nothing to stop
            except Exception as exc:  # the instrument's code may raise anything
                self._on_instrument_error(exc)
        for waiting in self._plan.values():
            waiting.clear()

    def _each_waiting(self) -> Iterator[tuple[Waiting, bool]]:
        """Yield each generator that waits, and whether exceptions are thrown into it; meanwhile
        ``current`` is the generator's instrument."""
        for waiting in self._plan.values():
            for _, order, generator, throw in sorted(waiting):
                outer, self.current = self.current, self._names[order]
                try:
                    yield generator, throw
                finally:
                    self.current = outer

    def _on_stop(self, value: object = None) -> None:
        """Throw StopProgram into all generators that wait, except those that asked for no
        exception."""
        self.status = "stopped"
        for generator, throw in self._each_waiting():
            if throw:
                try:
                    generator.throw(StopProgram(value))
                except (StopProgram, StopIteration):
                    pass
                except BaseException as exc:  # the instrument's code may raise anything
                    self._on_instrument_error(exc)


class GivenOverseer(BaseOverseer):
    """An overseer with a stream of given values.

    Attributes:
        given: The stream; giving is imported when the stream is first requested.
    """

    _given: Any = None
    _when_given: Sequence[Callable[[Any], None]] = ()
    _given_closed = False

    @property
    def given(self) -> Any:
        """The ``giving`` stream of all values that the program and the instruments give, in any
        thread."""
        if self._given is None:
            stream = self._make_given()
            if self._given is not None:
                return self._given  # the import of giving has already made the stream
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
        """Send values into the stream ``given``, from any thread. When the call returns, all
        subscribers have received them.

        Values from several threads arrive one after the other.
        """
        given = self.given
        from giving import give
        from giving.gvr import global_context

        with self._lock:
            if global_context.get():
                give(**data)
            else:  # in another thread, whose context variables are empty
                given._push(data)

    def queue(self, **data: Any) -> None:
        """Send values like ``give``, and the time as ``$queued`` (seconds since the epoch), as voir
        does."""
        self.give(**data, **{"$queued": time.time()})

    def _end_streams(self) -> None:
        """End the stream, so that reductions emit their results."""
        if self._given is not None and not self._given_closed:
            self._given.__exit__(None, None, None)
        self._given_closed = True

    def _finish(self) -> None:
        self._end_streams()
        super()._finish()
