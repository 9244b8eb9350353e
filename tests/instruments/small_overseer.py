"""An overseer for tests of one instrument: real phases and real streams, a function as the program, and no command line."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from voirkit.phases import GivenOverseer
from voirkit.runner.overseer import LogStream


class SmallOverseer(GivenOverseer):
    """Runs a program, a function of the overseer, under instruments.

    Attributes:
        records, events: All that was logged and given.
        said, warned, failed: The sentences for the user.
    """

    def __init__(self, *instruments: Any, options: dict[str, Any] | None = None) -> None:
        super().__init__(
            ["init", "parse_args", "load_script", "run_script", "finalize"], args=(self,)
        )
        self.options = Namespace(**(options or {}))
        self.log = LogStream()
        self.summary: dict[str, Any] = {"rates": {}}
        self.probes: list[Any] = []
        self.script: str | None = None
        self.run_dir: str | None = None
        self.records: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.warned: list[str] = []
        self.failed: list[str] = []
        self.errors: list[BaseException] = []
        self.say, self.warn, self.fail = self.said.append, self.warned.append, self.failed.append
        self.log.to(self.records.append)
        self.require(*instruments)

    def _make_given(self) -> Any:
        from voirkit import streams

        streams.report = self.warn
        given = streams.Given()
        given.subscribe(lambda event: self.events.append(dict(event)))
        return given

    def give(self, **data: Any) -> None:
        """Give values."""
        self.given._receive(data)

    def offer(self, data: dict[str, Any], yielding: bool = False) -> None:
        """Give what voirkit has seen or measured itself."""
        self.given.offer(data, yielding)

    def is_given(self, *keys: str) -> bool:
        """Whether anything with one of these keys was given by the program."""
        return bool(self.given.has_any(keys))

    def has_listener(self, key: str) -> bool:
        """Whether anybody would hear of what is offered with this key."""
        return bool(self.given.has_listener(key))

    def values(self, key: str) -> list[Any]:
        """What was given under a key."""
        return [event[key] for event in self.events if key in event]

    def _on_instrument_error(self, exc: BaseException) -> None:
        self.errors.append(exc)

    def _run(self, program: Callable[[SmallOverseer], Any]) -> None:
        for name in ("init", "parse_args", "load_script"):
            with self.run_phase(getattr(self.phases, name)):
                pass
        with self.run_phase(self.phases.run_script) as set_value:
            set_value(program(self))

    def _finish(self) -> None:
        with self.run_phase(self.phases.finalize):
            self._end_streams()


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def on(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)
