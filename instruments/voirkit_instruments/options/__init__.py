"""``--options``: gives the arguments that the script parses, as ``options``, and adds them to the
log and the summary.

The four parsing methods of ``argparse.ArgumentParser`` are wrapped before the script is loaded, and
restored after the first result. The script gets the very object that argparse made; exceptions of
argparse (SystemExit too) pass through.
"""

from __future__ import annotations

import argparse
import math
import os
from _thread import get_ident  # importing ``threading`` is left to the program

from voirkit.instrument import Instrument, Option, once
from voirkit.intercept import Patches, without_this_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

INSTRUMENT = Instrument(
    "options",
    group="see a run",
    options=(
        Option("--options", "give the arguments that the script parses with argparse, as options"),
    ),
    record="voirkit_instruments.options:record",
    schema=__name__,
)


WHOLE = ("parse_args", "parse_intermixed_args")
PARTIAL = ("parse_known_args", "parse_known_intermixed_args")


class ParsedArguments:
    """Watcher for the first arguments that the program parses.

    Args:
        callback: Called once, with the Namespace, in the thread that parsed.
        failed: Called with an exception that ``callback`` raised.

    The result of ``parse_args`` is used at once. ``parse_known_args`` alone is often only the first
    of two parsers (one for a configuration file, say). Its result is kept until :meth:`settle` is
    called, and dropped if ``parse_args`` follows.
    """

    def __init__(
        self, callback: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        self._found = callback
        self._failed = failed
        # threads inside a parsing method: only the result of a thread's outermost call counts
        self._inside: set[int] = set()
        self._kept: list[Any] = []
        self._done = False
        self._patches = Patches({"python": "3.10 to 3.15"})
        for name in WHOLE + PARTIAL:
            self._patches.wrap(argparse.ArgumentParser, name, self._parse, ("args", "namespace"))

    def _parse(
        self,
        wrapped: Callable[..., Any],
        parser: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        thread = get_ident()
        outermost = thread not in self._inside
        self._inside.add(thread)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as exc:
            without_this_frame(exc)
            raise
        finally:
            if outermost:
                self._inside.discard(thread)
        if outermost and not self._done:
            if wrapped.__name__ in WHOLE:
                self._finish(result)
            elif not self._kept:
                self._kept.append(result[0])
        return result

    def settle(self) -> None:
        """Use the kept result: no other parser is expected to follow."""
        if self._kept and not self._done:
            self._finish(self._kept[0])

    def remove(self) -> None:
        self._patches.remove()

    def _finish(self, namespace: Any) -> None:
        self._done = True
        self.remove()
        try:
            self._found(namespace)
        except Exception as exc:  # an odd Namespace must not fail the program
            self._failed(exc)


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON can hold it, or ``NotImplemented``. A value that JSON cannot hold is
    left out of its dictionary."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if depth < 4 and type(value) in (list, tuple):
        elements = [plain(element, depth + 1) for element in value]
        return elements if NotImplemented not in elements else NotImplemented
    if depth < 4 and type(value) is dict:
        pairs = {
            str(key): plain(item, depth + 1)
            for key, item in value.items()
            if type(key) in (str, int)
        }
        return {key: item for key, item in pairs.items() if item is not NotImplemented}
    return NotImplemented


def instrument_argparse(ov: Overseer) -> Any:
    """Give the arguments that the script parses with argparse, once, as ``options``; also write
    them to the log and the summary.

    This does in a voirfile what ``--options`` does on the command line, but without a warning if
    the script parses no arguments.
    """
    return options(ov, is_asked_for=False)


@once("--options")
def options(ov: Overseer, is_asked_for: bool = True) -> Iterator[Phase]:
    """Give the script's arguments once, as ``options``. With ``is_asked_for``, warn if the script
    has parsed none."""

    def callback(namespace: Any) -> None:
        subscription.dispose()
        arguments = plain(dict(getattr(namespace, "__dict__", {})))
        ov.summary["options"] = arguments
        ov.log({"options": arguments})
        ov.offer({"options": namespace})

    arguments = ParsedArguments(
        callback, lambda exc: ov.warn(f"--options: the script's arguments cannot be shown: {exc}")
    )
    subscription = ov.given.subscribe(lambda event: arguments.settle())
    try:
        yield ov.phases.run_script
    finally:
        arguments.remove()
        arguments.settle()
    if is_asked_for and "options" not in ov.summary:
        ov.warn("--options: the script has parsed no arguments with argparse.")


def record(ov: Overseer, values: Mapping[str, Any]) -> Any:
    return options(ov)
