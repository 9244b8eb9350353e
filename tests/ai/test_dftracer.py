"""A script that is annotated for DFTracer runs as it is, under voirkit or, with one import changed, alone."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from annotating import counts, rows
from conftest import Ended, Place

pytestmark = pytest.mark.long

SCRIPT = """
    {imports}

    log = dftracer.initialize_log(logfile={logfile!r}, data_dir="all", process_id=-1)
    fn = dft_fn("IO", "load", epoch=1)

    @ai.compute.forward
    def forward():
        pass

    with fn:
        forward()
    {end}
"""
BOTH = [
    "from dftracer.logger import ai, dftracer, dft_fn",
    "from dftracer.python import ai, dftracer, dft_fn",
    "import dftracer.python.ai, dftracer.python.logger\n    from dftracer.python import *\n    from dftracer.python.logger import *",
]


def script(
    imports: str, logfile: str | None = "logs/trace.pfw", end: str = "log.finalize()"
) -> str:
    return SCRIPT.format(imports=imports, logfile=logfile, end=end)


def lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines() if line not in "[]"]


def found_in(path: Path) -> Counter[str]:
    """The names of the application's events in a trace."""
    return Counter(
        line["name"] for line in lines(path) if line["ph"] == "X" and line["cat"] != "dftracer"
    )


ALONE = "from voirkit.dftracer import ai, dftracer, dft_fn"
TWO = {"load": 1, "forward": 1}


# under voirkit

not_installed = pytest.mark.skipif(
    importlib.util.find_spec("dftracer") is not None, reason="DFTracer itself is installed"
)


@not_installed
@pytest.mark.parametrize("imports", BOTH)
def test_under_voirkit_its_names_are_voirkits(place, imports):
    place.write(main=script(imports))
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.err) == (0, "")
    assert counts(rows(place.folder / "run")) == TWO
    assert not (place.folder / "logs").exists()


@not_installed
def test_without_voirkit_it_is_not_found(place):
    place.write(main=script(BOTH[0]))
    assert "No module named 'dftracer'" in place.python("main.py").err


@pytest.mark.parametrize("where", ["dftracer.py", "dftracer/__init__.py"])
def test_one_that_is_there_is_taken(place, where):
    place.write(
        {where: "x = 'mine'"},
        main="import dftracer\nprint(dftracer.x)\ntry:\n    import dftracer.logger\nexcept ImportError: print('not there')",
    )
    assert place.voirkit("main.py").out == "mine\nnot there\n"


@not_installed
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_find_it_too(place, method):
    place.write(
        main="""
        import multiprocessing, sys
        from dftracer.logger import ai

        @ai.data.item
        def work():
            pass

        if __name__ == "__main__":
            child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
            child.start()
            child.join()
            print(child.exitcode)
        """
    )
    ended = place.voirkit("--quiet", "main.py", method)
    assert (ended.out, ended.err) == ("0\n", "")
    assert counts(rows(place.folder / "run")) == {"item": 1}


@not_installed
def test_a_run_that_does_not_ask_for_it_has_none_of_it(place):
    place.write(
        main="import sys; print('dftracer' in sys.modules, 'voirkit.dftracer' in sys.modules)"
    )
    assert place.voirkit("main.py").out == "False False\n"


# alone


@pytest.mark.parametrize("end", ["log.finalize()", "", "1 / 0", "import sys; sys.exit(3)"])
def test_alone_the_log_file_is_the_trace(place, end):
    place.write(main=script(ALONE, end=end))
    ended = place.python("main.py")
    assert ended.code == {"1 / 0": 1, "import sys; sys.exit(3)": 3}.get(end, 0)
    assert found_in(place.folder / "logs" / "trace.pfw") == TWO
    assert os.listdir(place.folder / "logs") == ["trace.pfw"]


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_what_is_killed_leaves_a_folder_that_becomes_the_trace(place, end):
    place.write(main=script(ALONE, end=end))
    place.python("main.py")
    assert os.listdir(place.folder / "logs") == ["trace.voirkit"]
    exported = place.run(
        *voirkit_command("export", "logs/trace.voirkit", "--format", "pfw", "-o", "trace.pfw")
    )
    assert exported.code == 0, exported.err
    assert found_in(place.folder / "trace.pfw") == TWO


def voirkit_command(*words: str) -> list[str]:
    import sys

    return [sys.executable, "-m", "voirkit", *words]


def test_a_second_session_gives_a_second_trace(place):
    again = "log.finalize()\n    log = dftracer.initialize_log('logs/trace.pfw')\n    forward(); forward()\n    log.finalize(); log.finalize()"
    place.write(main=script(ALONE, end=again))
    assert place.python("main.py").err == ""
    assert found_in(place.folder / "logs" / "trace.pfw") == TWO
    assert found_in(place.folder / "logs" / "trace-2.pfw") == {"forward": 2}


def test_an_older_trace_is_not_overwritten(place):
    place.write({"logs/trace.pfw": "old"}, main=script(ALONE))
    assert place.python("main.py").err == ""
    assert (place.folder / "logs" / "trace.pfw").read_text() == "old"
    assert found_in(place.folder / "logs" / "trace-2.pfw") == TWO


