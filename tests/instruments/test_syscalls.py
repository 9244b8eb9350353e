"""``--syscalls``: real tracers on a script whose calls are known; skipped, with the reason, where a tracer cannot be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Ended, Place
from syscall_runs import PGID, PLANTED, count, document, instances, use

pytestmark = pytest.mark.long


@pytest.fixture(params=["kernel", "strace"])
def tracer(request: pytest.FixtureRequest, place: Place) -> str:
    """Each tracer that can be used here, chosen by the voirfile."""
    request.getfixturevalue(f"{request.param}_traces")
    use(place, request.param)
    return str(request.param)


@pytest.mark.parametrize("workers", [0, 2])
def test_planted_calls_are_counted_exactly_in_their_phases(
    place: Place, tracer: str, workers: int
) -> None:
    ended = place.voirkit("main.py", str(workers))
    assert ended.code == 7, ended.err
    found = document(place)
    assert found["tool"] == tracer
    counted = {phase: count(found["phases"], phase, PGID) for phase in found["phases"]}
    assert {phase: n for phase, n in counted.items() if n} == {
        "forward": 20,
        "backward": 10,
        "optimizer": 30,
        "other": 10,
    }
    assert (
        found["totals"]["forward"]["entered"]
        == found["totals"]["backward"]["entered"]
        == found["totals"]["optimizer"]["entered"]
        == 10
    )
    kinds = ["main"] if workers == 0 else ["worker 0", "worker 1"]
    for kind in kinds:
        fetch = found["threads"][kind]["fetch"]
        assert fetch["read"]["calls"] >= 2 * 40 / len(kinds)
        assert fetch["close"]["calls"] >= 40 / len(kinds)
    if workers == 0:
        assert found["threads"]["main"]["fetch"]["openat"] == {
            **found["threads"]["main"]["fetch"]["openat"],
            "calls": 40,
            "errors": 0,
            "bytes": 0,
        }
        assert found["threads"]["main"]["fetch"]["read"]["calls"] == 80
        assert found["threads"]["main"]["fetch"]["read"]["bytes"] == 240
        assert "40 files opened in fetch, 4 calls a file: 2 read, 1 close, 1 openat" in " ".join(
            ended.err.split()
        )
    assert found["own"]["calls"] > 0
    assert found["cost"]["events"] > 0


IMPORTING = """
import os

def main():
    import heavy
    os.getpgid(0)

