"""What the tests share: programs are written into a folder of their own and run by real interpreters."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest_plugins = ["expected_skips", "left_processes"]

CLEAN = {
    k: v
    for k, v in os.environ.items()
    if k not in ("DATA_FD", "VOIRFILE", "COLUMNS", "PYTHONPATH") and not k.startswith("VOIRKIT")
}


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background jobs ignore Ctrl-C, and so would all that is run from the tests
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The summary in the run directory ``run``."""
        found: dict[str, Any] = json.loads((self.folder / "run" / "summary.json").read_text())
        return found

    @property
    def log(self) -> list[Any]:
        """The log stream in the run directory ``run``."""
        lines = [
            line
            for file in sorted((self.folder / "run" / "stream").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        return [json.loads(line) for line in lines]


class Place:
    """A folder with programs in it, and ways to run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, files: Mapping[str, str] | None = None, **modules: str) -> Place:
        """Write files by their names; ``main="..."`` is ``main.py``."""
        for name, text in {
            **(files or {}),
            **{f"{name}.py": text for name, text in modules.items()},
        }.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return self

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout: float = 280,
        **options: Any,
    ) -> Ended:
        """Run a command in the folder. Where it takes too long it is killed with all that it has started."""
        from left_processes import (
            kill_with_children,
            of_fixtures,
            starting,
        )  # pytest loads it after this file

        with starting:
            process = subprocess.Popen(
                command, cwd=self.folder / cwd, env={**CLEAN, "OMP_NUM_THREADS": "1", **(env or {})}, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, stdin=options.pop("stdin", subprocess.DEVNULL), text=True, errors="replace", **options,
            )  # fmt: skip
            if threading.current_thread() is not threading.main_thread():
                of_fixtures.add(process.pid)
        with process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:  # the limit of the test is one
                kill_with_children(process.pid)
                raise
            finally:
                of_fixtures.discard(process.pid)
        return Ended(process.returncode, out, err, self.folder)

    def python(self, *words: str, **options: Any) -> Ended:
        """Run python with these words."""
        return self.run(sys.executable, *words, **options)

    def voirkit(self, *words: str, **options: Any) -> Ended:
        """Run voirkit with these words, recording in the folder ``run``."""
        return self.run(
            sys.executable,
            "-m",
            "voirkit",
            "--run-dir",
            str(self.folder / "run"),
            *words,
            **options,
        )


@pytest.fixture(autouse=True)
def _failures_are_told_as_before() -> Iterator[None]:
    """An overseer that a test makes has the failures of streams told to it; the next test is to start afresh."""
    yield
    streams = sys.modules.get("voirkit.streams")
    if streams is not None:
        streams.report = streams.to_stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty folder to write programs into and run them."""
    return Place(tmp_path)


@pytest.fixture(params=["c", "python"])
def traced(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Programs that record, with the recorder in C and with the one in Python."""
    from tracing import Traced  # beside the tests that use it

    if request.param == "c" and importlib.util.find_spec("voirkit.trace._recorder") is None:
        pytest.skip("the C recorder is not built here")
    return Traced(tmp_path, request.param)


@pytest.fixture
def voirkit(place: Place) -> Callable[..., Ended]:
    """Run voirkit in an empty folder."""
    return place.voirkit


# For tests of annotations.


@pytest.fixture
def ai() -> Any:
    """A tree of annotations that no other test has touched."""
    import voirkit.ai as module

    return module.grow()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Annotations are recorded in this process; called, that ends, and what was recorded is returned."""
    from annotating import events

    from voirkit.ai import node
    from voirkit.trace import recorder

    node.allow(True)
    recorder.begin(str(tmp_path / "run"))

    def end() -> Any:
        recorder.end()
        return events(tmp_path / "run")

    yield end
    recorder.end()


# For tests of the steps instrument.


@pytest.fixture(params=["C", "Python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is called before and after functions of torch, in C where it was built, and in Python."""
    if request.param == "C":
        pytest.importorskip("voirkit_instruments.steps._steps")
    monkeypatch.setenv("VOIRKIT_NO_EXTENSION", "0" if request.param == "C" else "1")
    return str(request.param)


@pytest.fixture
def kept(engine: str) -> Iterator[Any]:
    """What is recorded of torch (``phases.Kept``)."""
    from phases import watched  # it needs torch

    with watched() as watch:
        yield watch.kept


# For tests of system calls.


@pytest.fixture
def kernel_traces() -> Iterator[None]:
    """Skips where the kernel's own tracing cannot be used; where only its file system is not mounted, the test has it mounted for itself."""
    from syscall_runs import kernel_tracing  # beside the tests that use it

    with kernel_tracing() as refused:
        if refused:
            pytest.skip(refused)
        yield


@pytest.fixture
def strace_traces() -> None:
    """Skips where strace cannot be used."""
    from syscall_runs import why_not_strace

    if why_not_strace():
        pytest.skip(why_not_strace())


# Tests that need torch: whole files, told by what they import. Where torch is not installed (`make matrix`) they are not collected.
_NEEDS_TORCH = re.compile(
    r"(^|\\n)\s*(import (\w+, )*torch\b|from (torch|generated_programs)\b"
    r"|(torch = )?pytest\.importorskip\(.torch)",
    re.MULTILINE,
)
HERE = Path(__file__).parent


def _needs_torch(path: Path) -> bool:
    return _NEEDS_TORCH.search(path.read_text()) is not None


collect_ignore = [
    str(path.relative_to(HERE))
    for path in HERE.rglob("test_*.py")
    if importlib.util.find_spec("torch") is None and _needs_torch(path)
]


def pytest_sessionstart(session: pytest.Session) -> None:
    skips = session.config.pluginmanager.get_plugin("skips")
    if skips is not None and "not torch" not in session.config.option.markexpr:
        for path in collect_ignore:
            skips.note("torch is not installed", path)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    for item in items:
        if _needs_torch(item.path):
            item.add_marker(pytest.mark.torch)
    yield  # here -m deselects
    if PART:
        _keep_part(config, items, PART)


# Such as 2/3: the second third of the tests that are chosen. Files stay whole where they can, so
# that what is made once for a file is made once.
PART = os.environ.get("VOIRKIT_TEST_PART", "")


def _keep_part(config: pytest.Config, items: list[pytest.Item], part: str) -> None:
    number, parts = map(int, part.split("/"))
    begin, end = (len(items) * edge // parts for edge in (number - 1, number))
    config.hook.pytest_deselected(items=[*items[:begin], *items[end:]])
    items[:] = items[begin:end]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if PART and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # a part of few tests may be empty


class Elsewhere(Executor):
    """What computes as another machine does: it gets and gives what can be pickled."""

    def map(self, function: Any, *groups: Any, **_: Any) -> Iterator[Any]:
        for words in zip(*groups, strict=True):
            there, given = pickle.loads(pickle.dumps((function, words)))
            yield pickle.loads(pickle.dumps(there(*given)))


def needs_pickler(name: str) -> None:
    """Skip where a library cannot pickle functions by value, whatever is done to them: dill 0.4.1 does not know the code of python 3.15."""
    library = pytest.importorskip(name)
    try:
        library.dumps(lambda: None)
    except AttributeError as exc:
        pytest.skip(f"{name} cannot pickle functions here: {exc}")


def module_at(path: Path) -> Any:
    """A module of a file that no package holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
