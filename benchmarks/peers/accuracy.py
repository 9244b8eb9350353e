"""What profilers report of trainings with a planted cause, beside what the script itself measured.

    python benchmarks/peers/accuracy.py [--cases transform,workers,forward,logging,checkpoint] [--tools …]

Each tool runs benchmarks/peers/planted.py, which measures its own phases in the same run: a share is compared with that run's truth.
For TraceML the script has the lines that TraceML asks for; all others run it unchanged. "Named" is whether what the tool reports has
the name of the planted function: for py-spy, whether it is the function of the script that most samples are in, beside those that hold
the loop.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from environments import Peer, make, quiet_environment, table

SCRIPT = str(Path(__file__).with_name("planted.py"))
CAUSES = {
    "transform": "SlowCrop",
    "workers": "SlowCrop",
    "forward": "SlowBlock",
    "logging": "log_metrics",
    "checkpoint": "save_checkpoint",
}
PHASES = {
    "transform": "wait",
    "workers": "wait",
    "forward": "forward",
    "logging": "other",
    "checkpoint": "other",
}
Reported = tuple[
    float | None, str
]  # the share of the planted phase, and the text in which the cause may be named


def run(folder: Path, command: list[str]) -> str:
    """What a command prints; raises with its last line if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=quiet_environment(), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip() or done.stdout.strip() or "nothing was printed").splitlines()[-1]
        )
    return done.stdout + done.stderr


def voirkit(*flags: str) -> Callable[[Path, str], Reported]:
    """voirkit with some flags."""

    def report(folder: Path, case: str) -> Reported:
        text = run(
            folder,
            [
                sys.executable,
                "-m",
                "voirkit",
                "--run-dir",
                "run",
                *flags,
                SCRIPT,
                case,
                "truth.json",
            ],
        )
        phases = json.loads((folder / "run" / "summary.json").read_text())["steps"]["phases"]
        share = phases[PHASES[case]]["share"]
        if PHASES[case] == "other":  # the parts of other include checkpoints and zero_grad
            share += sum(
                phases[name]["share"]
                for name in phases
                if name not in ("wait", "forward", "backward", "optimizer", "other")
            )
        return share, text

    return report


def traceml(peer: Peer) -> Callable[[Path, str], Reported]:
    """TraceML's summary."""

    def report(folder: Path, case: str) -> Reported:
        text = run(
            folder,
            [
                peer.tool("traceml"),
                "run",
                SCRIPT,
                "--mode",
                "summary",
                "--args",
                case,
                "truth.json",
                "traceml",
            ],
        )
        row = {"wait": "Input Wait", "forward": "Forward", "other": "Residual"}[PHASES[case]]
        return int(re.search(rf"{row}\s+\S+ m?s\s+(\d+)%", text)[1]) / 100, text  # type: ignore[index]

    return report


def py_spy(peer: Peer) -> Callable[[Path, str], Reported]:
    """py-spy at 200 Hz: samples of the training loop by what is in the stack."""

    def report(folder: Path, case: str) -> Reported:
        run(
            folder,
            [
                peer.tool("py-spy"),
                "record",
                "--idle",
                "--subprocesses",
                "-r",
                "200",
                "-f",
                "raw",
                "-o",
                "stacks",
                "--",
                str(peer.python),
                SCRIPT,
                case,
                "truth.json",
            ],
        )
        phases: Counter[str] = Counter()
        functions: Counter[str] = Counter()
        for line in (folder / "stacks").read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            if (
                "train (planted.py" not in stack
            ):  # the training loop alone, as a reader of the flame graph would look at it
                continue
            names = {f.split(" (")[0].split(".")[0] for f in frames if " (planted.py" in f}
            functions.update(
                dict.fromkeys(names - {"<module>", "main", "train", "Samples"}, int(count))
            )
            if "_worker_loop" in stack:
                continue
            marks = {
                "wait": "dataloader.py",
                "forward": "_call_impl",
                "backward": "Tensor.backward",
                "optimizer": "optimizer.py",
            }
            phases[next((name for name, mark in marks.items() if mark in stack), "other")] += int(
                count
            )
        return phases[PHASES[case]] / phases.total(), " ".join(
            name for name, _ in functions.most_common(1)
        )

    return report


