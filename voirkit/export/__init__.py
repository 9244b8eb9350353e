"""Formats that the trace of any run can be written in, and what a format is; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.plugins import installed_instruments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection


class Format(NamedTuple):
    """A format: an object of this class (``module:OBJECT``), or a module that has the same names.

    Attributes:
        NAME: What ``--format`` calls it.
        SUFFIX: Of the file that it writes; "" if it writes a folder of files.
        IS_TEXT: Whether a terminal can show it.
        write: Writes the selected part of an opened run to a target: the path of the file, or, without a ``SUFFIX``, of a folder that is
            there; ``-`` is the standard output. Returns the files that were written. Raises VoirkitError, with a next step, if something
            is missing (a package, say), and OSError if the disk is full, for instance.
    """

    NAME: str
    SUFFIX: str
    IS_TEXT: bool
    write: Callable[[Run, Selection, str], list[str]]


# name: (module or module:OBJECT, what it is for), of any run
_GENERAL = {
    "chrome": ("voirkit.export.trace_events:CHROME", "trace events in JSON, for Perfetto, chrome://tracing and speedscope"),
    "pfw": ("voirkit.export.trace_events:PFW", "DFTracer's trace, for DFAnalyzer: a folder with a .pfw.gz for each process"),
    "perfetto": ("voirkit.export.perfetto", "Perfetto's own, for https://ui.perfetto.dev; needs perfetto"),
    "otlp": ("voirkit.export.otlp", "OpenTelemetry's spans: a file of JSON lines, or sent to a collector with -o http://HOST:4318"),
    "parquet": ("voirkit.export.tables:PARQUET", "a table, for DuckDB, pandas and polars"),
    "arrow": ("voirkit.export.tables:ARROW", "the same as an Arrow file; needs pyarrow"),
    "csv": ("voirkit.export.tables:CSV", "the same as text"),
}


def formats() -> dict[str, tuple[str, str]]:
    """(module, what it is for) of each format by name: those of any run, and those of instruments."""
    return {**_GENERAL, **{name: format for instrument in installed_instruments() for name, format in instrument.exports.items()}}


def load(name: str) -> Format:
    """The format of a name.

    Raises:
        CommandLineError: There is none of that name.
    """
    names = formats()
    if name not in names:
        hint = did_you_mean(name, names)
        raise CommandLineError(f"{name!r} is no format.", where="--format", next=f"{hint}\nFormats: {', '.join(names)}.".strip())
    module, _, attribute = names[name][0].partition(":")
    found: Any = import_module(module)
    format: Format = getattr(found, attribute) if attribute else found
    return format
