"""What was written for voir runs where voir is not installed."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from conftest import Place

from voirkit_instruments import voir_names
from voirkit_instruments.monitor import record_gpus as gpu_info
from voirkit_instruments.monitor import record_processes as system_readings

MILABENCH = """
import os
from dataclasses import dataclass

from voir import configurable
from voir.helpers import current_overseer
from voir.instruments import dash, early_stop, gpu_monitor, log, monitor_all, rate
from voir.instruments.cpu import cpu_monitor, process_monitor
from voir.instruments.gpu import get_gpu_info, select_backend
from voir.instruments.io import io_monitor
from voir.instruments.monitor import monitor
from voir.instruments.network import network_monitor
from voir.instruments.utils import monitor as generic_monitor
from voir.overseer import Overseer
from voir.phase import StopProgram
from voir.proc import LogEntry, Multiplexer, run
from voir.smuggle import SmuggleWriter
from voir.tools import instrument_definition

@dataclass
class Config:
    dash: bool = False
    interval: str = "1s"
    stop: int = 2

@instrument_definition
def readings(ov, poll_interval):
    return monitor(ov, poll_interval=poll_interval, cpudata=cpu_monitor(), process=process_monitor(os.getpid()),
                   worker_init=lambda: select_backend(None, force=True))

@configurable
def instrument_main(ov, options: Config):
    yield ov.phases.init
    ov.require(log("value", "cpudata", "process", context="task"), readings(0.01),
               early_stop(n=options.stop, key="rate", task="train", signal="stop"))
    yield ov.phases.load_script
    assert current_overseer.get() is ov
    yield ov.phases.run_script
    print(options.stop, get_gpu_info())
"""


def test_a_voirfile_of_milabenchs_kind_runs_unchanged(place: Place) -> None:
    place.write(main="import time, voir\nvoir.give(value=3)\ntime.sleep(0.1)\n", voirfile=MILABENCH)
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "2 {'arch': 'cpu', 'gpus': {}}\n")
    log = "".join(path.read_text() for path in (place.folder / "run" / "stream").glob("*.jsonl"))
    assert '{"value": 3}' in log
    assert "cpudata" in log
    assert "mem" in log


def test_a_voirfile_of_milabenchs_documentation_gives_the_scripts_arguments(place: Place) -> None:
    place.write(
        {
            "main.py": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\nparser.parse_args()\n",
            "voirfile.py": "from milabench.opt import instrument_argparse\n",
        }
    )
    ended = place.voirkit("main.py", "--lr", "2")
    assert (ended.code, ended.summary["options"], ended.summary["warnings"]) == (0, {"lr": 2.0}, [])


def test_a_process_that_is_started_anew_imports_voir_too(place: Place) -> None:
    place.write(
        main="""
        import multiprocessing
        import voir

        def work():
            print(voir.__version__)

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
        """
    )
    assert place.voirkit("main.py").out == f"{voir_names.VERSION}\n"


def test_a_name_that_voir_does_not_have_is_an_import_error(place: Place) -> None:
    place.write(main="from voir.instruments import no_such_name\n")
    assert "cannot import name 'no_such_name'" in place.voirkit("main.py").err


def test_every_name_of_the_table_is_there() -> None:
    from importlib import import_module

    for homes in voir_names.MODULES.values():
        for name, home in {}.items() if isinstance(homes, str) else homes.items():
            module, _, attribute = home.partition(":")
            assert hasattr(import_module(module), attribute or name), name


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_info, "DEVICESMI", None)


class Mock:
    """A back end that a harness brings."""

    arch, visible_devices = "mock", "1"

    def get_gpus_info(self, selection: Any = None) -> dict[int, Any]:
        gpu = {
            "memory": {"used": 1, "total": 4},
            "utilization": {"compute": 0.5},
            "temperature": 30,
            "power": 90,
        }
        return {i: {"device": i, **gpu} for i in (0, 1) if selection is None or str(i) in selection}

    def close(self) -> None:
        pass


def test_a_back_end_may_be_added_and_is_found_by_its_gpus(
    monkeypatch: pytest.MonkeyPatch, no_backend: None
) -> None:
    class Backend:
        DeviceSMI = Mock

        def is_installed(self) -> bool:
            return True

    monkeypatch.setitem(gpu_info.BACKENDS, "mock", Backend())  # type: ignore[arg-type]
    assert gpu_info.deduce_backend() == "mock"
    assert gpu_info.get_gpu_info()["gpus"].keys() == {1}
    assert gpu_info.get_gpu_info(visible=False)["gpus"].keys() == {0, 1}
    assert gpu_info.gpu_monitor()() == {
        1: {"memory": [1, 4], "load": 0.5, "temperature": 30, "power": 90}
    }


def test_a_back_end_that_is_not_there_is_refused_with_those_that_are(no_backend: None) -> None:
    with pytest.raises(gpu_info.NotAvailable, match="rocm is not installed; known are cpu, cuda"):
        gpu_info.select_backend("rocm")


def test_a_process_and_what_is_below_it_are_read() -> None:
    read = system_readings.process_monitor(os.getpid())()
    assert read["pid"] == os.getpid()
    assert 0 < read["memory"][0] < read["memory"][1]


def test_disks_and_network_are_read_in_all_and_one_by_one() -> None:
    assert all(type(value) is int for value in system_readings.network_monitor()().values())
    assert all(
        "bytes_sent" in nic for nic in system_readings.network_monitor(pernic=True)().values()
    )
    assert all(
        isinstance(disk, dict) for disk in system_readings.io_monitor(perdisk=True)().values()
    )


def test_what_is_repeated_goes_on_until_it_is_stopped() -> None:
    pushed: list[int] = []
    twice = threading.Event()

    def push(value: int) -> None:
        pushed.append(value)
        if len(pushed) == 2:
            twice.set()

    monitor = system_readings.repeat(0.001, lambda: 7, push, process=True)
    monitor.start()
    assert twice.wait(10)
    monitor.stop()
    n = len(pushed)
    assert pushed == [7] * n
