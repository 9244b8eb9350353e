"""Maps the modules and names of voir 0.2 to their equivalents in voirkit, so that ``import voir``
works without voir (``voirkit.plugins``).

``milabench.opt`` is included: voirfiles in milabench's documentation of 2022 import it. Checked
with the voirfiles of milabench (July 2026) and its ``benchmate``.
"""

from __future__ import annotations

from collections.abc import Mapping

import voirkit

VERSION = "0.2.24"  # the version of voir that has these names

_PACKAGE = "voirkit_instruments"
_INSTRUMENTS = {
    "dash": f"{_PACKAGE}.dash.record",
    "early_stop": f"{_PACKAGE}.early_stop.record",
    "gpu_monitor": f"{_PACKAGE}.monitor.record",
    "log": f"{_PACKAGE}.log",
    "monitor_all": f"{_PACKAGE}.monitor.record",
    "rate": f"{_PACKAGE}.rate",
}
MODULES: Mapping[str, str | Mapping[str, str]] = {
    "milabench": {},
    "milabench.opt": {"instrument_argparse": f"{_PACKAGE}.options"},
    "voir": {
        "__version__": f"{_PACKAGE}.voir_names:VERSION",
        "configurable": "voirkit",
        "give": "voirkit",
        "instrument_definition": "voirkit",
        "iterate": "voirkit",
        "log": "voirkit",
    },
    "voir.argparse_ext": {"ExtendedArgumentParser": "voirkit.options"},
    "voir.helpers": {
        "current_overseer": f"{_PACKAGE}.voir_names",
        "give": "voirkit",
        "iterate": "voirkit",
        "log": "voirkit",
    },
    "voir.instruments": _INSTRUMENTS,
    "voir.instruments.cpu": f"{_PACKAGE}.monitor.record_processes",
    "voir.instruments.dash": f"{_PACKAGE}.dash.record",
    "voir.instruments.gpu": f"{_PACKAGE}.monitor.record_gpus",
    "voir.instruments.gpu.common": f"{_PACKAGE}.monitor.record_gpus",
    "voir.instruments.io": f"{_PACKAGE}.monitor.record_processes",
    "voir.instruments.log": f"{_PACKAGE}.log",
    "voir.instruments.manage": f"{_PACKAGE}.early_stop.record",
    "voir.instruments.metric": f"{_PACKAGE}.rate",
    "voir.instruments.monitor": {
        "gpu_monitor": f"{_PACKAGE}.monitor.record",
        "monitor": f"{_PACKAGE}.monitor.record_processes",
        "monitor_all": f"{_PACKAGE}.monitor.record",
    },
    "voir.instruments.network": f"{_PACKAGE}.monitor.record_processes",
    "voir.instruments.utils": {"monitor": f"{_PACKAGE}.monitor.record_processes:repeat"},
    "voir.overseer": "voirkit.runner.overseer",
    "voir.phase": "voirkit.phases",
    "voir.proc": "voirkit.multiplexer",
    "voir.smuggle": "voirkit.escape",
    "voir.tools": "voirkit.instrument",
    "voir.version": {"version": f"{_PACKAGE}.voir_names:VERSION"},
}


class _CurrentOverseer:
    """Read-only stand-in for voir's context variable of the current overseer."""

    def get(self, default: voirkit.Overseeing | None = None) -> voirkit.Overseeing | None:
        """Return the run's overseer, or the default if voirkit does not run this process."""
        return voirkit.current_overseer() or default


current_overseer = _CurrentOverseer()
