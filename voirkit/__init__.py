"""voirkit: what a training script does and why it is slow, with the script unchanged.

The public names, by hand. Each is imported when it is first used, so that ``import voirkit`` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from giving import give, given

    from voirkit.ai import ai
    from voirkit.errors import SelectorError, VoirkitError
    from voirkit.helpers import iterate, log
    from voirkit.instrument import Instrument, Option, configurable, gated, instrument_definition, parametrized
    from voirkit.phases import StopProgram
    from voirkit.probes import Probe, global_probe, probing, refstring
    from voirkit.probes.selector.grammar import tag
    from voirkit.runner.overseer import Overseer
    from voirkit.runs.opened import open_run

__version__ = "0.1.0"

_HOMES = {
    "Instrument": "voirkit.instrument",
    "Option": "voirkit.instrument",
    "Overseer": "voirkit.runner.overseer",
    "Probe": "voirkit.probes",
    "SelectorError": "voirkit.errors",
    "StopProgram": "voirkit.phases",
    "VoirkitError": "voirkit.errors",
    "ai": "voirkit.ai",
    "configurable": "voirkit.instrument",
    "gated": "voirkit.instrument",
    "give": "giving",
    "given": "giving",
    "global_probe": "voirkit.probes",
    "instrument_definition": "voirkit.instrument",
    "iterate": "voirkit.helpers",
    "log": "voirkit.helpers",
    "open_run": "voirkit.runs.opened",
    "parametrized": "voirkit.instrument",
    "probing": "voirkit.probes",
    "refstring": "voirkit.probes",
    "tag": "voirkit.probes.selector.grammar",
}

__all__ = [
    "Instrument",
    "Option",
    "Overseer",
    "Probe",
    "SelectorError",
    "StopProgram",
    "VoirkitError",
    "__version__",
    "ai",
    "configurable",
    "gated",
    "give",
    "given",
    "global_probe",
    "instrument_definition",
    "iterate",
    "log",
    "open_run",
    "parametrized",
    "probing",
    "refstring",
    "tag",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        import sys

        raise AttributeError(f"module 'voirkit' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
