"""What a run keeps of annotations where the ordinary way is cut off: python is ending, its directory goes away, the limit is reached."""

from __future__ import annotations

import pytest
from annotating import counts, phases, rows

pytestmark = pytest.mark.long

LATE = """
import atexit, sys, threading

def before():
    from voirkit import ai
    with ai.checkpoint.restart:
        print("last")

atexit.register(before)
from voirkit import ai

@atexit.register
def after():
    with ai.checkpoint.capture:
        print("first")

with ai.compute.forward:
    pass
main = threading.main_thread()

def outlive():
    main.join()
    with ai.data.item:
        pass

threading.Thread(target=outlive).start()
sys.exit(3)
"""


@pytest.mark.parametrize("under", ["voirkit", "python"])
def test_what_a_program_does_when_python_ends_is_in_the_trace(place, under):
    place.write(main=LATE)
    if under == "voirkit":
        ended = place.voirkit("main.py")
        assert ended.summary["overhead"]["events"] - phases(place.folder / "run") == 1, (
            "the run itself was over"
        )
        assert not list((place.folder / "run" / "trace").rglob("*.seg"))
    else:
        ended = place.python("main.py", env={"VOIRKIT_RUN_DIR": "run"})
    assert (ended.code, ended.out) == (3, "first\nlast\n"), ended.err
    assert counts(rows(place.folder / "run")) == {
        "forward": 1,
        "item": 1,
        "capture": 1,
        "restart": 1,
    }


DELETED = """
import os, shutil, sys, threading
from voirkit import ai

def work(n):
    for i in range(n):
        with ai.compute.forward(args={"i": i}):
            pass

moment, change = sys.argv[1:]
changes = {
    "deleted": lambda: shutil.rmtree("run"),
    "renamed": lambda: os.rename("run", "moved"),
    "a file": lambda: (shutil.rmtree("run"), open("run", "w").close()),
}
if moment == "begin":
    changes[change]()
work(100)
if moment == "middle":
    changes[change]()
thread = threading.Thread(target=work, args=(10_000,))
thread.start()
thread.join()
work(10_000)
if moment == "end":
    changes[change]()
print("done")
sys.exit(5)
"""


@pytest.mark.parametrize("change", ["deleted", "renamed", "a file"])
@pytest.mark.parametrize("moment", ["begin", "middle", "end"])
def test_a_run_directory_that_goes_away_is_told_and_the_script_goes_on(place, moment, change):
    ended = place.write(main=DELETED).voirkit("main.py", moment, change)
    assert (ended.code, ended.out) == (5, "done\n"), ended.err
    told = [
        line.removeprefix("voirkit: ")
        for line in ended.err.splitlines()
        if line.startswith("voirkit: ")
    ]
    summaries = [line for line in told if "run.json and summary.json cannot be written" in line]
    traces = [line for line in told if "what comes now is counted as dropped" in line]
    counted = [
        line for line in told if "spans were not recorded, most of them compute.forward" in line
    ]
    assert set(told) - {*summaries, *traces, *counted} <= {"run directory: run"}
    # What was deleted before anything was written is made again.
    assert len(summaries) == ((moment, change) not in (("begin", "deleted"), ("begin", "renamed")))
    assert (
        len(traces)
        == len(counted)
        == (moment == "middle" or (moment, change) == ("begin", "a file"))
    )


def test_the_limit_is_told_in_the_table_the_report_and_every_export_has_the_rest(place):
    place.write(
        main="from voirkit.ai import ai\nfor i in range(10_000):\n    with ai.compute.forward: pass\n    with ai.data.item: pass"
    )
    ended = place.voirkit("--trace-limit", "100KB", "main.py")
    recorded, dropped = (
        ended.summary["overhead"]["events"] - phases(place.folder / "run"),
        ended.summary["dropped"],
    )
    line = f"{sum(dropped.values())} spans were not recorded, most of them"
    dropped.pop(
        "python.import", None
    )  # on a busy machine an import may be slow enough to be recorded
    assert sum(dropped.values()) + recorded == 20_000
    assert set(dropped) == {"compute.forward", "data.item"}
    assert line in ended.err
    assert line in place.python("-m", "voirkit", "report", "run").out.replace("\n", " ").replace(
        "  ", " "
    )
    for format in ("csv", "chrome", "pfw"):
        exported = place.python("-m", "voirkit", "export", "run", "--format", format, "-o", "-")
        assert (exported.code, exported.err.startswith(f"voirkit: {line}")) == (0, True)
        assert exported.out.count("forward") + exported.out.count("item") == recorded


CHILD_OUTLIVES_THE_SCRIPT = """
import multiprocessing
from multiprocessing.util import Finalize
from voirkit.ai import ai

def work(is_full, script_has_ended):
    for i in range(10_000):
        with ai.data.item: pass
    is_full.set()
    script_has_ended.wait()

context = multiprocessing.get_context("fork")
is_full, script_has_ended = context.Event(), context.Event()
context.Process(target=work, args=(is_full, script_has_ended)).start()
is_full.wait()
Finalize(None, script_has_ended.set, exitpriority=1)  # called before python waits for the child
"""


def test_what_a_child_that_outlives_the_script_could_not_record_is_counted_once(place):
    ended = place.write(main=CHILD_OUTLIVES_THE_SCRIPT).voirkit("--trace-limit", "100KB", "main.py")
    assert "still run" in ended.err
    recorded = ended.summary["overhead"]["events"] - phases(place.folder / "run")
    assert ended.summary["dropped"]["data.item"] + recorded == 10_000
    assert ended.err.count("spans were not recorded") == 1
