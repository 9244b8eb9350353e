"""``--syscalls`` where something is killed, missing, refused or too much: the program is as ever, and what was seen is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import Place
from syscall_runs import INSTANCES, PGID, PLANTED, count, document, instances, use

pytestmark = pytest.mark.long

# Finds what reads the kernel's tracing of this process, and does something to it.
READER = """
import os, signal, sys, time
def reader():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
            except OSError:
                continue
            if any(word.endswith(b"record_reader.py") for word in words) and str(os.getpid()).encode() in words:
                return int(name)
def looks(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
"""


@pytest.fixture
def kernel(place: Place, kernel_traces: None) -> Place:
    use(place, "kernel")
    return place


def test_a_killed_reader_leaves_the_program_and_what_it_has_copied(kernel: Place) -> None:
    kernel.write(
        main=READER
        + """
for _ in range(3000): os.getpgid(0)
it = reader()
before = looks(it)
while looks(it) < before + 5: time.sleep(0.01)  # it has waited for something to copy again and again
os.kill(it, signal.SIGKILL)
while reader(): time.sleep(0.01)
for _ in range(3000): os.getpgid(0)
print("goes on"); sys.exit(4)
"""
    )
    ended = kernel.voirkit("main.py")
    assert (ended.code, ended.out) == (4, "goes on\n"), ended.err
    assert "kernel ended before the run did (it was killed" in ended.err
    found = document(kernel)
    assert count(found["phases"], "other", PGID) == 3000
    assert "killed" in found["cut"]
    assert not instances(kernel)


def test_what_a_killed_reader_of_a_killed_program_leaves_is_removed_by_the_next_run_and_nothing_of_others(
    kernel: Place,
) -> None:
    kernel.write(
        main=READER + "os.kill(reader(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)\n",
        next="print('done')\n",
    )
    others = [INSTANCES / "somebody", INSTANCES / "voirkit-of-somebody"]
    try:
        for other in others:
            other.mkdir()
        assert kernel.voirkit("main.py").code == -signal.SIGKILL
        (left,) = instances(kernel)
        assert kernel.voirkit("--force", "next.py").code == 0
        assert not (INSTANCES / left).exists()
        assert all(other.exists() for other in others)
    finally:
        for other in others:
            other.rmdir()


@pytest.mark.slow
def test_calls_for_which_the_kernel_had_no_room_are_said(kernel: Place) -> None:
    kernel.write(
        main=READER
        + """
it = reader()
os.kill(it, signal.SIGSTOP)
for _ in range(300_000): os.getpgid(0)
os.kill(it, signal.SIGCONT)
print("done")
"""
    )
    ended = kernel.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n"), ended.err
    found = document(kernel)
    assert found["lost"] > 0
    assert 0 < count(found["phases"], "other", PGID) < 300_000
    assert f"the kernel had no room for {found['lost']:,} events" in ended.err


@pytest.mark.usefixtures("kernel_traces", "strace_traces")
def test_where_tracefs_is_not_mounted_it_says_how_to_mount_it_and_takes_the_next_best(
    place: Place,
) -> None:
    place.write(main="import os\nfor _ in range(20): os.getpgid(0)\n")
    command = f"umount -l /sys/kernel/tracing /sys/kernel/debug/tracing 2>/dev/null; umount -l /sys/kernel/debug 2>/dev/null; exec {sys.executable} -m voirkit --run-dir run --syscalls main.py"
    ended = place.run("unshare", "-m", "sh", "-c", command)
    assert ended.code == 0, ended.err
    assert "tracefs is not mounted" in ended.err
    assert "mount -t tracefs none /sys/kernel/tracing" in ended.err
    found = document(place)
    assert (found["tool"], count(found["phases"], "other", PGID)) == ("strace", 20)


@pytest.mark.usefixtures("kernel_traces", "strace_traces")
def test_without_proc_as_after_a_chroot_the_next_best_is_taken(place: Place) -> None:
    place.write(main="import os, sys\nfor _ in range(20): os.getpgid(0)\nsys.exit(9)\n")
    command = f"umount -l /proc; exec {sys.executable} -m voirkit --run-dir run --force"
    ended = place.run("unshare", "-m", "sh", "-c", f"{command} --syscalls main.py")
    assert ended.code == 9, ended.err
    assert "kernel: there is no /proc here" in ended.err
    assert "mount -t proc none /proc" in ended.err
    found = document(place)
    assert (found["tool"], count(found["phases"], "other", PGID)) == ("strace", 20)
    assert "those that begin later" in found["trusted"]["threads"]
    assert found["cost"]["tracer_s"] is None
    counters = place.run("unshare", "-m", "sh", "-c", f"{command} --syscalls=counters main.py")
    assert counters.code == 9, counters.err
    assert (
        "--syscalls: counters: no process is told here what it has read and written" in counters.err
    )
    assert document(place) is None


@pytest.mark.usefixtures("strace_traces")
@pytest.mark.parametrize("flags", [["--user", "--map-root-user", "--pid"], ["--pid"]])
def test_in_a_container_it_says_why_and_takes_the_next_best(place: Place, flags: list[str]) -> None:
    if subprocess.run(
        ["unshare", *flags, "--fork", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("no container can be made here")
    place.write(main="import os, sys\nfor _ in range(20): os.getpgid(0)\nsys.exit(9)\n")
    container = ["unshare", *flags, "--fork", "--mount-proc"]
    beside_init = place.run(
        *container,
        "sh",
        "-c",
        f"{sys.executable} -m voirkit --run-dir run --syscalls main.py; exit $?",
    )
    assert beside_init.code == 9, beside_init.err
    assert "this process is in a container" in beside_init.err
    found = document(place)
    assert (found["tool"], count(found["phases"], "other", PGID)) == ("strace", 20)
    # As the first process of a container it is the parent of all that has none: a tracer beside it would be its child.
    as_init = place.run(
        *container,
        sys.executable,
        "-m",
        "voirkit",
        "--force",
        "--run-dir",
        "run",
        "--syscalls",
        "main.py",
    )
    assert as_init.code == 9, as_init.err
    assert "docker run --init" in as_init.err
    assert document(place)["tool"] == "counters"


@pytest.mark.usefixtures("strace_traces")
def test_a_refused_attach_leaves_the_counters(place: Place) -> None:
    place.write(
        main=PLANTED,
        refuse=textwrap.dedent("""
        import ctypes, os, runpy, sys
        sys.argv[:] = ["voirkit", *sys.argv[1:]]
        libc = ctypes.CDLL(None, use_errno=True)
        # A filter of system calls as containers have it: ptrace is refused to this process and to all that it starts.
        class Filter(ctypes.Structure):
            _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
        class Program(ctypes.Structure):
            _fields_ = [("n", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
        ptrace = {"x86_64": 101, "aarch64": 117}[os.uname().machine]
        filters = (Filter * 4)((0x20, 0, 0, 0), (0x15, 0, 1, ptrace), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000))
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.byref(Program(4, filters)), 0, 0) == 0
        runpy.run_module("voirkit", run_name="__main__")
    """),
    )
    ended = place.run(
        sys.executable,
        "refuse.py",
        "--run-dir",
        "run",
        "--syscalls=full",
        "main.py",
        "0",
        env={"PATH": os.environ["PATH"]},
    )
    assert ended.code == 7, ended.err
    assert "--syscalls: strace: it may not attach to the process" in ended.err
    assert "--cap-add SYS_PTRACE" in ended.err
    assert document(place)["tool"] in ("kernel", "counters")


def test_two_that_ask_at_once_for_the_counts_of_a_killed_run_have_the_same(kernel: Place) -> None:
    kernel.write(
        main="import os, signal\nfor _ in range(5000): os.getpgid(0)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert kernel.voirkit("main.py").code == -signal.SIGKILL
    command = [sys.executable, "-m", "voirkit", "report", "--json", "run"]
    asking = [
        subprocess.Popen(command, cwd=kernel.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for one in asking:
        out, err = one.communicate(timeout=100)
        assert count(json.loads(out)["syscalls"]["phases"], "other", PGID) == 5000, err
    assert not list((kernel.folder / "run" / "syscalls").glob("*.lock"))


RANKS = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    for _ in range(1000 + dist.get_rank()):  # among the most, which have names over time
        os.getpgid(0)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["kernel", "strace"])
def test_ranks_that_share_a_run_are_counted_together(
    request: pytest.FixtureRequest, place: Place, tool: str
) -> None:
    request.getfixturevalue(f"{tool}_traces")
    use(place, tool)
    place.write(main=RANKS)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "main.py",
    ]
    ended = place.run(*launch, timeout=250)
    assert ended.code == 0, ended.err
    until = time.monotonic() + 240
    while not (found := document(place)) and time.monotonic() < until:
        time.sleep(0.1)
    assert sum(count(found["phases"], phase, PGID) for phase in found["phases"]) == 5 * (
        1000 + 1001
    )
    assert found["totals"]["forward"]["entered"] == 10
    assert sum(found["over_time"]["calls"][PGID]) == 5 * (1000 + 1001)


def test_a_program_that_becomes_another_user_is_counted_and_nothing_is_raised(
    kernel: Place,
) -> None:
    kernel.write(main="import os\nos.setuid(65534)\nfor _ in range(50):\n    os.getpgid(0)\n")
    ended = kernel.voirkit("main.py")
    assert ended.code == 0
    assert "PermissionError" not in ended.err
    assert "raised" not in ended.err
    shown = kernel.run(sys.executable, "-m", "voirkit", "report", "--json", "run")
    assert json.loads(shown.out)["syscalls"]["threads"]["main"]["other"]["getpgid"]["calls"] == 50


def test_counts_that_are_damaged_and_can_not_be_made_again_are_not_shown_as_none(
    kernel: Place,
) -> None:
    kernel.write(main="import os\nos.getpgid(0)\n")
    kernel.voirkit("main.py")
    (counts,) = (kernel.folder / "run" / "syscalls").glob("*.counts.json")
    before = json.loads(counts.read_text())["phases"]
    counts.write_text(counts.read_text()[:100])
    shown = kernel.run(sys.executable, "-m", "voirkit", "report", "--json", "run")
    found = json.loads(shown.out)
    assert found["syscalls"]["phases"] == before  # as the summary has them
    assert any("counts that were kept are damaged" in warning for warning in found["warnings"])
