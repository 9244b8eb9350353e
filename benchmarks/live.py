"""What the live view costs: the CPU time of the thread that draws `--dash`, at 100 and 1000 steps a second, and of `voirkit watch`.

    python benchmarks/live.py [--seconds 20] [--rates 100 1000]

The script trains without torch: it records the phases of a step (seven records) at the time when they would be, and sleeps. The view is
drawn on a pseudo-terminal of 100 x 30. Its first three seconds, in which it loads what it needs, are not counted. `watch` is another
process, which may run on another machine; what it takes is printed beside it, and so is the time to the first picture of a recording of
10,000,000 spans.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_S = 3.0
MOST = 0.01  # of a core

SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {tests!r})
from live_training import TRAINING
exec(TRAINING)


def used_ns():
    for thread in threading.enumerate():
        if thread.name == "voirkit-dash":
            with open(f"/proc/self/task/{{thread.native_id}}/schedstat") as file:
                return int(file.read().split()[0])
    return 0


per_s, seconds = float(sys.argv[1]), float(sys.argv[2])
training = Training(length=10_000_000, workers=2, step_ms=1000 / per_s)
training.begin()
begun, before = time.perf_counter(), None
while (at := time.perf_counter() - begun) < {warm} + seconds:
    if before is None and at >= {warm}:
        before = used_ns(), at
    training.step()
    ahead = training.now - recorder.now()
    if ahead > 0:
        time.sleep(ahead / 1e9)
used = used_ns()
with open(sys.argv[3], "w") as file:
    file.write(f"{{(used - before[0]) / 1e9 / (time.perf_counter() - begun - before[1])}}")
"""
LONG = """
import sys
sys.path.insert(0, {tests!r})
from live_training import TRAINING
exec(TRAINING)
recorder.begin(sys.argv[1])
training = Training(length=10_000, step_ms=0.01)
for _ in range(200):
    training.epoch()
os._exit(0)  # as a run that is killed: its segments stay
"""


def main() -> None:
    """Measure and print; the exit code is 1 if the view takes more than 1 % of a core."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 1000])
    parser.add_argument("--no-long", action="store_true", help="leave out the long recording")
    options = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for rate in options.rates:
            share = dash(Path(folder), rate, options.seconds)
            worst = max(worst, share)
            print(f"--dash at {rate:g} steps/s: {share:.2%} of a core", flush=True)
            share = watch(Path(folder), rate, options.seconds)
            print(
                f"voirkit watch at {rate:g} steps/s: {share:.2%} of a core, in a process of its own",
                flush=True,
            )
        if not options.no_long:
            long(Path(folder))
    sys.exit(worst > MOST)


def dash(folder: Path, rate: float, seconds: float) -> float:
    """The share of a core that the drawing thread takes."""
    result = folder / "share"
    process, reader = on_terminal([*run(folder, rate, seconds, result, "--dash")])
    process.wait()
    reader.join()
    return float(result.read_text())


def watch(folder: Path, rate: float, seconds: float) -> float:
    """The share of a core that `voirkit watch` takes beside a run."""
    with subprocess.Popen(run(folder, rate, seconds + 2 * WARM_S, folder / "share")) as trains:
        while not (folder / "run" / "run.json").exists() or not any(
            (folder / "run" / "trace").glob("*.seg")
        ):
            time.sleep(0.1)
        process, _ = on_terminal([sys.executable, "-m", "voirkit", "watch", str(folder / "run")])
        time.sleep(WARM_S)
        before, began = cpu_s(process.pid), time.perf_counter()
        time.sleep(seconds)
        share = (cpu_s(process.pid) - before) / (time.perf_counter() - began)
        process.terminate()
        process.wait()
        trains.terminate()
    return share


def long(folder: Path) -> None:
    """Print how long the first picture of a recording of 10^7 spans takes."""
    script = folder / "long.py"
    script.write_text(LONG.format(tests=str(ROOT / "tests")))
    subprocess.run([sys.executable, script, folder / "long"], check=True)
    size = sum(path.stat().st_size for path in (folder / "long" / "trace").glob("*.seg"))
    code = (
        "import sys, time; t = time.perf_counter()\nfrom voirkit.cli import main\nmain(['watch', sys.argv[1]])\n"
        "print(f'first picture after {time.perf_counter() - t:.2f} s, {time.process_time():.2f} s of CPU', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder / "long"], capture_output=True, text=True, check=True
    )
    print(f"{size / 32e6:.1f} million spans: {done.stderr.strip()}")


def run(folder: Path, rate: float, seconds: float, result: Path, *options: str) -> list[str]:
    """The command of a run."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(tests=str(ROOT / "tests"), warm=WARM_S))
    words = [
        "--quiet",
        "--run-dir",
        str(folder / "run"),
        "--force",
        *options,
        str(script),
        str(rate),
        str(seconds),
        str(result),
    ]
    return [sys.executable, "-m", "voirkit", *words]


def on_terminal(command: list[str]) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start a command on a pseudo-terminal that somebody reads."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)

    def read() -> None:
        try:
            while os.read(master, 65536):
                pass
        except OSError:  # nobody has it open any more
            os.close(master)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return process, reader


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
