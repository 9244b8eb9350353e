"""The modules of voir 0.2 and where voirkit has what they hold: ``import voir`` finds them without
voir (``voirkit.plugins``); and ``milabench.opt``, of the voirfiles in milabench's documentation of
2022.

Checked with the voirfiles of milabench (July 2026) and its ``benchmate``.
"""

from __future__ import annotations

from collections.abc import Mapping

import voirkit

VERSION = "0.2.24"  # whose names these are

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
    """voir's context variable, as far as it is read."""

    def get(self, default: voirkit.Overseeing | None = None) -> voirkit.Overseeing | None:
        """The overseer of the run, or the default when voirkit does not run this process."""
        return voirkit.current_overseer() or default


current_overseer = _CurrentOverseer()
