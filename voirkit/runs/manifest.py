"""The manifest of a run, ``run.json``: its command, machine, versions, rank, times and outcome."""

from __future__ import annotations

import os
import sys
import time

from voirkit.fork import job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1


def create(
    version: str, command: list[str], options: list[str], folder: str, begun_ns: int | None = None
) -> dict[str, Any]:
    """Return the manifest of a run that starts now.

    ``clocks`` relates this process's ``time.perf_counter_ns`` to the wall clock: both are read at
    the same moment. ``moments`` are times of ``time.perf_counter_ns``: the start of the run, and
    the start of the script's first line, which is about now. The end of the script and its time in
    imports are added later.

    Args:
        version: The version of voirkit.
        command: The command line of the script.
        options: The options given to voirkit.
        folder: The current folder of the run.
        begun_ns: The time of ``time.perf_counter_ns`` at which the run began; None for now.
    """
    rank, size = rank_and_world_size()
    host, platform = machine()
    revision = git_revision(folder)
    perf, wall = time.perf_counter_ns(), time.time_ns()
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall / 1e9))
    python_version, _, _ = sys.version.partition(" ")
    return {
        "schema": SCHEMA,
        "voirkit": version,
        "command": command,
        "voirkit_options": options,
        "cwd": folder,
        "python": {"version": python_version, "executable": sys.executable},
        "git_revision": revision,
        "host": host,
        "platform": platform,
        "cpus": usable_cpus(),
        "pid": os.getpid(),
        "rank": rank,
        "world_size": size,
        "job": job(),
        "restart": restart(),
        "started": started,
        "clocks": {"perf_counter_ns": perf, "time_ns": wall},
        "moments": {"begun_ns": perf if begun_ns is None else begun_ns, "script_ns": perf},
        "ended": "running",
        "exit_code": None,
    }


def machine() -> tuple[str, str]:
    """Return (host name, platform) of this machine."""
    if sys.platform == "win32":
        import platform

        return platform.node(), platform.platform()
    name = os.uname()  # avoids importing platform, which takes 4 ms
    return name.nodename, f"{name.sysname}-{name.release}-{name.machine}"


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use: those in its CPU affinity mask, limited
    by the container's CPU quota, rounded up."""
    has_affinity = hasattr(os, "sched_getaffinity")
    bound = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    # the quota files of cgroup v2 and v1
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            quota, *period = _read(path).split()
            if quota in ("max", "-1"):
                return bound
            period_us = int(period[0] if period else _read(path.replace("quota", "period")))
            return max(1, min(bound, -(-int(quota) // period_us)))
        except (OSError, ValueError):
            continue
    return bound


def git_revision(folder: str) -> str | None:
    """Return the hash of the commit checked out in the repository that contains a folder; None
    without a repository or if it cannot be read. Reads ``.git`` directly, since starting git takes
    5 ms."""
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    try:
        git = common = os.path.join(folder, ".git")
        if os.path.isfile(git):  # in a worktree, .git is a file that names the git directory
            git = common = os.path.join(folder, _read(git).removeprefix("gitdir:").strip())
        head = _read(os.path.join(git, "HEAD"))
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        common_file = os.path.join(git, "commondir")
        if os.path.exists(common_file):
            common = os.path.join(git, _read(common_file))
        for place in (git, common):
            reference = os.path.join(place, name)
            if os.path.exists(reference):
                return _read(reference)
        packed = _read(os.path.join(common, "packed-refs")).splitlines()
        return next((line.split()[0] for line in packed if line.endswith(" " + name)), None)
    except OSError:
        return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


# Environment variables with (rank, world size) that launchers set: torchrun and launchers with the
# same names; Slurm; Open MPI; MPICH and Intel MPI.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rank_and_world_size() -> tuple[int, int]:
    """Return (rank, world size) of this process; (0, 1) if no launcher has set them."""
    for rank_name, size_name in _NAMES:
        try:
            rank, size = int(os.environ[rank_name]), int(os.environ[size_name])
        except (KeyError, ValueError):
            continue
        if 0 <= rank < size:
            return rank, size
    return 0, 1


def attempts(before: dict[str, Any] | None) -> list[dict[str, int]]:
    """Return the earlier attempts of a job that torchrun restarts: ``pid`` and ``begun_ns`` of
    rank 0 in each.

    Args:
        before: The manifest of the previous attempt; None if there was no attempt before this one.
    """
    if before is None or not restart():
        return []
    earlier = list(before.get("attempts") or ())
    moments = before.get("moments") or {}
    is_here = before.get("host") == machine()[0]
    if is_here and "begun_ns" in moments and restart() > before.get("restart", 0):
        earlier.append({"pid": before["pid"], "begun_ns": moments["begun_ns"]})
    return earlier


def restart() -> int:
    """Return how many times torchrun has restarted the ranks of this job; 0 without torchrun."""
    try:
        return int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    except (KeyError, ValueError):
        return 0
