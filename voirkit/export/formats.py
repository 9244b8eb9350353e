"""The formats of ``voirkit export``: each has ``NAME, SUFFIX, IS_TEXT`` and ``write``, and is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.plugins import installed_instruments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

    class Format(Protocol):
        """What a format has: a module, or an object of one (``module:OBJECT``)."""

        NAME: str
        SUFFIX: str
        """Of the file that it writes; "" if it writes a folder of files."""
        IS_TEXT: bool
        """Whether a terminal can show it."""

        @staticmethod
        def write(run: Run, selection: Selection, target: str) -> list[str]:
            """Write the selected part of a run.

            Args:
                run: An opened run.
                selection: What of it.
                target: Path of the file, or, without a ``SUFFIX``, of a folder that is there; ``-`` for the standard output.

            Returns:
                The files that were written.

            Raises:
                VoirkitError: What is missing (a package, say), with a next step.
                OSError: The disk is full, for instance.
            """


# name: (module or module:OBJECT, what it is for), of any run
_GENERAL = {
    "chrome": ("voirkit.export.chrome", "trace events in JSON, for Perfetto, chrome://tracing and speedscope"),
    "pfw": ("voirkit.export.pfw", "DFTracer's trace, for DFAnalyzer: a folder with a .pfw.gz for each process"),
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