main()
"""


def test_what_happens_while_modules_are_imported_is_a_row_of_its_own(
    place: Place, tracer: str
) -> None:
    place.write(
        main=IMPORTING,
        heavy="import os\nimport lighter\nfor _ in range(7):\n    os.getpgid(0)\n",
        lighter="import os\nos.getpgid(0)\n",
    )
    ended = place.voirkit("--syscalls", "main.py")
    assert ended.code == 0, ended.err
    found = document(place)
    assert {
        phase: n for phase in found["phases"] if (n := count(found["phases"], phase, PGID))
    } == {"import": 8, "other": 1}
    assert found["totals"]["import"]["entered"] == 1


def between_marks(log: str) -> dict[str, tuple[int, int]]:
    """By name: calls and bytes of the first process between its two marks, counted without voirkit."""
    lines = log.splitlines()
    first = next(line for line in lines if "/mark!begin" in line).split()[0]
    found: dict[str, tuple[int, int]] = {}
    inside = False
    for line in lines:
        tid, text = line.split(maxsplit=1)
        if tid == first and "/mark!" in text:
            inside = "begin" in text
        elif tid == first and inside and (called := re.match(r"(\w+)\(.*\)\s+= (-?\d+)", text)):
            calls, moved = found.get(called[1], (0, 0))
            found[called[1]] = (
                calls + 1,
                moved + (max(int(called[2]), 0) if called[1] == "read" else 0),
            )
    return found


@pytest.mark.usefixtures("strace_traces")
def test_counts_and_bytes_agree_with_an_independent_strace_of_the_same_region(
    place: Place, tracer: str
) -> None:
    plain = place.run("strace", "-f", "-o", "plain.strace", sys.executable, "main.py", "0")
    assert plain.code == 7
    wanted = between_marks((place.folder / "plain.strace").read_text())
    # The same region alone: what is around it is not in a phase of a step.
    assert place.voirkit("main.py", "0").code == 7
    found = document(place)
    for name in ("openat", "read", "close", PGID):
        phases = (
            "wait",
            "fetch",
            "forward",
            "optimizer",
            "zero_grad",
            *(("other",) if name == PGID else ()),
            *(("backward",) if name == PGID else ()),
        )
        calls = sum(count(found["phases"], phase, name) for phase in phases)
        extra = count(found["phases"], "backward", name) if name != PGID else 0
        assert wanted[name][0] - extra == calls, (name, wanted[name], found["phases"])
    assert (
        sum(
            found["phases"][phase].get("read", {"bytes": 0})["bytes"] for phase in ("wait", "fetch")
        )
        == wanted["read"][1]
    )


@pytest.mark.usefixtures("strace_traces")
def test_what_is_read_agrees_with_an_independent_strace_where_processes_count_for_themselves(
    place: Place,
) -> None:
    place.write(main=PLANTED)
    assert place.run("strace", "-f", "-o", "plain.strace", sys.executable, "main.py", "0").code == 7
    wanted = between_marks((place.folder / "plain.strace").read_text())
    assert place.voirkit("--syscalls=counters", "main.py", "0").code == 7
    found = document(place)
    read = [
        found["phases"].get(phase, {}).get("read", {"calls": 0, "bytes": 0})
        for phase in ("wait", "fetch", "forward", "optimizer")
    ]
    assert (sum(row["calls"] for row in read), sum(row["bytes"] for row in read)) == wanted["read"]


def test_the_program_is_as_without_it(place: Place, tracer: str) -> None:
    plain = place.python("main.py", "2", stdin=subprocess.PIPE)
    traced = place.voirkit("main.py", "2", stdin=subprocess.PIPE)
    assert (
        (traced.code, traced.out)
        == (plain.code, plain.out)
        == (7, f"['main.py', '2'] {os.getpid()} \n")
    )


@pytest.mark.usefixtures("strace_traces")
def test_a_call_that_takes_most_of_the_steps_is_the_first_advice(place: Place) -> None:
    script = Path(__file__).parents[2] / "examples" / "findings" / "slow_system_call.py"
    first = place.voirkit("--syscalls", str(script), "before").summary["advice"][0]
    assert (first["kind"], "recvfrom" in first["do"]) == ("slow-system-call", True)


def test_of_a_script_without_training_its_own_calls_are_counted_and_nothing_else(
    place: Place, tracer: str
) -> None:
    place.write(
        main="import os\nfor _ in range(20): os.getpgid(0)\nfor _ in range(5): os.getppid()\n"
    )
    assert place.voirkit("main.py").code == 0
    rows = document(place)["threads"]["main"]
    assert {name: row["calls"] for name, row in rows["other"].items()} == {PGID: 20, "getppid": 5}


@pytest.mark.usefixtures("kernel_traces")
def test_a_call_that_works_waits_while_it_blocks_and_works_while_it_does_not(place: Place) -> None:
    use(place, "kernel")
    place.write(
        main="""
        import socket, struct
        one, other = socket.socketpair()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        for _ in range(20):
            other.send(b"x"), one.recv(1)
        for _ in range(4):
            try:
                one.recv(1)
            except BlockingIOError:
                print("after 50 ms")
    """
    )
    assert place.voirkit("--quiet", "main.py").out == "after 50 ms\n" * 4
    found = document(place)
    received, total = found["phases"]["other"]["recvfrom"], found["totals"]["other"]
    assert (received["calls"], received["errors"], received["bytes"]) == (24, 4, 20)
    assert 0.045 < received.get("waited", 0.0) < received["seconds"], found
    assert total["waiting"]["seconds"] >= received["waited"]
    assert total["working"]["calls"] >= 44


def test_processes_that_come_and_go_are_counted_together(place: Place, tracer: str) -> None:
    place.write(
        main="""
        import os, threading
        for i in range(40):
            pid = os.fork()
            if not pid:
                thread = threading.Thread(target=lambda: os.getpgid(0))
                thread.start()
                thread.join()
                os.getpgid(0)
                os._exit(0)
            os.waitpid(pid, 0)
            os.getpgid(0)
    """
    )
    assert place.voirkit("main.py").code == 0
    threads = document(place)["threads"]
    assert threads["main"]["other"][PGID]["calls"] == 40
    assert threads["child"]["other"][PGID]["calls"] == 80
    assert threads["child"]["other"]["exit_group"]["calls"] == 40


def test_without_a_tracer_what_is_read_and_written_is_counted_by_phase(place: Place) -> None:
    place.write(main=PLANTED)
    ended = place.voirkit("--syscalls=counters", "main.py", "0")
    assert ended.code == 7
    found = document(place)
    assert found["tool"] == "counters"
    assert found["phases"]["fetch"]["read"] == {
        "calls": 80,
        "errors": None,
        "seconds": None,
        "bytes": 240,
    }
    assert "forward" not in found["phases"]
    assert found["usage"]["forward"]["entered"] == 10
    assert found["cost"]["edge_s"] > 0


def test_workers_count_for_themselves(place: Place) -> None:
    place.write(main=PLANTED)
    assert place.voirkit("--syscalls=counters", "main.py", "2").code == 7
    found = document(place)
    threads = found["threads"]
    for worker in ("worker 0", "worker 1"):
        assert found["entered"][worker]["fetch"] == 5
        assert threads[worker]["fetch"]["read"] == {
            "calls": 40,
            "errors": None,
            "seconds": None,
            "bytes": 120,
        }


def test_only_the_form_with_an_equals_sign_takes_a_value(place: Place) -> None:
    place.write(counts="import sys; print(sys.argv)\n", main="")
    ended = place.voirkit("--syscalls", "counts.py", "x")
    assert ended.code == 0
    assert ended.out == "['counts.py', 'x']\n"
    ended = place.voirkit("--force", "--syscalls=calls", "main.py")
    assert ended.code == 2
    assert "'calls' is none of full, files, counts, counters." in ended.err


# when it cannot be done


def as_another_user(place: Place, *command: str) -> Ended:
    """Run a command as nobody, who may read all files: python may be in a folder of root's."""
    for folder in (place.folder, *place.folder.parents):
        if not os.stat(folder).st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    place.folder.chmod(0o777)
    user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"]
    reads = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return place.run("setpriv", *user, *reads, *command, env={"HOME": "/tmp"})


