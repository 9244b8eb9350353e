"""Always on: processor time and memory of the run."""

from __future__ import annotations

from voirkit.instrument import Instrument

INSTRUMENT = Instrument("resources", record="voirkit_instruments.resources.record:record", parts={"processors": dict})
