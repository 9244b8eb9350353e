"""What an event costs, and how many bytes it takes, in voirkit and in its peers.

    python benchmarks/peers/events.py [--rounds 9] [--events 20000]

A figure is a ratio to ``append((name, t0, t1))`` with two clock reads (spans, values) or to the same call in the same environment
without the tool (calls). Within a process the two are interleaved; the processes of all tools are run by turns, and the figure is the
median over all their rounds. Bytes are those of the files that the tool has written when its process has ended, by event: of spans
all, of calls what twice as many calls add. voirkit's spans are as recorded (compacting makes a fifth of them), its calls compacted.
"""

from __future__ import annotations

import argparse
import atexit
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURNS = 3  # processes of each tool
now = time.perf_counter_ns


def append(n: int) -> None:
    """What everything is compared with."""
    add: Callable[[Any], None] = [].append
    for _ in range(n):
        t0 = now()
        add(("name", t0, now()))


def blocks(make: Callable[[], Any]) -> Callable[[int], None]:
    """A ``with`` block around nothing; ``make`` gives its context."""

    def run(n: int) -> None:
        for _ in range(n):
            with make():
                pass

    return run


# what is measured, each in the environment of its tool; the working directory is empty, and holds what the tool has written


def voirkit_span() -> Callable[[int], None]:
    from voirkit.trace import recorder

    recorder.begin("trace")
    span = recorder.Span(recorder.name("compute", "forward"))
    return blocks(lambda: span)


def dftracer_span() -> Callable[[int], None]:
    from dftracer.python import ai, dftracer  # type: ignore[import-not-found]

    atexit.register(
        dftracer.initialize_log(logfile="trace.pfw", data_dir=".", process_id=-1).finalize
    )
    return blocks(lambda: ai.compute.forward)


def viztracer_span() -> Callable[[int], None]:
    from viztracer import VizTracer  # type: ignore[import-not-found]

    tracer = VizTracer(
        output_file="trace.json", tracer_entries=10_000_000, verbose=0, max_stack_depth=0
    )
    tracer.start()
    atexit.register(tracer.save)
    return blocks(lambda: tracer.log_event("forward"))


def record_function() -> Callable[[int], None]:
    from torch.profiler import profile, record_function

    profiler = profile()
    profiler.__enter__()

    def end() -> None:
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace("trace.json")

    atexit.register(end)
    return blocks(lambda: record_function("forward"))


def record_function_alone() -> Callable[[int], None]:
    from torch.profiler import record_function

    return blocks(lambda: record_function("forward"))


def f(n: int) -> None:
    """Its variable is probed."""
    for i in range(n):
        x = i  # noqa: F841


def probe(engine: str) -> Callable[[int], None]:
    import importlib

    values: list[Any] = []
    importlib.import_module(engine).global_probe("f > x", env=globals()).subscribe(values.append)
    return f


def bare_loop(n: int) -> None:
    """What is subtracted from a probe's loop."""
    for i in range(n):
        x = i  # noqa: F841


SPANS: dict[
    str, tuple[str | None, str, Callable[[], Callable[[int], None]]]
] = {  # tool: environment (None: voirkit's), what, function
    "voirkit": (None, "span", voirkit_span),
    "dftracer": ("dftracer", "span", dftracer_span),
    "viztracer": ("viztracer", "span", viztracer_span),
    "torch.profiler": ("viztracer", "span", record_function),
    "record_function, no profiler": ("viztracer", "span", record_function_alone),
    "voirkit probe": (None, "value of a variable", lambda: probe("voirkit")),
    "ptera (voir)": ("voir", "value of a variable", lambda: probe("ptera")),
}
CALLS = """
import sys, time
import torch
def calls(n):
    x, relu, clock = torch.ones(4), torch.nn.functional.relu, time.process_time_ns
    began = clock()
    for _ in range(n):
        relu(x)
    return (clock() - began) / n
def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else N
    calls(100)
    print("ns a call", calls(n))
if __name__ == "__main__":
    main()
"""

PROFILED = """
import runpy, sys
from torch.profiler import profile
sys.argv = sys.argv[1:]
with profile() as profiler:
    runpy.run_path(sys.argv[0], run_name="__main__")
profiler.export_chrome_trace("trace.json")
"""


def worker(tool: str, rounds: int, events: int) -> None:
    """In the tool's environment: print the ratios of the rounds, and the number of events."""
    run = SPANS[tool][2]()
    bare = bare_loop if "probe" in tool or "ptera" in tool else append
    ratios = []
    for turn in range(rounds + 1):
        times = []
        for function in (append, run, bare_loop):
            began = now()
            function(events)
            times.append(now() - began)
        if turn:
            ratios.append((times[1] - (times[2] if bare is bare_loop else 0)) / times[0])
    print(json.dumps([ratios, (rounds + 1) * events]))


