"""What annotations cost, next to appending ``(name, t0, t1)`` to a list with two clock reads, and next to dftracer 2.2.0.

    python benchmarks/annotations.py [--rounds 15] [--calls 20000] [--dftracer PYTHON]

Each engine (the recorder in C, the one in Python, dftracer in the environment of PYTHON) runs in a process of its own, all its variants
interleaved; a figure is the median over the rounds of the ratio to the tuple of the same round.  A decorator's is what a call takes more
than one without it, a loop's what an item takes more than in a loop without annotations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter_ns as now
from typing import Any

LIMITS = {
    "with ai.compute.forward:": 3.0,
    "decorator": 3.0,
    ".iter, two events": 5.0,
    "node.update(epoch=, step=)": 3.0,
    "ai.update(step=), whole tree": 3.0,
    "disabled node": 1.0,
}
IMPORT_LIMIT_MS = 30.0
_IMPORT = "import time; a = time.process_time(); import {}; print(1000 * (time.process_time() - a))"


def variants(ai: Any) -> dict[str, Callable[[int], None]]:
    """What is measured, by name; each takes the number of calls."""

    def plain() -> None:
        pass

    @ai.compute.backward
    def decorated() -> None:
        pass

    ai.other.disable()
    within, off, updated, started = ai.compute.forward, ai.other.log, ai.compute.step, ai.comm.send

    def tuples(n: int) -> None:
        append = [].append
        for _ in range(n):
            append(("name", now(), now()))

    def block(n: int) -> None:
        for _ in range(n):
            with within:
                pass

    def call(n: int) -> None:
        for _ in range(n):
            decorated()

    def plain_call(n: int) -> None:
        for _ in range(n):
            plain()

    def loop(n: int) -> None:
        for _ in ai.dataloader.fetch.iter(range(n)):
            pass

    def plain_loop(n: int) -> None:
        for _ in range(n):
            pass

    def update(n: int) -> None:
        for i in range(n):
            updated.update(epoch=1, step=i)

    def update_all(n: int) -> None:
        for i in range(n):
            ai.update(step=i)

    def step(n: int) -> None:
        for i in range(n):
            ai.update(step=i)
            for _ in range(9):
                with within:
                    pass

    def disabled(n: int) -> None:
        for _ in range(n):
            with off:
                pass

    def start_stop(n: int) -> None:
        for _ in range(n):
            started.start()
            started.stop()

    return {
        "tuple": tuples, "with ai.compute.forward:": block, "decorator": call, "(call)": plain_call, ".iter, two events": loop,
        "(loop)": plain_loop, "node.update(epoch=, step=)": update, "ai.update(step=), whole tree": update_all, "disabled node": disabled,
        "start() and stop()": start_stop, "a step: ai.update(step=) and 9 blocks": step,
    }  # fmt: skip


def measure(ai: Any, rounds: int, calls: int) -> dict[str, float]:
    """Ratios to the tuple, and the tuple in nanoseconds."""
    functions = variants(ai)
    rows: list[dict[str, float]] = []
    for _ in range(rounds + 2):
        row = {}
        for name, function in functions.items():
            n = calls // 10 if name.startswith("a step") else calls
            began = now()
            function(n)
            row[name] = (now() - began) / n
        row["decorator"] -= row.pop("(call)")
        row[".iter, two events"] -= row.pop("(loop)")
        rows.append(row)
    rows = rows[2:]
    return {
        name: statistics.median(
            row[name] / (1 if name == "tuple" else row["tuple"]) for row in rows
        )
        for name in rows[0]
    }


def child(engine: str, rounds: int, calls: int, folder: str) -> dict[str, float]:
    """In a process of its own: measure one engine, and what importing it takes."""
    if engine == "dftracer":
        from dftracer.python import ai, dftracer  # type: ignore[import-not-found]

        log = dftracer.initialize_log(os.path.join(folder, "trace.pfw"), folder, -1)
        found = measure(ai, rounds, calls)
        log.finalize()
    else:
        from voirkit.ai import ai
        from voirkit.trace import recorder

        recorder.begin(folder, limit=1 << 40)
        found = measure(ai, rounds, calls)
        recorder.end()
        if engine != recorder.engine.NAME:
            raise SystemExit(f"the recorder in {engine} is not there")
    return found


def import_ms(python: str, module: str, env: dict[str, str]) -> float:
    """CPU time of an import in milliseconds, from compiled bytecode."""
    times = [
        float(
            subprocess.run(
                [python, "-c", _IMPORT.format(module)], env=env, capture_output=True, check=True
            ).stdout
        )
        for _ in range(6)
    ]
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument(
        "--dftracer",
        metavar="PYTHON",
        help="an interpreter in whose environment dftracer 2.2.0 is installed",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.child:
            print(json.dumps(child(options.child, options.rounds, options.calls, folder)))
            return
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONDONTWRITEBYTECODE", "VOIRKIT_RUN_DIR")
        }
        env.update(
            PYTHONPYCACHEPREFIX=os.path.join(folder, "bytecode"),
            DFTRACER_ENABLE="1",
            DFTRACER_INC_METADATA="1",
        )
        engines = {
            "c": (sys.executable, {}),
            "python": (sys.executable, {"VOIRKIT_NO_EXTENSION": "1"}),
        }
        if options.dftracer:
            engines["dftracer"] = (options.dftracer, {})
        found = {}
        for engine, (python, more) in engines.items():
            command = [
                python,
                __file__,
                "--child",
                engine,
                "--rounds",
                str(options.rounds),
                "--calls",
                str(options.calls),
            ]
            done = subprocess.run(command, env={**env, **more}, capture_output=True, text=True)
            if done.returncode:
                print(f"{engine}: {done.stderr.strip().splitlines()[-1]}")
                continue
            found[engine] = json.loads(done.stdout.splitlines()[-1])
            module = "dftracer.python" if engine == "dftracer" else "voirkit.ai"
            found[engine]["import"] = import_ms(python, module, {**env, **more})
        if found:
            table(found)


def table(found: dict[str, dict[str, float]]) -> None:
    """Print ratios, engine beside engine."""
    print(f"{'times a tuple':40}" + "".join(f"{engine:>10}" for engine in found) + f"{'limit':>8}")
    for name in next(iter(found.values())):
        if name not in ("tuple", "import"):
            limit = f"{LIMITS[name]:8.1f}" if name in LIMITS else ""
            print(f"{name:40}" + "".join(f"{row[name]:10.2f}" for row in found.values()) + limit)
    print(f"{'a tuple, ns':40}" + "".join(f"{row['tuple']:10.0f}" for row in found.values()))
    print(
        f"{'import, ms of CPU':40}"
        + "".join(f"{row['import']:10.1f}" for row in found.values())
        + f"{IMPORT_LIMIT_MS:8.1f}"
    )


if __name__ == "__main__":
    main()
