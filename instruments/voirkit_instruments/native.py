"""``--native[=HERTZ]``: which C functions and libraries each loader operation and each phase of training spends its time in.

A profiler beside the program samples it from outside; what it took is joined with the trace when the run has ended (docs/native.md).
Nothing of this is loaded without the flag.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase

# Samples a second of processor time: one in 2 ms. No multiple or part of the rates that things repeat with (100, 250, 1000 Hz ticks), so
# that it does not fall into step with them. docs/native.md says what is seen at it.
DEFAULT_HZ = 499
_MOST_HZ = 20_000


def instrument_native(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--native``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--native",
        nargs="?",
        type=hertz,
        const=DEFAULT_HZ,
        dest="--native",
        metavar="HERTZ",
        help=f"sample the C functions under each loader operation (--loader) and phase with perf, {DEFAULT_HZ} times a second or HERTZ",
    )
    yield ov.phases.parse_args
    rate = getattr(ov.options, "--native")
    if rate is None:
        return
    yield ov.phases.load_script
    if ov.run_dir is None:
        return  # it has been said why there is none
    from voirkit_instruments.native_sampler import Sampler

    sampler = Sampler(ov.run_dir, rate, ov.options.trace_limit, ov.warn)
    sampler.start()
    try:
        yield ov.phases.run_script
    finally:
        sampler.stop()
    yield ov.phases.finalize
    sampler.wait()


def hertz(text: str) -> int:
    """A rate.

    Raises:
        ValueError: It is none, or out of bounds.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_HZ):
        raise ValueError(f"{text!r} is no rate; give a whole number of samples a second, at most {_MOST_HZ}.")
    return int(text)
