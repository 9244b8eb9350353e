"""``--flame``: real py-spy on planted scripts, and the sampler where it cannot be; skipped, with the reason, where py-spy cannot look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from functools import cache

import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

PHASES = """
import os, threading, time
from voirkit.trace import recorder
def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(300))
def alpha(seconds):
    busy(seconds)
def beta(seconds):
    busy(seconds)
def planted(name, do, seconds=0.2):
    begun = recorder.now()
    do(seconds)
    recorder.span(recorder.name("compute", name, kind="phase"), begun, recorder.now())
"""
LOOP = "for _ in range(5):\n    planted('forward', alpha)\n    planted('backward', beta)\n"
# A run in which py-spy is not there.
WITHOUT = """
import sys
import voirkit_instruments.stacks.record_py_spy as spy
spy.program = lambda: None
from voirkit.cli import main
sys.exit(main(sys.argv[1:]))
"""


@cache
def why_not() -> str:
    """Why py-spy cannot look into a process here; empty if it can."""
    program = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    if not os.path.exists(program):
        return "py-spy is not installed"
    with subprocess.Popen(
        [sys.executable, "-c", "print('on', flush=True); input()"], stdout=-1, stdin=-1, text=True
    ) as sleeper:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        done = subprocess.run(
            [program, "dump", "--pid", str(sleeper.pid)],
            capture_output=True,
            timeout=60,
            check=False,
            text=True,
        )
        sleeper.communicate("\n")
    return done.stderr.strip()[:200] if done.returncode else ""


@pytest.fixture
def py_spy() -> None:
    """Skips where it cannot look."""
    if why_not():
        pytest.skip(why_not())


def without_py_spy(place: Place, *words: str) -> Ended:
    """A run where there is none."""
    place.write(without=WITHOUT)
    return place.python("without.py", "--run-dir", str(place.folder / "run"), *words)


def collapsed(place: Place) -> dict[str, int]:
    """The lines of the collapsed stacks."""
    lines = (place.folder / "run" / "flame" / "collapsed.txt").read_text().splitlines()
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


def share(stacks: dict[str, int], phase: str, function: str) -> float:
    """How much of a phase of the process that trains has a function on its stacks."""
    own = {
        line: n
        for line, n in stacks.items()
        if line.startswith(f"{phase};main;") and ";thread " not in line
    }
    return sum(n for line, n in own.items() if f";{function} (" in line) / sum(own.values())


@pytest.mark.usefixtures("py_spy")
def test_stacks_are_found_in_the_phase_that_they_were_in(place: Place) -> None:
    place.write(main=PHASES + LOOP + "raise SystemExit(7)\n")
    ended = place.voirkit("--flame", "main.py")
    assert ended.code == 7
    stacks = collapsed(place)
    assert share(stacks, "forward", "alpha") > 0.85
    assert share(stacks, "backward", "beta") > 0.85
    found = ended.summary["flame"]
    assert (found["tool"], found["rate_hz"], found["gil"], found["native"]) == (
        "py-spy",
        97,
        False,
        False,
    )
    assert (
        next(iter(found["phases"]["forward"]["functions"])) == f"busy ({place.folder.name}/main.py)"
    )
    where = next(
        number
        for number, line in enumerate((place.folder / "main.py").read_text().splitlines(), 1)
        if "sum(" in line
    )
    assert next(iter(found["phases"]["forward"]["lines"])) == f"{place.folder.name}/main.py:{where}"
    assert found["cost"]["tool_s"] > 0
    assert "stacks by py-spy" in ended.err
    assert not [
        name for name in os.listdir(place.folder / "run" / "flame") if name.endswith(".spy")
    ]


def test_without_py_spy_a_thread_takes_them_and_says_what_it_can_not_see(place: Place) -> None:
    place.write(main=PHASES + LOOP + "print([thread.name for thread in threading.enumerate()])\n")
    ended = without_py_spy(place, "--flame", "main.py")
    assert ended.code == 0, ended.err
    stacks = collapsed(place)
    assert share(stacks, "forward", "alpha") > 0.85
    assert share(stacks, "backward", "beta") > 0.85
    assert ended.summary["flame"]["tool"] == "sampler"
    assert "--flame: py-spy is not installed." in ended.err
    assert "of this process alone" in ended.err
    assert not [line for line in stacks if "voirkit" in line]


def test_the_thread_that_takes_stacks_counts_who_kept_the_gil_from_it(place: Place) -> None:
    place.write(
        main=PHASES + "import sys\nsys.setswitchinterval(0.1)\nalpha(1.0)\ntime.sleep(1.0)\n"
    )
    ended = without_py_spy(place, "--flame", "main.py")
    assert ended.code == 0, ended.err
    assert (
        share(collapsed(place), "before and after", "alpha") > 0.3
    )  # with a look for each time that the GIL was released: 0.1


PARTS = """
import sys, torch
def prepare():
    busy(1.0)