def size(folder: Path) -> int:
    """Bytes of the files in a folder, but for the script."""
    return sum(
        file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".py"
    )


def spans(rounds: int, events: int) -> None:
    """Print the table of spans and of values."""
    from environments import make, quiet_environment, table

    ratios: dict[str, list[float]] = {tool: [] for tool in SPANS}
    said: dict[str, str] = {}
    for _ in range(TURNS):
        for tool, (environment, _, _) in SPANS.items():
            peer = make(environment) if environment else None
            if peer and peer.python is None:
                said[tool] = peer.version
                continue
            with tempfile.TemporaryDirectory() as place:
                command = [
                    (peer and peer.python) or sys.executable,
                    __file__,
                    "--worker",
                    tool,
                    "--rounds",
                    str(rounds),
                    "--events",
                    str(events),
                ]
                env = quiet_environment() | {"DFTRACER_ENABLE": "1", "DFTRACER_INC_METADATA": "1"}
                done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
                if done.returncode:
                    said[tool] = f"failed: {done.stderr.strip().splitlines()[-1][:100]}"
                    continue
                found, count = json.loads(done.stdout.splitlines()[-1])
                ratios[tool] += found
                if SPANS[tool][1] == "span" and "no profiler" not in tool:
                    said[tool] = f"{size(Path(place)) / count:.1f}"
    rows = [
        [
            what,
            tool,
            f"{statistics.median(ratios[tool]):.1f}" if ratios[tool] else "",
            said.get(tool, ""),
        ]
        for tool, (_, what, _) in SPANS.items()
    ]
    print(table(["event", "tool", "times an append", "bytes as written"], rows))


def calls(count: int) -> None:
    """Print the table of recorded calls."""
    from environments import make, quiet_environment, table

    viz, train = make("viztracer"), make("traincheck")
    tools: dict[str, tuple[str | None, Callable[[str], list[str]]]] = {
        "voirkit --calls torch": (
            sys.executable,
            lambda p: [
                p,
                "-m",
                "voirkit",
                "--quiet",
                "--run-dir",
                "run",
                "--compact",
                "--calls",
                "torch",
                "loop.py",
            ],
        ),
        "viztracer": (
            viz.python,
            lambda p: [
                viz.tool("viztracer"),
                "-o",
                "trace.json",
                "--tracer_entries",
                "10000000",
                "--quiet",
                "--",
                "loop.py",
            ],
        ),
        "torch.profiler": (viz.python, lambda p: [p, "-c", PROFILED, "loop.py"]),
        "TrainCheck": (
            train.python,
            lambda p: [
                train.tool("traincheck-collect"),
                "-p",
                "loop.py",
                "-t",
                "torch",
                "--output-dir",
                "out",
            ],
        ),
    }
    rows = []
    for tool, (python, command) in tools.items():
        if python is None:
            rows.append([tool, "", "", train.version if tool == "TrainCheck" else viz.version])
            continue
        ratios, added, taken = [], [], [0, 0]
        try:
            for turn in range(TURNS + 1):
                n = count * (2 if turn == TURNS else 1)  # the last is for the bytes alone
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place)
                    (folder / "loop.py").write_text(CALLS.replace("N\n", f"{n}\n", 1))
                    plain = _ns(folder, [python, "loop.py"], quiet_environment())
                    traced = _ns(folder, command(python), quiet_environment())
                    taken[turn == TURNS] = size(folder)
                    if turn < TURNS:
                        ratios.append(traced / plain)
                        added.append(traced - plain)
        except RuntimeError as exc:
            rows.append([tool, "", "", f"failed: {str(exc)[:120]}"])
            continue
        a_call = (taken[1] - taken[0]) / count
        rows.append(
            [
                tool,
                f"{statistics.median(ratios):.1f}",
                f"{statistics.median(added) / 1000:.2f}",
                f"{a_call:.0f}",
            ]
        )
    print(
        table(
            [
                "tool",
                "times the call without",
                "µs of CPU more a call of relu",
                "bytes more a call of relu",
            ],
            rows,
        )
    )


def _ns(folder: Path, command: list[str], env: dict[str, str]) -> float:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    texts = [
        done.stdout,
        done.stderr,
        *(file.read_text() for file in folder.glob("out/**/program_output.txt")),
    ]
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith("ns a call"):
            return float(line.split()[-1])
    errors = [
        line for text in reversed(texts) for line in text.splitlines() if "Error" in line
    ] or ["it printed no time"]
    raise RuntimeError(errors[-1].strip())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.rounds, options.events)
        return
    spans(options.rounds, options.events)
    print()
    calls(options.events)


if __name__ == "__main__":
    main()
