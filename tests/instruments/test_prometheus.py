"""``--prometheus``: what a run's figures look like to who asks for them while it goes on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from conftest import CLEAN, Place, free_port

sys.path.insert(0, str(Path(__file__).parent.parent))
from live_training import TRAINING

from voirkit_instruments.monitor import address

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

SCRIPT = TRAINING + "Training(length=40).epoch()\nprint('trained', flush=True)\ninput()\n"


def test_a_run_is_served_while_it_goes_on_and_no_longer(place: Place) -> None:
    place.write(main=SCRIPT)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "voirkit",
        "--monitor",
        "--prometheus",
        str(port),
        "--run-dir",
        "run",
        "main.py",
    ]
    process = subprocess.Popen(
        command,
        cwd=place.folder,
        env=CLEAN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"trained\n"
        text, limit = "", time.monotonic() + 60
        while (
            "voirkit_monitor{" not in text and time.monotonic() < limit
        ):  # its first sample comes from a thread
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
    finally:
        _, err = process.communicate(b"\n")
    assert process.returncode == 0, err
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert (families["voirkit_steps"], families["voirkit_verdict_info"]) == ("counter", "gauge")
    assert "voirkit_steps_total 40.0" in text
    assert 'voirkit_phase_share{phase="wait"} 0.5' in text
    rate = text.partition('voirkit_rate_items_per_second{rate="train_rate"} ')[2].partition("\n")[0]
    assert float(rate) == pytest.approx(
        400, rel=0.01
    )  # items over time: the iterator is made in the first step
    assert 'voirkit_monitor{name="rss",units="bytes"}' in text
    assert (
        json.loads((place.folder / "run/summary.json").read_text())["monitor"]["processes"]["max"]
        == 1
    )
    assert 'voirkit_verdict_info{kind="input-bound"} 1.0' in text
    last_step_s = float(
        text.partition("\nvoirkit_last_step_timestamp_seconds ")[2].partition("\n")[0]
    )
    assert abs(last_step_s - time.time()) < 600
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_a_port_that_is_taken_is_refused_before_the_script_starts(place: Place) -> None:
    place.write(main="print('hello')")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        ended = place.voirkit("--prometheus", str(one.getsockname()[1]), "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "metrics cannot be served at this address" in ended.err
    assert not (place.folder / "run").exists()


def test_loopback_unless_a_host_is_given() -> None:
    assert address("9090") == ("127.0.0.1", 9090)
    assert address("0.0.0.0:9090") == ("0.0.0.0", 9090)
    assert address("[::1]:80") == ("::1", 80)
    for wrong in ("", "port", "0", "70000", ":80"):
        with pytest.raises(ValueError, match="no port"):
            address(wrong)
