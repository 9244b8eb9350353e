"""``--log PATTERN``: writes given values to the log stream, and so into the run directory and to
``$DATA_FD``.

A value that is a one-element tensor is logged as the number it holds. If it lies on a device,
reading it waits for the device: log a loss of every step from a GPU only where that is acceptable.
"""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, instrument_definition
from voirkit_instruments.values import brief, may_be_read, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

INSTRUMENT = Instrument(
    "log",
    group="see a run",
    options=(
        Option(
            "--log",
            "log the given values of this key or pattern ('*_rate'); '+task' adds another key"
            " (repeatable)",
            metavar="PATTERN",
            repeatable=True,
        ),
    ),
    record="voirkit_instruments.log:record",
)
instrument_log = INSTRUMENT


class _Selection:
    """Selects the keys of an event that are logged. The decision for each key is cached, since the
    same few keys come at every step."""

    def __init__(self, patterns: Sequence[str], context: Sequence[str]) -> None:
        self._patterns = [p for p in patterns if not p.startswith("+")]
        self._context = [p[1:] for p in patterns if p.startswith("+")] + list(context)
        # key -> (is logged, is logged only together with other keys)
        self._known: dict[str, tuple[bool, bool]] = {}

    def unmatched(self) -> list[str]:
        """Return the patterns that no key has matched."""
        return [
            pattern
            for pattern in self._patterns
            if not any(_matches(key, [pattern]) for key in self._known)
        ]

    def __call__(self, event: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        is_wanted = False
        for key, value in event.items():
            if key == "$recorder":
                continue  # meant for instruments only
            column = self._known.get(key)
            if column is None:
                column = self._known[key] = (
                    _matches(key, self._patterns),
                    _matches(key, self._context),
                )
            if column[0] or column[1]:
                values[key] = value
                is_wanted = is_wanted or column[0]
        return values if is_wanted else {}


def _matches(key: str, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(key == pattern or fnmatchcase(key, pattern) for pattern in patterns)


@instrument_definition
def log(ov: Overseer, *patterns: str, context: str | Sequence[str] = ()) -> Iterator[Phase]:
    """Log the given values whose keys match.

    Args:
        patterns: Keys, or patterns like those for file names (``"*_rate"``). ``"+task"`` is the
            same as ``context="task"``.
        context: Keys or patterns that are logged only if another key of the same event is logged.

    A rate that an instrument has logged itself is not logged twice.
    """
    yield ov.phases.init
    selection = _Selection(patterns, [context] if isinstance(context, str) else list(context))
    logged: dict[str, Any] = {}

    def remember(record: Any) -> None:
        nonlocal logged
        logged = record if isinstance(record, dict) and "units" in record else {}

    def forward(event: dict[str, Any]) -> None:
        values = selection(event)
        pairs = values.items()
        if all(key in logged and logged[key] is value for key, value in pairs):
            return  # no key matches, or all values have just been logged
        for key, value in values.items():
            plain = number(value)
            if plain is not None:
                values[key] = plain
            elif not may_be_read(value):  # the value's own repr would read data that is not there
                values[key] = brief(value)
        ov.log(values)

    ov.log.subscribe(remember)
    ov.given.subscribe(forward)
    yield ov.phases.finalize
    for pattern in selection.unmatched():
        ov.warn(f"log: nothing was given as {pattern!r}.")


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    patterns = options["log"]
    return log(*([patterns] if isinstance(patterns, str) else patterns))(ov)
