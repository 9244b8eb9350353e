"""The overhead that voirkit prints held against the overhead that it has, for each flag.

    python benchmarks/printed_overhead.py [--rounds 12] [--only default,checks]

Each variant is a process beside one of plain python. Both run the same loop of training steps, a block at a time and by turns, so that what
else the machine does meets both alike. What a block took is CPU time: of the process, of the children that it has waited for, and of the
processes that were started beside it (perf, py-spy, strace), found by a variable of their environment. Measured is what the blocks of the
variant took more than those of python (the median of the pairs; for what is done once, their sum); printed is ``overhead`` of its
summary.json, of tools beside the program as far as they worked during the loop, and without waiting for processors. Both as shares of
python's blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, NamedTuple

MARK = "VOIRKIT_BENCHMARK"

SCRIPT = """
import resource, sys
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

KIND, STEPS, WORKERS, BATCH = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 60
torch.set_num_threads(1)
torch.manual_seed(0)


class Scale:
    def __call__(self, x):
        return x * 0.5


class Shift:
    def __call__(self, x):
        return x + 1.0


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Points(Dataset):
    def __init__(self, n):
        self.x, self.y = torch.randn(n, 64), torch.randint(0, 10, (n,)).tolist()
        self.transform = Compose([Scale(), Shift(), Scale(), Shift(), Scale(), Shift(), Scale(), Shift(), Scale()])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def points(n):
    return Points(n) if KIND == "items" else TensorDataset(torch.randn(n, 64), torch.randint(0, 10, (n,)))


def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(points(STEPS * BATCH), batch_size=BATCH, shuffle=True, num_workers=WORKERS)
train(DataLoader(points(20 * BATCH), batch_size=BATCH))
print("ready", flush=True)
for _ in sys.stdin:
    before = cpu_s()
    train(loader)
    print(cpu_s() - before, flush=True)
