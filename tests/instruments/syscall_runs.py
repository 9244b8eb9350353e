"""Scripts whose system calls are known, traced by a tracer that is chosen; and whether it can be used here."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from conftest import Place

INSTANCES = Path("/sys/kernel/tracing/instances")

# Calls that nothing else makes here: getpgrp, setpgid's like. In each step of ten: 2 in forward, 1 in backward, 3 in the step, and for each
# of its four samples a file is opened, 3 bytes are read twice, and it is closed.
PLANTED = """
import multiprocessing, os, sys
import torch
multiprocessing.set_start_method("fork", force=True)
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        file = os.open(f"data/{i}.txt", os.O_RDONLY)
        os.read(file, 3), os.read(file, 3)
        os.close(file)
        return torch.ones(4)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        os.getpgid(0)
        return 2 * grad

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x):
        os.getpgid(0), os.getpgid(0)
        return Double.apply(self.linear(x))

class Sgd(torch.optim.SGD):
    def step(self, closure=None):
        os.getpgid(0), os.getpgid(0), os.getpgid(0)
        return super().step(closure)

def main(workers):
    os.makedirs("data", exist_ok=True)
    for i in range(40):
        with open(f"data/{i}.txt", "w") as file:
            file.write("abcdef")
    model = Model()
    optimizer = Sgd(model.parameters(), lr=0.1)
    MARK("begin")
    for batch in DataLoader(Files(), batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        os.getpgid(0)
    MARK("end")
    torch.save(model.state_dict(), "model.pt")
    print(sys.argv, os.getppid(), sys.stdin.read())
    sys.exit(7)

MARK = lambda word: os.access(f"/mark!{word}", 0)
if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


def instances(place: Place) -> list[str]:
    """What is there of the kernel's tracing of a place's run; other runs may be going on beside it."""
    pids = [
        json.loads(path.read_text())["pid"]
        for path in (place.folder / "run" / "syscalls").glob("*-r?-*[0-9].json")
    ]
    assert pids
    return [
        path.name
        for path in INSTANCES.iterdir()
        if path.name.startswith(tuple(f"voirkit-{pid}-" for pid in pids))
    ]


@cache
def why_not_strace() -> str:
    """Why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(
        [sys.executable, "-c", "import os, subprocess; subprocess.run(['strace', '-o', os.devnull, '-p', str(os.getppid())], timeout=1)"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "this user may not attach to a process" if "ermitted" in done.stderr else ""


def why_not_kernel() -> str:
    """Why the kernel cannot trace here; empty if it can."""
    from voirkit_instruments.detached import CannotAttach
    from voirkit_instruments.syscalls.record import tracefs

    try:
        tracefs()
    except CannotAttach as exc:
        return str(exc)
    return ""


def _ask_kernel(function: str, *words: Any) -> None:
    """Call a function of the C library that has no name in Python 3.10."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*words):
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


@contextmanager
def tracefs_mounted() -> Iterator[None]:
    """Meanwhile tracefs is mounted for this thread and for what it starts.

    For nobody else: tests beside this one, of which ``--syscalls`` takes the best tracer of the machine, have the machine as it is. There is
    nothing to unmount: the mounts of a thread go with it.

    Raises:
        OSError: This user may not, or the kernel has none.
    """
    new_mounts, private, with_all_below = (
        0x20000,
        1 << 18,
        1 << 14,
    )  # CLONE_NEWNS, MS_PRIVATE, MS_REC
    with ExitStack() as undo:
        mounts, root, folder = (
            os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/mnt", "/", ".")
        )
        for descriptor in (mounts, root, folder):
            undo.callback(os.close, descriptor)
        _ask_kernel("unshare", new_mounts)
        # Who enters other mounts is at their root: the callbacks, last first, go back to where it was.
        undo.callback(os.fchdir, folder)
        undo.callback(os.chroot, ".")
        undo.callback(os.fchdir, root)
        undo.callback(_ask_kernel, "setns", mounts, new_mounts)
        _ask_kernel("mount", None, b"/", None, private | with_all_below, None)
        if not INSTANCES.exists():
            _ask_kernel("mount", b"none", bytes(INSTANCES.parent), b"tracefs", 0, None)
        yield


@contextmanager
def kernel_tracing() -> Iterator[str]:
    """Why the kernel cannot trace meanwhile; empty if it can. Where only tracefs is not mounted, it is mounted meanwhile."""
    refused = why_not_kernel()
    with ExitStack() as undo:
        if refused and os.geteuid() == 0:
            try:
                undo.enter_context(tracefs_mounted())
            except OSError as exc:
                refused += f" It cannot be mounted by the tests: {exc.strerror}"
            else:
                refused = why_not_kernel()
        yield refused


def use(place: Place, tool: str, mode: str = "counts") -> None:
    place.write(
        voirfile=f"from voirkit_instruments.syscalls import syscalls\ninstrument_traced = syscalls({mode!r}, tool={tool!r})\n",
        main=PLANTED,
    )


def document(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / "run" / "summary.json").read_text())[
        "syscalls"
    ]
    return found


def count(rows: dict[str, Any], phase: str, name: str) -> int:
    return int(rows.get(phase, {}).get(name, {}).get("calls", 0))


PGID = "getpgid"
