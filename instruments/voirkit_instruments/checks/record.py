"""Behind ``--checks``: records facts of which silent training bugs are reported afterwards (``checks.detectors``). It judges nothing.

Until the program imports torch nothing is done but to wait for that.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit_instruments.checks.record_facts import Facts
from voirkit_instruments.once import once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


class Checks:
    """What records facts in one run, once torch is there.

    Args:
        ov: The overseer.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its own.
    """

    def __init__(self, ov: Overseer, recorder: Any = None) -> None:
        if recorder is None:
            from voirkit.trace import recorder
        self._ov = ov
        self._facts = Facts(recorder, ov.warn)
        self._parts: list[Any] = []
        self._over = False

    def watched(self) -> None:
        """Recording has begun: a run without any other fact was watched all the same."""
        self._facts.mark("on")

    def begin(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        try:
            from voirkit_instruments.checks.record_data import DataFacts
            from voirkit_instruments.checks.record_torch import TorchFacts

            for part in (TorchFacts, DataFacts):
                self._parts.append(part(self._facts, torch, self._ov))
                self._parts[-1].put()
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"checks: not all can be seen of torch ({type(exc).__name__}: {exc}).")

    def end(self) -> None:
        """The program has ended: put torch back as it was."""
        self._over = True
        self._facts.cost.report()
        for part in reversed(self._parts):
            try:
                part.remove()
            except Exception as exc:
                self._ov.warn(f"checks: {type(exc).__name__}: {exc}.")


@once("--checks")
def checks(ov: Overseer) -> Iterator[Phase]:
    """Record facts while the script runs."""
    yield ov.phases.parse_args
    watching = Checks(ov)
    when_imported("torch", watching.begin)
    try:
        yield ov.phases.load_script
        watching.watched()
        yield ov.phases.run_script
    finally:
        watching.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """As the option asks."""
    return checks(ov)