def hidden(place: Place, *shown: str) -> dict[str, str]:
    """An environment in which programs are found only if they are named."""
    (place.folder / "bin").mkdir(exist_ok=True)
    for name in shown:
        (place.folder / "bin" / name).symlink_to(shutil.which(name) or name)
    return {"PATH": str(place.folder / "bin")}


def test_without_strace_it_says_how_to_get_it_and_counts_what_it_can(place: Place) -> None:
    use(place, "strace")
    place.write(voirfile="")
    place.write(main=PLANTED)
    ended = place.voirkit("--syscalls=full", "main.py", "0", env=hidden(place, "sh", "perf"))
    assert ended.code == 7
    assert "strace is not installed" in ended.err
    assert "apt-get install strace" in ended.err
    assert document(place)["tool"] in ("kernel", "counters")


@pytest.mark.usefixtures("strace_traces")
def test_a_tracer_that_has_the_process_already_is_told_the_phases(place: Place) -> None:
    place.write(main=PLANTED)
    command = [
        "strace",
        "-f",
        "-ttt",
        "-T",
        "-o",
        "log",
        sys.executable,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--syscalls=full",
        "main.py",
        "0",
    ]
    ended = place.run(*command)
    assert ended.code == 7, ended.err
    assert re.search(r"--syscalls: process \d+ traces this one already", ended.err), ended.err
    found = json.loads(place.run(sys.executable, "-m", "voirkit", "syscalls", "--json", "log").out)
    counted = {phase: count(found["phases"], phase, PGID) for phase in found["phases"]}
    assert {phase: n for phase, n in counted.items() if n} == {
        "forward": 20,
        "backward": 10,
        "optimizer": 30,
        "other": 10,
    }
    assert found["phases"]["before"]["openat"]["calls"] > 500


@pytest.mark.usefixtures("strace_traces")
def test_a_refused_attach_is_told_and_the_program_goes_on(place: Place) -> None:
    if os.geteuid():
        pytest.skip("only root can take a privilege away here")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    # A plain user's program that another user's privileges have made undumpable may not be attached to.
    use(place, "strace")
    place.write(
        main="import sys\nsys.exit(5)\n",
        refuse="""
        import ctypes, runpy, sys
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        sys.argv[:] = ["voirkit", *sys.argv[1:]]
        runpy.run_module("voirkit", run_name="__main__")
    """,
    )
    ended = as_another_user(place, sys.executable, "refuse.py", "--run-dir", "run", "main.py")
    assert ended.code == 5, ended.err
    assert "--syscalls: strace: it may not attach to the process" in ended.err
    assert "docker run --cap-add SYS_PTRACE" in ended.err
    assert "The run goes on without it." in ended.err


KILLED = """
import os, signal, subprocess, sys, time
import torch
def tracer():
    for line in open("/proc/self/status"):
        if line.startswith("TracerPid"):
            return int(line.split()[1])
for _ in range(200):
    os.getpgid(0)
os.kill(tracer(), signal.SIGKILL)
while tracer():
    time.sleep(0.01)
os.getpgid(0)
print(open("/etc/hostname").read() != "")
sys.exit(4)
"""


@pytest.mark.usefixtures("strace_traces")
def test_a_killed_strace_leaves_the_program_and_what_it_saw(place: Place) -> None:
    use(place, "strace", "full")
    place.write(main=KILLED)
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (4, "True\n"), ended.err
    assert "strace ended before the run did (it was killed" in ended.err
    found = document(place)
    assert 0 < count(found["phases"], "other", PGID) <= 200
    assert "killed" in found["cut"]