def score(model, x):
    busy(0.2)
    return model(x)
def log():
    busy(0.5)
prepare()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for x in torch.utils.data.DataLoader(torch.randn(20, 4), batch_size=4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        busy(0.1)
    model.eval()
    with torch.no_grad():
        for x in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4):
            score(model, x)
    log()
"""


@pytest.mark.usefixtures("py_spy")
def test_what_is_in_no_step_of_training_is_of_the_part_of_the_run_that_it_lies_in(
    place: Place,
) -> None:
    pytest.importorskip("torch")
    place.write(main=PHASES + PARTS)
    place.voirkit("--flame", "main.py")
    stacks = collapsed(place)
    for part, function in (
        ("startup", "prepare"),
        ("evaluation", "score"),
        ("between", "log"),
        ("other", "busy"),
    ):
        assert share(stacks, part, function) > 0.85


@pytest.mark.usefixtures("py_spy")
def test_forked_children_and_threads_are_followed(place: Place) -> None:
    place.write(
        main=PHASES
        + """
pid = os.fork()
if pid == 0:
    alpha(1.0)
    os._exit(0)
thread = threading.Thread(target=time.sleep, args=(1.0,), name="sleepy")
thread.start()
beta(1.2)
thread.join()
assert os.waitpid(pid, 0)[1] == 0
time.sleep(1.0)
"""
    )
    ended = place.voirkit("--flame", "main.py")
    assert ended.code == 0, ended.err
    stacks = collapsed(place)
    children = [line for line in stacks if line.startswith("child;child ")]
    assert any(";alpha (" in line for line in children)
    assert not any(";beta (" in line for line in children)
    own = {line: n for line, n in stacks.items() if line.startswith("before and after;main;")}
    slept = sum(n for line, n in own.items() if ";thread " in line)
    assert (
        0.2 < slept / (sum(own.values()) - slept) < 0.85
    )  # it is not there for as long as the run is
    kinds = {process["kind"].partition(" ")[0] for process in ended.summary["flame"]["processes"]}
    assert kinds == {"main", "child"}


@pytest.mark.slow
@pytest.mark.usefixtures("py_spy")
def test_loader_workers_are_told_apart_and_torch_s_phases_agree_with_the_stacks(
    place: Place,
) -> None:
    pytest.importorskip("torch")
    place.write(
        main="""
        import time, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 40
            def __getitem__(self, i):
                time.sleep(0.02)
                return torch.zeros(8) + i
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        """
    )
    ended = place.voirkit("--flame", "main.py")
    assert ended.code == 0, ended.err
    found = ended.summary["flame"]
    assert {process["kind"] for process in found["processes"]} >= {"main", "worker 0", "worker 1"}
    assert found["phases"]["wait"]["samples"] > 10
    assert found["phases"]["fetch"]["share"] > 0.3
    assert "__getitem__" in next(iter(found["phases"]["fetch"]["functions"]))
    assert found["clock"]["agreement"] > 0.6


@pytest.mark.usefixtures("py_spy")
def test_only_who_holds_the_gil_is_seen_with_gil(place: Place) -> None:
    place.write(
        main=PHASES
        + """
thread = threading.Thread(target=time.sleep, args=(1.0,), name="sleepy")
thread.start()
alpha(1.0)
thread.join()
"""
    )
    ended = place.voirkit("--flame", "--gil", "main.py")
    assert ended.code == 0, ended.err
    stacks = collapsed(place)
    assert any(";alpha (" in line for line in stacks)
    assert not any("sleepy" in line for line in stacks)
    assert ended.summary["flame"]["gil"] is True


@pytest.mark.usefixtures("py_spy")
def test_py_spy_killed_in_the_middle_costs_what_it_had_seen_and_nothing_else(place: Place) -> None:
    place.write(
        main=PHASES
        + """
import signal
def spies():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        except OSError:
            continue
        if "record" in words and str(os.getpid()) in words:
            yield int(pid)
alpha(0.4)
first = list(spies())
for pid in first:
    os.kill(pid, signal.SIGKILL)
while not set(spies()) - set(first):
    time.sleep(0.01)
