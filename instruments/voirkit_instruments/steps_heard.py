"""What else is done where the steps instrument stands around functions of torch: only one can, and tells others.

Who wants to be told says so before torch is imported. What is told must not raise; its time is in no phase.
"""

from __future__ import annotations

import weakref

from voirkit_instruments.steps_plain import STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Told = Callable[..., None]

STEPPED, ZEROED, CALLED, WALKED, ASKED = "step", "zero_grad", "forward", "backward", "next"


class Heard:
    """Who is told of what in one run.

    Events: ``step`` (an optimizer's outermost step; the optimizer), ``zero_grad`` (of an optimizer; the optimizer), ``forward`` (the
    outermost module call, and what is called in an optimizer's step; the module), ``backward`` (nothing is passed) and ``next`` (a loader
    is asked for a batch; its iterator, and afterwards the batch, or ``ABSENT``).
    """

    def __init__(self) -> None:
        self._before: dict[str, list[Told]] = {}
        self._after: dict[str, list[Told]] = {}

    def __bool__(self) -> bool:
        return bool(self._before or self._after)

    def tell(self, event: str, before: Told | None = None, after: Told | None = None) -> None:
        """Tell somebody, before and after the function's body, with what the event passes; after it even if it has raised."""
        for table, told in ((self._before, before), (self._after, after)):
            if told is not None:
                table.setdefault(event, []).append(told)

    def around(self, event: str, here: Any, enter: Any, leave: Any) -> tuple[Any, Any]:
        """What the steps instrument does before and after a function, with what is told of it."""
        before, after = tuple(self._before.get(event, ())), tuple(self._after.get(event, ()))
        if not before and not after:
            return enter, leave
        whole = event == STEPPED

        def entering(*passed: Any) -> Any:
            if not (whole and here.inside == STEP):  # the step of the class above is no other
                for told in before:
                    told(*_thing(passed))
            return enter(*passed)

        def leaving(began: int, was: int, *passed: Any) -> None:
            leave(began, was, *passed)
            if began:
                for told in after:
                    told(*_thing(passed))

        return entering, leaving


def _thing(passed: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first argument, where a decorator's function has all of them in a tuple."""
    return passed[0][:1] if passed and type(passed[0]) is tuple else passed


class NoRecorder:
    """Stands for the recorder where phases are not to be recorded (``--no-steps``), and somebody is told of them all the same."""

    def name(self, *_: object, **__: object) -> int:
        return 1

    def arguments(self, _: object) -> int:
        return 0

    def span(self, *_: object) -> None:
        pass

    timed = span


_of_runs: weakref.WeakKeyDictionary[Any, Heard] = weakref.WeakKeyDictionary()


def heard_of(run: object) -> Heard:
    """Who is told in a run.

    Args:
        run: Its overseer.
    """
    return _of_runs.setdefault(run, Heard())
