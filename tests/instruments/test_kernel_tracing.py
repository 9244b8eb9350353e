"""The tests of the kernel's own tracing have it mounted for themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from syscall_runs import INSTANCES, tracefs_mounted


def test_tracefs_is_mounted_for_a_test_and_what_it_starts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mounts = Path("/proc/thread-self/mounts")
    before, root = mounts.read_text(), os.stat("/")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as beside:
        try:
            with tracefs_mounted():
                assert INSTANCES.exists()
                assert Path.cwd() == tmp_path
                started = subprocess.run(
                    [sys.executable, "-c", f"import os; os.listdir({str(INSTANCES)!r})"],
                    check=False,
                )
                assert started.returncode == 0
                assert Path(f"/proc/{beside.pid}/mounts").read_text() == before
        except OSError as exc:
            pytest.skip(f"tracefs cannot be mounted by the tests: {exc.strerror}")
        finally:
            beside.communicate(b"\n")
    assert (mounts.read_text(), Path.cwd()) == (before, tmp_path)
    assert os.path.samestat(os.stat("/"), root)