@pytest.mark.parametrize(
    ("logfile", "env", "made"),
    [
        (None, {"DFTRACER_LOG_FILE": "here/x"}, "here/x.pfw.gz"),
        (None, {}, "trace.pfw"),
        ("y.pfw.gz", {}, "y.pfw.gz"),
        ("y", {"DFTRACER_TRACE_COMPRESSION": "0"}, "y.pfw"),
    ],
)
def test_where_the_trace_goes(place, logfile, env, made):
    place.write(main=script(ALONE, logfile))
    assert place.python("main.py", env=env).err == ""
    assert found_in(place.folder / made) == TWO


def test_workers_are_in_the_trace(place):
    end = "import os\n    for _ in range(2):\n        if os.fork() == 0:\n            forward(); os._exit(0)\n        os.wait()"
    place.write(main=script(ALONE, end=end))
    place.python("main.py")
    assert found_in(place.folder / "logs" / "trace.pfw") == {"load": 1, "forward": 3}


def test_a_child_that_goes_on_keeps_the_folder(place):
    end = """import os
    gate = os.pipe()
    if os.fork() == 0:
        os.close(gate[1]); forward(); os.read(gate[0], 1); forward(); os._exit(0)
    import time
    while len(list(__import__("pathlib").Path("logs/trace.voirkit/trace").glob("*.seg"))) < 2: time.sleep(0.01)
    log.finalize()
    os.write(gate[1], b"x")
    os.wait()"""
    place.write(main=script(ALONE, end=end))
    assert place.python("main.py").err == ""
    assert found_in(place.folder / "logs" / "trace.pfw")["load"] == 1
    assert counts(rows(place.folder / "logs" / "trace.voirkit")) == {"load": 1, "forward": 3}


@pytest.mark.parametrize("how", ["environment", "later"])
def test_it_can_be_switched_off(place, how):
    imports = (
        ALONE
        if how == "environment"
        else f"{ALONE}\n    import os; os.environ['DFTRACER_ENABLE'] = '0'"
    )
    place.write(main=script(imports))
    env = {"DFTRACER_ENABLE": "0"} if how == "environment" else {}
    ended = place.python("main.py", env=env)
    assert (ended.code, ended.err) == (0, "")
    assert not (place.folder / "logs").exists()
    assert place.voirkit("--quiet", "main.py", env=env).code == 0
    assert rows(place.folder / "run") == []


def test_the_signal_handlers_of_the_script_stay(place):
    place.write(
        main="""
        import signal
        names = [signal.SIGINT, signal.SIGTERM, signal.SIGABRT]
        before = [signal.getsignal(s) for s in names]
        from voirkit.dftracer import dftracer, ai
        log = dftracer.initialize_log("a.pfw")
        with ai.compute: pass
        assert [signal.getsignal(s) for s in names] == before
        log.finalize()
        assert [signal.getsignal(s) for s in names] == before
        """
    )
    assert place.python("main.py").err == ""


def test_a_log_file_that_can_not_be_made_is_told_and_the_script_goes_on(place):
    place.write({"logs": "a file"}, main=script(ALONE, end="print('on')"))
    ended: Ended = place.python("main.py")
    assert (ended.code, ended.out) == (0, "on\n")
    assert "initialize_log('logs/trace.pfw')" in ended.err
    assert "This run is not recorded" in ended.err


def test_into_a_run_that_is_recorded_already_nothing_else_is_written(place):
    place.write(main=script(ALONE))
    assert place.python("main.py", env={"VOIRKIT_RUN_DIR": "run"}).err == ""
    assert counts(rows(place.folder / "run")) == TWO
    assert not (place.folder / "logs").exists()


def test_a_script_without_any_event_leaves_nothing(place: Place):
    place.write(
        main="from voirkit.dftracer import dftracer\nlog = dftracer.initialize_log('logs/a.pfw')\nlog.finalize()\nprint(log.get_time() > 0)"
    )
    assert place.python("main.py").out == "True\n"
    assert os.listdir(place.folder / "logs") == []


def test_what_the_environment_says_is_asked_when_it_is_needed(monkeypatch):
    import voirkit.dftracer as module

    for value, enabled in (("0", False), ("1", True)):
        monkeypatch.setenv("DFTRACER_ENABLE", value)
        assert module.DFTRACER_ENABLE is enabled
    monkeypatch.setenv("DFTRACER_X", "y")
    assert module.dftracer.get_instance().get_config("DFTRACER_X") == "y"
    with pytest.raises(AttributeError, match="no_such"):
        _ = module.no_such


def test_its_enumerations_are_strings():
    from voirkit.dftracer import (
        CommunicationEvent,
        ProfileCategory,
        ai,
        get_iter_block_name,
        get_iter_handle_name,
    )

    assert [str(c) for c in ProfileCategory] == [
        "compute",
        "data",
        "dataloader",
        "comm",
        "device",
        "checkpoint",
        "pipeline",
        "other",
    ]
    assert ai.compute.cat == ProfileCategory.COMPUTE
    assert f"{CommunicationEvent.ALL_REDUCE}" == ai.comm.all_reduce.name
    assert (get_iter_handle_name("x"), get_iter_block_name("x.block")) == ("x.iter", "x.block")
