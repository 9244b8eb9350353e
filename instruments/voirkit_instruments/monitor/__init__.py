"""``--monitor`` and ``--prometheus``: samples of CPU, memory, storage, network and GPUs."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, duration, lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def address(text: str) -> tuple[str, int]:
    """Return (host, port) for ``9090`` or ``0.0.0.0:9090``; without a host, only this machine can
    connect."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if not is_number or not 0 < int(port) < 65536 or (colon and not host):
        raise ValueError(
            f"{text!r} is no port; give 9090, or 0.0.0.0:9090 for all that reach this machine."
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def import_extra(module: str, option: str) -> Any:
    """Import a module of the extra ``monitor``. Raises CommandLineError: it is not installed."""
    from importlib import import_module

    from voirkit.errors import CommandLineError

    try:
        return import_module(module)
    except ImportError as exc:
        fault = f"it needs {exc.name or module}, which is not installed."
        raise CommandLineError(
            fault, where=option, next="Install it with: pip install 'voirkit[monitor]'"
        ) from None


# values that count bytes from an arbitrary start; all other values are momentary
COUNTS = ("read", "write", "disk_read", "disk_write", "net_sent", "net_received")

INSTRUMENT = Instrument(
    "monitor",
    group="see a run",
    options=(
        Option(
            "--monitor",
            "sample processor, memory, storage, network and GPUs every SECONDS (default: 1)",
            type=duration,
            const=1.0,
            metavar="SECONDS",
        ),
        Option(
            "--prometheus",
            "serve rates, steps, shares and what --monitor samples to Prometheus, on this machine"
            " only unless HOST is given",
            type=address,
            metavar="[HOST:]PORT",
        ),
    ),
    record="voirkit_instruments.monitor.record:record",
    parts={"monitor": dict},
    schema=__name__,
    summarise="voirkit_instruments.monitor.analyse:summarise",
    summarised_from=("counter",),
    findings="voirkit_instruments.monitor.rules:findings",
    sections="voirkit_instruments.monitor.analyse:sections",
)

__getattr__ = lazy_names(__name__, monitor_all="record", gpu_monitor="record")
