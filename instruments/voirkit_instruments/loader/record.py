"""``--loader``: every sample, transform, worker and wait of the program's loaders, written into the trace plane.

It only records. The functions of torch and of the program keep their identity: what is recorded is in their bodies
(``voirkit.probes.around``). Processes that load data see it too, forked or started anew.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit.processes import inherit
from voirkit_instruments.once import once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.loader.record_torch import LoaderTorch


class Loader:
    """The patches of one run, once torch's loader is there.

    Args:
        ov: The overseer.
        named: Operations that the user names.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its own.
    """

    def __init__(self, ov: Overseer, named: Sequence[str], recorder: Any = None) -> None:
        self._ov, self._named, self._recorder = ov, named, recorder
        self._torch: LoaderTorch | None = None
        self._over = False

    def begin(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        try:
            from voirkit_instruments.loader import record_children as loader_children
            from voirkit_instruments.loader_numbers import LoaderNumbers

            if self._recorder is None:
                from voirkit.trace import recorder

                self._recorder = recorder
            self._torch = loader_children.watched(self._recorder, self._ov.warn, self._ov.shared(LoaderNumbers), self._named)
            inherit.watch(loader_children.BEGIN, loader_children.offered)
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"loader: nothing is recorded of loaders ({type(exc).__name__}: {exc}).")

    def end(self) -> None:
        """The program has ended: put all back as it was, and tell what was not seen."""
        self._over = True
        if self._torch is None:
            if self._named:
                self._ov.warn("--loader-ops: nothing was recorded: the program has not imported torch.")
            return
        from voirkit_instruments.loader import record_children as loader_children

        inherit.unwatch(loader_children.BEGIN)
        self._measure_handing(self._torch.recording)
        self._torch.remove()
        for name, why in self._torch.named.missing.items():
            self._ov.warn(f"--loader-ops {name}: nothing was recorded of it: {why}.")
        table = self._torch.patches.patches.table
        self._ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())

    def _measure_handing(self, recording: Any) -> None:
        """Measure what it costs on this machine to hand batches over, and to record: the prediction needs it."""
        from voirkit_instruments.loader.record_handing import measured
        from voirkit_instruments.loader.record_spans import now

        if not recording.has_made or recording.folder() is None:
            return
        found = measured()
        at = now()
        for name, value in (found or {}).items():
            recording.span(recording.cost(name), at, at, recording.arguments({}), value)


@instrument_definition
@once("--loader")
def loader(ov: Overseer, *named: str) -> Iterator[Phase]:
    """Record what the program's loaders do.

    Args:
        named: Operations that the user names, as ``module:function`` or ``module:Class.method``, several with commas between.

    Raises:
        CommandLineError: A name is none.
    """
    from voirkit_instruments.loader.record_named import names

    recording = Loader(ov, names(named))
    when_imported("torch", recording.begin)
    try:
        yield ov.phases.run_script
    finally:
        recording.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    operations = options["loader_ops"]
    return loader(*([operations] if isinstance(operations, str) else operations))(ov)
