"""How long the main thread spends importing modules, or waits for another that does."""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from importlib import _bootstrap
from pathlib import Path

import pytest

from voirkit.runner import recording

GO_ON = "planted_event"  # an attribute of sys
GET_LOCK = _bootstrap._get_module_lock  # type: ignore[attr-defined]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path``; all imports are timed, however short."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(recording, "LEAST_IMPORT_NS", 0)
    before = set(sys.modules)
    recording.time_imports()
    yield tmp_path
    recording.end_imports()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def timed() -> list[str]:
    return [module for module, _, _ in recording._kept]  # what is recorded later, if anything is


def test_an_import_is_timed_once_with_what_it_imports(modules: Path) -> None:
    (modules / "planted_outer.py").write_text("import planted_inner\n")
    (modules / "planted_inner.py").write_text("")
    importlib.import_module("planted_outer")
    if (
        sys.version_info >= (3, 11)
    ):  # python 3.10 takes the lock for what is there already, too; that is shorter than what is kept
        importlib.import_module("planted_outer")
    assert timed() == ["planted_outer"]
    assert recording.end_imports() > 0


def test_an_import_that_fails_is_timed_and_its_traceback_is_as_ever(modules: Path) -> None:
    (modules / "planted_broken.py").write_text("1 / 0\n")

    def told() -> list[str]:
        with pytest.raises(ZeroDivisionError) as caught:
            import planted_broken  # type: ignore[import-not-found]  # noqa: F401
        return [
            f"{frame.name} {frame.filename}:{frame.lineno}"
            for frame in traceback.extract_tb(caught.value.__traceback__)
        ]

    under = told()
    assert timed() == ["planted_broken"]
    recording.end_imports()
    assert told() == under


def test_imports_inside_of_an_import_go_on_as_ever(modules: Path) -> None:
    (modules / "planted_looks.py").write_text(
        "from importlib import _bootstrap\nget_lock = _bootstrap._get_module_lock\n"
    )
    assert importlib.import_module("planted_looks").get_lock is GET_LOCK
    assert _bootstrap._get_module_lock is not GET_LOCK  # type: ignore[attr-defined]


def in_a_thread(module: str) -> threading.Thread:
    thread = threading.Thread(target=importlib.import_module, args=(module,))
    thread.start()
    return thread


def test_an_import_of_another_thread_that_the_main_thread_waits_for_is_timed_once(
    modules: Path,
) -> None:
    go_on = threading.Event()
    (modules / "planted_thread.py").write_text("import planted_in_thread\n")
    (modules / "planted_in_thread.py").write_text(f"import sys\nsys.{GO_ON}.wait()\n")
    setattr(sys, GO_ON, go_on)
    thread = in_a_thread("planted_thread")
    threading.Timer(0.05, go_on.set).start()
    thread.join()
    delattr(sys, GO_ON)
    assert timed() == ["planted_thread"]
    assert recording.end_imports() > 20_000_000


def test_an_import_of_another_thread_that_the_main_thread_does_not_wait_for_is_not_timed(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = _thread.allocate_lock()  # no event: to set one, the main thread would be in threading
    go_on.acquire()
    imported: list[bool] = []
    monkeypatch.setattr(sys, GO_ON, go_on, raising=False)
    (modules / "planted_thread.py").write_text(f"import sys\nsys.{GO_ON}.acquire()\n")

    def work() -> None:
        importlib.import_module("planted_thread")
        imported.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    go_on.release()
    while not imported:  # the main thread is in no function of threading
        os.sched_yield()
    assert timed() == []
    thread.join()


def test_in_a_forked_process_no_clock_of_another_thread_is_asked_for(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording._times, "thread_pid", os.getpid() + 1)
    monkeypatch.setattr(recording, "_main_cpu_ns", lambda: pytest.fail("it is"))
    (modules / "planted_thread.py").write_text("")
    in_a_thread("planted_thread").join()
    assert timed() == []


def test_two_threads_that_import_each_others_module_are_timed_all_the_same(modules: Path) -> None:
    (modules / "planted_a.py").write_text(
        "import planted_gates, time\nplanted_gates.both.wait(60)\nimport planted_b\n"
    )
    (modules / "planted_b.py").write_text(
        "import planted_gates, time\nplanted_gates.both.wait(60)\nimport planted_a\n"
    )
    (modules / "planted_gates.py").write_text("import threading\nboth = threading.Barrier(2)\n")
    importlib.import_module("planted_gates")
    thread = threading.Thread(target=importlib.import_module, args=("planted_b",))
    began_ns = time.perf_counter_ns()
    thread.start()
    importlib.import_module("planted_a")
    thread.join()
    own = [
        module for module in timed() if module != "planted_b"
    ]  # of which the main thread waits for the end, if it comes last
    assert own == ["planted_gates", "planted_a"]
    assert (
        sum(end_ns - begin_ns for _, begin_ns, end_ns in recording._kept[1:])
        <= time.perf_counter_ns() - began_ns
    )


def test_afterwards_all_is_as_it_was(modules: Path) -> None:
    recording.end_imports()
    assert _bootstrap._get_module_lock is GET_LOCK  # type: ignore[attr-defined]
    (modules / "planted_late.py").write_text("")
    importlib.import_module("planted_late")
    assert timed() == []


def test_what_is_short_is_not_kept(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LEAST_IMPORT_NS", 10**12)
    (modules / "planted_short.py").write_text("")
    importlib.import_module("planted_short")
    assert timed() == []


def test_imports_of_voirkits_own_are_not_the_programs(modules: Path) -> None:
    (modules / "voirkit_planted").mkdir()
    (modules / "voirkit_planted" / "ai.py").write_text("")
    importlib.import_module("voirkit_planted.ai")
    assert timed() == []


class Recorder:
    """What is recorded of imports."""

    def __init__(self) -> None:
        self.spans: list[str] = []

    def is_recording(self) -> bool:
        return True

    def name(self, *_: object, **__: object) -> int:
        return 1

    def arguments(self, mapping: dict[str, str]) -> str:
        return mapping["module"]

    def span(self, _name: int, begun: int, ended: int, module: str) -> None:
        assert begun < ended
        self.spans.append(module)


def test_imports_are_recorded_from_when_something_else_is(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "voirkit.trace.recorder", recorder)  # type: ignore[arg-type]
    for name in ("planted_first", "planted_second"):
        (modules / f"{name}.py").write_text("")
    importlib.import_module("planted_first")
    assert recorder.spans == []
    recording.record_imports()
    importlib.import_module("planted_second")
    assert recorder.spans == ["planted_first", "planted_second"]
    assert timed() == []
    assert recording.end_imports() > 0
