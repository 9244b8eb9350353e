"""The environments of the peers, each one of its own, made with uv in .cache/peers; one that cannot be made is reported with its error.

python benchmarks/peers/environments.py [NAME ...]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache" / "peers"
_TORCH = ("torch", "torchvision", "pillow")
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "dfanalyzer": ("-r", str(ROOT / "tests/report/readers/dfanalyzer.txt")),
    "dftracer": ("dftracer",),
    "hta": ("HolisticTraceAnalysis", "torch"),
    "py-spy": ("py-spy", *_TORCH),
    "scalene": ("scalene", *_TORCH),
    "traceml": ("traceml-ai", *_TORCH),
    "traincheck": ("-r", str(ROOT / "tests/report/readers/traincheck.txt")),
    "viztracer": ("viztracer", *_TORCH),
    "voir": ("voir", *_TORCH),
}
MAIN = {
    "hta": "HolisticTraceAnalysis",
    "traceml": "traceml-ai",
    "dfanalyzer": "dftracer-analyzer",
}  # the package whose version is shown


class Peer(NamedTuple):
    """An environment.

    Attributes:
        python: Its interpreter, or None if it could not be made.
        version: The peer's, or why there is none.
    """

    python: str | None
    version: str

    def tool(self, name: str) -> str:
        """The path of a program of the environment."""
        return str(Path(self.python or "").parent / name)


def make(name: str) -> Peer:
    """Make an environment, unless it is there."""
    python = PLACE / name / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", PLACE / name], check=True)
        done = subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", python, *REQUIREMENTS[name]],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(PLACE / name)
            return Peer(
                None,
                f"cannot be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}",
            )
    code = f"from importlib.metadata import version; print(version({MAIN.get(name, name)!r}))"
    return Peer(
        str(python),
        subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip(),
    )


def newest_sampler() -> Peer:
    """CPython 3.15's own sampling profiler, where that interpreter is found."""
    python = shutil.which("python3.15")
    if python is None:
        return Peer(None, "no python3.15 is found")
    done = subprocess.run(
        [python, "-c", "import profiling.sampling, torch"], capture_output=True, text=True
    )
    return (
        Peer(python, "3.15")
        if done.returncode == 0
        else Peer(None, done.stderr.strip().splitlines()[-1])
    )


def quiet_environment() -> dict[str, str]:
    """The environment variables of what is measured: one thread, and no voirfile, harness or follower of ours."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not re.match(r"DATA_FD|VOIRFILE|VOIRKIT_|PYTHONDONTWRITEBYTECODE", k)
    }
    return env | {"OMP_NUM_THREADS": "1", "VOIRFILE": "", "USER": env.get("USER", "user")}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)
    )


def main() -> None:
    """Make all, and print them."""
    print(
        table(
            ["peer", "version"],
            [[name, make(name).version] for name in sys.argv[1:] or REQUIREMENTS],
        )
    )


if __name__ == "__main__":
    main()