PROFILED = """
import runpy, sys
from torch.profiler import profile
script, sys.argv = sys.argv[1], sys.argv[1:]
with profile() as profiler:
    runpy.run_path(script, run_name="__main__")
profiler.export_chrome_trace("trace.json")
print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=30, max_name_column_width=80))
"""


def torch_profiler(peer: Peer) -> Callable[[Path, str], Reported]:
    """torch.profiler around the whole script: what its table says of the loader, of all that is in the loop."""

    def report(folder: Path, case: str) -> Reported:
        text = run(folder, [str(peer.python), "-c", PROFILED, SCRIPT, case, "truth.json"])
        events = [
            e
            for e in json.loads((folder / "trace.json").read_text())["traceEvents"]
            if e.get("ph") == "X"
        ]
        waits = [e for e in events if e["name"].startswith("enumerate(DataLoader)")]
        whole = max(
            e["ts"] + e["dur"] for e in events if e["name"].startswith("Optimizer.step")
        ) - min(e["ts"] for e in waits)
        share = sum(e["dur"] for e in waits) / whole
        return (
            share if PHASES[case] == "wait" else None
        ), text  # forward and the rest have no row of their own

    return report


def hta(peer: Peer) -> Callable[[Path, str], Reported]:
    """HTA's temporal breakdown of torch.profiler's trace."""
    code = "from hta.trace_analysis import TraceAnalysis; print(TraceAnalysis(trace_dir='traces').get_temporal_breakdown(visualize=False))"

    def report(folder: Path, case: str) -> Reported:
        run(folder, [str(peer.python), "-c", PROFILED, SCRIPT, case, "truth.json"])
        (folder / "traces").mkdir(exist_ok=True)
        trace = json.loads((folder / "trace.json").read_text()) | {"distributedInfo": {"rank": 0}}
        (folder / "traces" / "rank0.json").write_text(json.dumps(trace))
        return None, run(folder, [str(peer.python), "-c", code])

    return report


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CAUSES))
    parser.add_argument(
        "--tools", default="voirkit,voirkit --loader --flame,TraceML,py-spy,torch.profiler,HTA"
    )
    options = parser.parse_args()
    tools: dict[str, tuple[Peer | None, Callable[[Path, str], Reported]]] = {
        "voirkit": (None, voirkit()),
        "voirkit --loader --flame": (None, voirkit("--loader", "--flame")),
    }
    makers = {
        "TraceML": ("traceml", traceml),
        "py-spy": ("py-spy", py_spy),
        "torch.profiler": ("hta", torch_profiler),
        "HTA": ("hta", hta),
    }
    for tool, (environment, maker) in makers.items():
        if tool in options.tools.split(","):
            peer = make(environment)
            tools[tool] = peer, maker(peer)
    rows = []
    for case in options.cases.split(","):
        for tool in options.tools.split(","):
            peer, report = tools[tool]
            row = [case, PHASES[case], tool]
            if peer is not None and peer.python is None:
                rows.append([*row, "", "", "", peer.version])
                continue
            with tempfile.TemporaryDirectory() as place:
                try:
                    share, text = report(Path(place), case)
                except (RuntimeError, TypeError) as exc:
                    rows.append([*row, "", "", "", f"failed: {str(exc)[:120]}"])
                    continue
                truth = json.loads((Path(place) / "truth.json").read_text())[PHASES[case]]
            found = (
                ["not reported", ""]
                if share is None
                else [f"{share:.1%}", f"{100 * (share - truth):+.1f}"]
            )
            rows.append([*row, f"{truth:.1%}", *found, "yes" if CAUSES[case] in text else "no"])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(table(["case", "phase", "tool", "truth", "reported", "points off", "cause named"], rows))


if __name__ == "__main__":
    main()