beta(1.5)
print("the end")
raise SystemExit(5)
"""
    )
    ended = place.voirkit("--flame", "main.py")
    assert (ended.code, ended.out) == (5, "the end\n")
    stacks = collapsed(place)
    assert any(";beta (" in line for line in stacks)
    assert not any(";alpha (" in line for line in stacks)


@pytest.mark.usefixtures("py_spy")
def test_a_killed_run_has_its_stacks(place: Place) -> None:
    place.write(main=PHASES + "alpha(0.6)\nos.kill(os.getpid(), 9)\n")
    assert place.voirkit("--flame", "main.py").code == -signal.SIGKILL
    shown = place.run(sys.executable, "-m", "voirkit", "report", "run")
    assert "stacks by py-spy" in shown.out
    assert any(";alpha (" in line for line in collapsed(place))


@pytest.mark.usefixtures("py_spy")
def test_a_program_that_replaces_itself_is_followed(place: Place) -> None:
    place.write(
        main="import os, sys\nos.execv(sys.executable, [sys.executable, 'second.py'])\n",
        second=PHASES + "alpha(0.8)\nraise SystemExit(3)\n",
    )
    assert place.voirkit("--flame", "main.py").code == 3
    while not list(
        (place.folder / "run" / "flame").glob("*.chunks")
    ):  # who runs py-spy ends when it sees that the program has
        time.sleep(0.1)
    place.run(sys.executable, "-m", "voirkit", "report", "run")
    assert any(";alpha (" in line for line in collapsed(place))


@pytest.mark.usefixtures("py_spy")
def test_a_script_sees_no_process_or_thread_of_it(place: Place) -> None:
    place.write(
        main="""
        import os, signal, threading
        told = []
        signal.signal(signal.SIGCHLD, lambda *_: told.append(1))
        try:
            os.wait()
        except ChildProcessError:
            print("no children", threading.active_count(), told)
        """
    )
    ended = place.voirkit("--flame", "main.py")
    assert (ended.code, ended.out) == (0, "no children 1 []\n")


@pytest.mark.usefixtures("py_spy")
def test_stacks_are_exported_and_drawn_on_a_page_that_asks_nothing_of_anybody(place: Place) -> None:
    place.write(main=PHASES + LOOP)
    assert place.voirkit("--flame", "main.py").code == 0
    for name in ("speedscope", "collapsed"):
        made = place.run(
            sys.executable, "-m", "voirkit", "export", "run", "--format", name, "-o", f"out.{name}"
        )
        assert made.code == 0, made.err
    assert (
        json.loads((place.folder / "out.speedscope").read_text())["profiles"][0]["name"] == "main"
    )
    assert (place.folder / "out.collapsed").read_text() == (
        place.folder / "run" / "flame" / "collapsed.txt"
    ).read_text()
    shown = place.run(
        sys.executable, "-m", "voirkit", "export", "run", "--format", "collapsed", "-o", "-"
    )
    assert shown.out == (place.folder / "out.collapsed").read_text()
    again = place.run(
        sys.executable,
        "-m",
        "voirkit",
        "export",
        "run",
        "--format",
        "collapsed",
        "-o",
        "out.collapsed",
    )
    assert (again.code, "--force" in again.err) == (2, True)
    full = place.run(
        sys.executable,
        "-m",
        "voirkit",
        "export",
        "run",
        "--format",
        "speedscope",
        "-o",
        "/dev/full",
    )
    assert (full.code != 0, "Traceback" in full.err) == (True, False)
    wrong = place.run(
        sys.executable,
        "-m",
        "voirkit",
        "export",
        "run",
        "--format",
        "collapsed",
        "--steps",
        "0:2",
        "-o",
        "-",
    )
    assert (wrong.code, "whole run" in wrong.err) == (2, True)
    assert place.run(sys.executable, "-m", "voirkit", "report", "run", "--html").code == 0
    page = (place.folder / "run" / "report.html").read_text()
    assert 'id="flame-graph"' in page
    assert "src=" not in page
    assert "<link" not in page


def test_an_export_of_a_run_without_stacks_says_how_to_take_them(place: Place) -> None:
    place.write(main="pass")
    place.voirkit("main.py")
    ended = place.run(sys.executable, "-m", "voirkit", "export", "run", "--format", "speedscope")
    assert ended.code != 0
    assert "voirkit --flame SCRIPT" in ended.err


@pytest.mark.parametrize(("words", "said"), [
    (("--flame=0",), "is no rate"), (("--flame=banana",), "is no rate"), (("--flame=1001",), "at most 1000"), (("--gil",), "voirkit --flame --gil"),
])  # fmt: skip
def test_wrong_words_are_told_before_the_script_starts(
    place: Place, words: tuple[str, ...], said: str
) -> None:
    place.write(main="print('started')")
    ended = place.voirkit(*words, "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