@pytest.mark.usefixtures("strace_traces")
def test_a_log_that_reaches_its_limit_ends_there(place: Place) -> None:
    use(place, "strace", "full")
    place.write(main="import os, torch\nfor _ in range(20000): os.getpgid(0)\nprint('done')\n")
    ended = place.voirkit("--trace-limit", "300kB", "main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "--trace-limit" in ended.err
    assert (
        sum(
            path.stat().st_size
            for path in (place.folder / "run/syscalls").iterdir()
            if path.suffix == ".strace"
        )
        <= 300_000
    )


def test_a_killed_program_is_counted_when_its_run_is_opened(place: Place, tracer: str) -> None:
    place.write(
        main="import os, signal, torch\nfor _ in range(50): os.getpgid(0)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert place.voirkit("main.py").code == -signal.SIGKILL
    shown = place.run(sys.executable, "-m", "voirkit", "report", "--json", "run")
    assert count(json.loads(shown.out)["syscalls"]["phases"], "other", PGID) == 50
    if tracer == "kernel":
        assert not instances(place)


@pytest.mark.usefixtures("strace_traces")
def test_a_plain_user_gets_straces_counts(place: Place) -> None:
    if os.geteuid():
        pytest.skip("this is a plain user already: the other tests tell")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    place.write(main=PLANTED)
    ended = as_another_user(
        place, sys.executable, "-m", "voirkit", "--run-dir", "run", "--syscalls", "main.py", "0"
    )
    assert ended.code == 7, ended.err
    found = document(place)
    assert found["tool"] == "strace"
    assert count(found["phases"], "forward", PGID) == 20
    assert "too large" in found["trusted"]["seconds"]


@pytest.mark.usefixtures("strace_traces")
def test_markers_are_sent_only_while_somebody_listens(place: Place) -> None:
    place.write(main=PLANTED)
    ended = place.run(
        "strace",
        "-f",
        "-o",
        "log",
        "-e",
        "trace=access",
        sys.executable,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "main.py",
        "0",
    )
    assert ended.code == 7
    assert "/vk!" not in (place.folder / "log").read_text()


def test_operations_of_a_loader_have_their_calls(place: Place, tracer: str) -> None:
    place.write(
        main="""
        import os, torch
        from torch.utils.data import DataLoader, Dataset
        class Look:
            def __call__(self, x):
                os.getpgid(0), os.getpgid(0)
                return x
        class Data(Dataset):
            def __init__(self):
                self.transform = Look()
            def __len__(self):
                return 12
            def __getitem__(self, i):
                os.getpgid(0)
                return self.transform(torch.ones(2))
        if __name__ == "__main__":
            for batch in DataLoader(Data(), batch_size=4, num_workers=1):
                pass
    """
    )
    assert place.voirkit("--loader", "main.py").code == 0
    found = document(place)
    assert count(found["operations"], "Look", PGID) == 24
    assert count(found["phases"], "fetch", PGID) == 36


@pytest.mark.usefixtures("strace_traces")
def test_files_are_named_and_the_log_is_kept(place: Place) -> None:
    place.write(main=PLANTED)
    assert place.voirkit("--syscalls=files", "main.py", "0").code == 7
    found = document(place)
    (data,) = (row for row in found["folders"] if Path(row["path"]).name == "data")
    assert (data["opens"], data["files"], data["read"], data["written"]) == (80, 40, 240, 240)
    (log,) = (place.folder / "run/syscalls").glob("*.strace")
    shown = place.run(sys.executable, "-m", "voirkit", "syscalls", str(log))
    assert "fetch" in shown.out


def test_workers_that_are_started_anew_tell_their_fetches_too(place: Place, tracer: str) -> None:
    place.write(
        main=PLANTED.replace(
            "num_workers=workers)", "num_workers=workers, multiprocessing_context='spawn')"
        )
    )
    ended = place.voirkit("main.py", "1")
    assert ended.code == 7, ended.err
    found = document(place)
    assert found["threads"]["worker 0"]["fetch"]["read"]["calls"] >= 80
    assert count(found["phases"], "forward", PGID) == 20


def test_what_the_loader_instrument_asks_the_system_is_not_the_programs(
    place: Place, tracer: str
) -> None:
    place.write(main=PLANTED)
    assert place.voirkit("--loader", "main.py", "0").code == 7
    fetch = document(place)["threads"]["main"]["fetch"]
    assert {name: row["calls"] for name, row in fetch.items()} == {
        "openat": 40,
        "read": 80,
        "close": 40,
    }