"""


class Variant(NamedTuple):
    """What is measured.

    Attributes:
        flags: Of voirkit.
        kind: Of dataset: tensors, or items that pass nine transforms.
        steps: Of a block.
        workers: Of the loader.
        once: Whether its cost comes once in a run.
    """

    flags: tuple[str, ...] = ()
    kind: str = "tensors"
    steps: int = 200
    workers: int = 0
    once: bool = False


OPERATIONS = (
    "--loader",
    "--loader-ops=__main__:Scale.__call__,__main__:Shift.__call__",
)  # 540 calls a step
VARIANTS = {
    "default": Variant(),
    "no-steps": Variant(("--no-steps",)),
    "loader": Variant(("--loader",), "items", 100),
    "loader, 2 workers": Variant(("--loader",), "items", 100, 2),
    "loader-ops": Variant(OPERATIONS, "items", 50),
    "loader-ops, 2 workers": Variant(OPERATIONS, "items", 50, 2),
    "checks": Variant(("--checks",)),
    "parameters": Variant(("--parameters",)),
    "calls": Variant(("--calls",)),
    "flame": Variant(("--flame",)),
    "native": Variant(("--native",)),
    "monitor": Variant(("--monitor",)),
    "memory-snapshot": Variant(("--memory-snapshot",)),
    "memory-snapshot=tracemalloc": Variant(("--memory-snapshot=tracemalloc",)),
    "torch-profile": Variant(("--torch-profile",), once=True),
    "syscalls": Variant(("--syscalls",)),
}


class Trainer:
    """A process that runs a block of steps when it is told to.

    Args:
        words: Of python, before the script's own arguments.
        variant: What is run.
        folder: Where.

    Attributes:
        others_s: What processes beside it have used while blocks ran.
        own_s: CPU seconds of the process and of those that it has waited for, once it has ended.
    """

    def __init__(self, words: list[str], variant: Variant, folder: str) -> None:
        self.mark = uuid.uuid4().hex
        self.others_s = self.own_s = 0.0
        env = {k: v for k, v in os.environ.items() if k != "DATA_FD"}
        env |= {"OMP_NUM_THREADS": "1", "VOIRFILE": "", MARK: self.mark}
        command = [sys.executable, *words, variant.kind, str(variant.steps), str(variant.workers)]
        self.log = open(os.path.join(folder, f"{self.mark}.stderr"), "w+")  # noqa: SIM115 (closed in end)
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )  # fmt: skip
        self.answer()

    def answer(self) -> str:
        """The next line that the script prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"the script has failed:\n{self.log.read()[-2000:]}")
        return line

    def block(self) -> float:
        """CPU seconds of a block of steps."""
        before = self.others_ns()
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        own, others = float(self.answer()), (self.others_ns() - before) / 1e9
        self.others_s += others
        return own + others

    def others_ns(self) -> int:
        """What processes have used that were started by this one, and are none of those whose end it waits for."""
        total = 0
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != self.process.pid:
                try:
                    if (
                        f"{MARK}={self.mark}".encode()
                        not in Path(f"/proc/{entry}/environ").read_bytes()
                    ):
                        continue
                    for task in os.listdir(f"/proc/{entry}/task"):
                        total += int(
                            Path(f"/proc/{entry}/task/{task}/schedstat").read_text().split()[0]
                        )
                except (OSError, ValueError, IndexError):
                    continue
        return total

    def end(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.own_s = usage.ru_utime + usage.ru_stime
        self.log.close()


def measure(variant: Variant, rounds: int) -> dict[str, Any]:
    """The figures of a variant."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.py").write_text(SCRIPT)
        plain = Trainer(["main.py"], variant, folder)
        watched = Trainer(
            ["-m", "voirkit", "--quiet", "--run-dir", "run", *variant.flags, "main.py"],
            variant,
            folder,
        )
        took: list[tuple[float, float]] = []
        for turn in range(rounds):
            if turn % 2:
                more, less = watched.block(), plain.block()
            else:
                less, more = plain.block(), watched.block()
            took.append((less, more))
        in_loop = watched.others_s / max(
            watched.others_ns() / 1e9, watched.others_s, 1e-9
        )  # of what tools beside it use
        plain.end()
        watched.end()
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    base = sum(less for less, _ in took)
    ratios = sorted(more / less for less, more in took)
    extra = (
        sum(more for _, more in took) - base
        if variant.once
        else (statistics.median(ratios) - 1) * base
    )
    overhead = summary["overhead"]
    parts = overhead.get("parts", {})
    beside, sampling = (
        parts.get(name, {"seconds": 0.0})["seconds"] for name in ("processes", "sampling")
    )
    processors = summary.get("processors") or {}
    waiting = processors["waited_s"] / processors["own_s"] if processors.get("own_s") else 0.0
    sampled = (
        sum(more for _, more in took) / watched.own_s if "--native" in variant.flags else in_loop
    )  # perf samples what runs
    printed_s = (
        (overhead["seconds"] - beside - sampling) / (1 + waiting)
        + beside * in_loop
        + sampling * sampled
    )
    measured = extra / base
    return {
        "step_us": base / rounds / variant.steps * 1e6, "measured": measured, "printed": printed_s / base,
        "ratio": printed_s / extra if extra else float("nan"),
        "quartiles": [ratios[len(ratios) // 4] - 1, ratios[-1 - len(ratios) // 4] - 1],
        "parts": {name: round(part["seconds"] / base, 4) for name, part in parts.items()},
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--only",
        default=",".join(name for name in VARIANTS if "," not in name),
        help="names, separated by semicolons or commas",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = [
        name
        for name in VARIANTS
        if any(name == word or name.startswith(word + ", ") for word in options.only.split(","))
    ]
    print(
        f"{'variant':28} {'step, µs':>9} {'measured':>9} {'quartiles':>17} {'printed':>9} {'ratio':>6}  parts"
    )
    for name in chosen:
        found = measure(VARIANTS[name], options.rounds)
        low, high = found["quartiles"]
        line = f"{name:28} {found['step_us']:9.0f} {found['measured']:9.1%} {f'{low:.1%} .. {high:.1%}':>17}"
        parts = " ".join(f"{part} {share:.2%}" for part, share in found["parts"].items())
        print(f"{line} {found['printed']:9.1%} {found['ratio']:6.2f}  {parts}", flush=True)


if __name__ == "__main__":
    main()
