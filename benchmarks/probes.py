"""What probes cost in CPU time, next to appending ``(value, perf_counter_ns())`` to a list by hand, and next to ptera 1.4.1.

Each engine runs in a process of its own, all its variants interleaved in rounds; the figures are medians over the
rounds of the ratio to the inline append of the same round.  It is CPU time, since of wall time a part would be what else
the machine does.  Run: ``python benchmarks/probes.py [--rounds N] [--events N]``.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter_ns, process_time
from typing import Any

Timed = Callable[[int], float]
LIMITS = {
    "f > x, one subscriber": 2.0,
    "f > x, nobody subscribed": 0.3,
    "ep(i as batch) > #endloop_i as step": 2.5,
    "wrapper pair with wmap": 12.0,
    ".give() into given, one where listener": 10.0,
    "call, tapped variable not set (to a plain call)": 1.5,
    "absolute probe installed beside torch (ms)": 5.0,
}


# What is watched.  Each variant has a function of its own, since code that is replaced often is compiled anew by the
# interpreter.


def inline(n: int, out: list[Any]) -> None:
    for i in range(n):
        x = i
        out.append((x, perf_counter_ns()))


def one(n: int) -> None:
    for i in range(n):
        x = i  # noqa: F841 -- it is watched


def unheard(n: int) -> None:
    for i in range(n):
        x = i  # noqa: F841 -- it is watched


def giving_one(n: int) -> None:
    for i in range(n):
        x = i  # noqa: F841 -- it is watched


def ep(n: int) -> None:
    for i in range(n):  # noqa: B007 -- it is watched
        pass


def pair(n: int) -> None:
    for i in range(n):  # noqa: B007 -- it is watched
        pass


def plain(flag: int) -> int:
    if flag:
        x = flag  # noqa: F841 -- it is watched
    return flag


def tapped(flag: int) -> int:
    if flag:
        x = flag  # noqa: F841 -- it is watched
    return flag


def calls(function: Callable[[int], int]) -> Timed:
    def run(n: int) -> float:
        start = process_time()
        for _ in range(n):
            function(0)
        return process_time() - start

    return run


def loop(function: Callable[[int], None]) -> Timed:
    def run(n: int) -> float:
        start = process_time()
        function(n)
        return process_time() - start

    return run


def measure(engine: str, rounds: int, events: int) -> dict[str, float]:
    """The figures of one engine."""
    module: Any = importlib.import_module(engine)
    out: list[Any] = []
    env = globals()
    probes: list[Any] = []

    def watch(*selectors: str) -> Any:
        probe = module.probing(*selectors, env=env)
        probes.append(probe)
        return probe

    clock = perf_counter_ns
    watch("one > x").subscribe(out.append)
    watch("unheard > x")
    watch("ep(i as batch) > #endloop_i as step").subscribe(out.append)

    def taken() -> Any:
        start = clock()
        yield
        return clock() - start

    watch("pair(i as batch, !#loop_i as step, !!#endloop_i as step_end)").wmap(taken).subscribe(
        out.append
    )
    watch("tapped > x").subscribe(out.append)
    if engine == "voirkit":
        from voirkit import streams

        given: Any = streams.Given()
    else:
        import giving

        given = giving.given()
    given.where("x").subscribe(out.append)
    with given:
        watch("giving_one > x").give()
        for probe in probes:
            probe.__enter__()
        variants: dict[str, Timed] = {
            "inline": lambda n: loop(lambda m: inline(m, out))(n),
            "f > x, one subscriber": loop(one),
            "f > x, nobody subscribed": loop(unheard),
            "ep(i as batch) > #endloop_i as step": loop(ep),
            "wrapper pair with wmap": loop(pair),
            ".give() into given, one where listener": loop(giving_one),
            "plain call": calls(plain),
            "call, tapped variable not set (to a plain call)": calls(tapped),
        }
        found: dict[str, list[float]] = {name: [] for name in variants}
        gc.disable()
        for number in range(rounds + 1):
            for name, run in variants.items():
                taken = run(events)
                out.clear()
                if number:  # the first warms up
                    found[name].append(taken)
        gc.enable()
        for probe in reversed(probes):
            probe.__exit__(None, None, None)
    result = {}
    for name, values in found.items():
        base = found["plain call" if name.startswith("call") else "inline"]
        result[name] = statistics.median(v / b for v, b in zip(values, base, strict=True))
    result["inline"] = statistics.median(found["inline"]) / events * 1e9
    result["absolute probe installed beside torch (ms)"] = install(module)
    return result


def install(module: Any) -> float:
    """Milliseconds to put on an absolute probe, after the first, with torch imported; -1 without torch."""
    try:
        import torch.nn.modules.module
    except ImportError:
        return -1.0
    del torch
    taken = []
    for name in ("plain", "one", "ep", "pair", "tapped", "unheard"):
        start = process_time()
        probe = module.probing(f"//{name} > $x")
        probe.subscribe(lambda event: None)
        probe.__enter__()
        taken.append((process_time() - start) * 1000)
        probe.__exit__(None, None, None)
    return statistics.median(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(measure(options.engine, options.rounds, options.events)))
        return
    columns = {}
    for engine, share in (("ptera", 10), ("voirkit", 1)):
        command = [sys.executable, __file__, "--engine", engine, "--rounds", str(options.rounds)]
        done = subprocess.run(
            [*command, "--events", str(options.events // share)], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        columns[engine] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"Python {sys.version.split()[0]}; an inline append takes {columns['voirkit']['inline']:.0f} ns.\n"
    )
    print("| what | ptera 1.4.1 | voirkit | limit |\n|---|---|---|---|")
    for name, limit in LIMITS.items():
        print(
            f"| {name} | {columns['ptera'][name]:.3g} | {columns['voirkit'][name]:.3g} | {limit:g} |"
        )


if __name__ == "__main__":
    main()
