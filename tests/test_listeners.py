"""Nobody but this machine, and of it nobody but this user, reaches what a run opens: sockets, files, folders."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import CLEAN, Place, free_port

from voirkit.probes.exchange import is_of_this_user
from voirkit_instruments.monitor import address

pytestmark = pytest.mark.long

# What listens, or takes datagrams, on which address: in the script's process, and in all that was started in its folder. What watches a
# program is not a child of it.
LISTENING = """
import json, os, psutil, time
def bound():
    found = []
    for one in psutil.process_iter():
        try:
            for c in getattr(one, "net_connections", None)(kind="inet") if one.cwd() == os.getcwd() else ():
                if c.status == "LISTEN" or (not c.raddr and c.laddr):
                    found.append([one.pid == os.getpid(), c.laddr.ip, c.laddr.port])
        except psutil.Error:
            pass  # it has ended
    return found
import voirkit
for i in range(3):
    voirkit.give(step=i, loss=1.0)
    print(json.dumps(bound()), flush=True)
"""
EVERYTHING = (
    "--monitor",
    "--dash",
    "--display",
    "--loader",
    "--checks",
    "--parameters",
    "--calls",
    "--flame",
    "--syscalls",
    "--log",
    "*",
    "--html",
)


def listening(place: Place, *options: str) -> list[list[object]]:
    place.write(main=LISTENING)
    done = place.voirkit("--force", "--run-dir", "run", *options, "main.py")
    found: list[list[object]] = json.loads(done.out.splitlines()[2])
    return found


def test_a_run_with_every_flag_listens_nowhere(place: Place) -> None:
    pytest.importorskip("torch")  # --calls records its functions
    assert listening(place, *EVERYTHING) == []


def test_prometheus_listens_on_the_loopback_in_a_process_of_its_own_unless_told(
    place: Place,
) -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    assert listening(place, "--monitor", "--prometheus", str(port)) == [[False, "127.0.0.1", port]]
    assert listening(place, "--monitor", "--prometheus", f"0.0.0.0:{port}") == [
        [False, "0.0.0.0", port]
    ]


@pytest.mark.parametrize(
    ("text", "host"), [("9090", "127.0.0.1"), ("0.0.0.0:9090", "0.0.0.0"), ("[::1]:9090", "::1")]
)
def test_the_address_is_the_loopback_unless_a_host_is_given(text: str, host: str) -> None:
    assert address(text) == (host, 9090)


def test_a_client_of_a_dask_cluster_listens_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--no-show",
    ]
    scheduler = subprocess.Popen(
        [*command, "--scheduler-file", str(file)],
        cwd=tmp_path,
        env=CLEAN,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert scheduler.stderr is not None
        while not (file.exists() and file.read_text().endswith("}")):
            assert scheduler.poll() is None
        code = (
            "import psutil, sys\nfrom distributed import Client\n"
            "with Client(sys.argv[1], timeout=30, set_as_default=False):\n"
            "    own = psutil.Process()\n"
            "    print([c.laddr for c in getattr(own, 'net_connections', own.connections)(kind='inet') if c.status == 'LISTEN'])"
        )
        client = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            code,
            json.loads(file.read_text())["address"],
        ]
        assert (
            subprocess.run(
                client, env=CLEAN, capture_output=True, text=True, timeout=120, check=True
            ).stdout
            == "[]\n"
        )
    finally:
        scheduler.kill()
        scheduler.communicate()


def test_files_of_a_run_follow_the_umask_and_nothing_can_be_written_by_others(place: Place) -> None:
    place.write(
        main="import os, voirkit\nvoirkit.give(loss=1.0)\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
    )
    for umask, others in ((0o022, 0o022), (0o077, 0o077)):
        before = os.umask(umask)
        try:
            done = place.voirkit(
                "--force", "--run-dir", f"run-{umask}", "--log", "*", "--flame", "--html", "main.py"
            )
        finally:
            os.umask(before)
        assert done.code == 0
        made = [place.folder / f"run-{umask}", *(place.folder / f"run-{umask}").rglob("*")]
        assert len(made) > 4
        assert {
            str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & others
        } == {}
        assert all(
            stat.S_ISREG(path.stat().st_mode) or stat.S_ISDIR(path.stat().st_mode) for path in made
        )


def test_no_temporary_file_has_a_name_that_others_can_guess(place: Place, tmp_path: Path) -> None:
    """What a report puts into a folder of everybody's is new there: a file that waits for it under its name is left alone."""
    place.write(main="print('ran')\n")
    place.voirkit("--run-dir", "run", "main.py")
    code = (
        "import os, sys, tempfile\nfrom voirkit.cli import main\n"
        "planted = [os.path.join(tempfile.gettempdir(), f'.voirkit-{os.getpid()}-{n}.tmp') for n in range(20)]\n"
        "for path in planted:\n    os.symlink('precious', path)\n"
        "open(os.path.join(tempfile.gettempdir(), 'precious'), 'w').write('precious')\n"
        "code = main(['export', 'run', '--format', 'csv', '-o', '-'])\n"
        "assert open(os.path.join(tempfile.gettempdir(), 'precious')).read() == 'precious'\n"
        "assert all(os.path.islink(path) for path in planted)\n"
        "sys.exit(code)\n"
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    done = place.run(sys.executable, "-c", code, env={**CLEAN, "TMPDIR": str(shared)})
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("start_ns,")


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="such sockets are Linux's")
def test_another_users_process_is_not_spoken_to(place: Place) -> None:
    if os.geteuid():
        pytest.skip("only root gives files to others")
    address = b"\0voirkit-test-" + os.urandom(8).hex().encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        for uid, wanted in ((0, True), (12_345, False)):
            code = f"import os, socket; os.setuid({uid}); s = socket.socket(socket.AF_UNIX); s.connect({address!r}); s.recv(1)"
            other = subprocess.Popen([sys.executable, "-c", code], env=CLEAN)
            connection, _ = listener.accept()
            listener_of_root = is_of_this_user(connection)
            connection.close()
            assert other.wait(60) == 0
            assert listener_of_root is wanted


def test_psutil_sees_what_listens() -> None:
    """The tests above would pass if it saw nothing."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        own = psutil.Process()
        assert any(c.status == "LISTEN" for c in getattr(own, "net_connections", None)(kind="inet"))
