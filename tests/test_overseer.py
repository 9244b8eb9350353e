"""The Overseer: what instruments can do in a run, and what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place
from live_training import TRAINING

from voirkit import Overseer
from voirkit.errors import CommandLineError


def test_used_as_a_library_it_runs_a_script_and_records_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(main="import sys\nresult = list(sys.argv)\n")
    monkeypatch.chdir(place.folder)
    seen: list[Any] = []

    def instrument(ov: Overseer) -> Any:
        yield ov.phases.run_script
        seen.append(sys.modules["__main__"].result)  # type: ignore[attr-defined]

    mine = sys.argv[:], sys.path[:], sys.modules["__main__"]
    try:
        Overseer(instruments=[instrument])(["main.py", "a"])
    finally:
        sys.argv[:], sys.path[:], sys.modules["__main__"] = mine
    assert seen == [["main.py", "a"]]
    assert [p.name for p in place.folder.iterdir()] == ["main.py"]


def test_a_missing_script_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    with pytest.raises(CommandLineError, match=r"nothing\.py"):
        Overseer()(["nothing.py"])


def test_options_of_instruments_are_parsed_and_those_behind_the_script_are_its_own(
    place: Place,
) -> None:
    place.write(
        main="import sys\nprint(sys.argv[1:])\n",
        voirfile="""
        def instrument_x(ov):
            yield ov.phases.init
            ov.argparser.add_argument("--number", type=int, default=1)
            yield ov.phases.parse_args
            ov.say(f"number {ov.options.number}, script {ov.script}")
        """,
    )
    ended = place.voirkit("--number", "5", "main.py", "--number", "7")
    assert ended.out == "['--number', '7']\n"
    assert "number 5, script main.py" in ended.err


def test_a_configuration_file_beside_the_script_gives_options(place: Place) -> None:
    place.write({"code/main.py": "", "code/voirkit.toml": "quiet = true\n"})
    assert place.voirkit("code/main.py").err == ""


def test_the_phases_go_in_order_and_nothing_that_works_runs_before_run_script(place: Place) -> None:
    place.write(
        main="""
        import sys
        LIMIT = 3
        def f(): return LIMIT
        print("work")
        def g(): pass
        """,
        voirfile="""
        import sys
        def instrument_x(ov):
            for phase in ov.phases:
                yield phase
                main = vars(sys.modules["__main__"])
                print(phase.name, [n for n in ("LIMIT", "f", "g") if n in main and ov.phases.load_script.status != "pending"])
        """,
    )
    names = ["_boot []", "init []", "parse_args []", "load_script ['LIMIT', 'f']", "work",
             "run_script ['LIMIT', 'f', 'g']", "finalize ['LIMIT', 'f', 'g']"]  # fmt: skip
    assert place.voirkit("main.py").out.splitlines() == names


def test_stop_ends_the_run_with_exit_code_0_and_finalize_still_comes(place: Place) -> None:
    place.write(
        main="import voirkit\nprint('begin')\nfor i in range(5):\n    voirkit.give(i=i)\nprint('not reached')\n",
        voirfile="""
        def instrument_x(ov):
            ov.given["?i"].filter(lambda i: i == 2).subscribe(lambda i: ov.stop("enough"))
            try:
                yield ov.phases.run_script
            except BaseException as exc:
                print(type(exc).__name__, exc.args)
            yield ov.phases.finalize
            print("finalize")
        """,
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "begin\nStopProgram ('enough',)\nfinalize\n")
    assert ended.summary["given"] == {"i": 3}
    assert ended.summary["ended"] == "normal"


def test_abort_ends_the_run_with_the_exception(place: Place) -> None:
    place.write(main="print('not reached')\n", voirfile="""
        def instrument_x(ov):
            yield ov.phases.load_script
            ov.abort(ValueError("no"))
        """)  # fmt: skip
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.rstrip().endswith("ValueError: no")


def test_an_instrument_sees_the_exception_of_the_script(place: Place) -> None:
    place.write(main="import sys\nsys.exit(3)\n", voirfile="""
        def instrument_x(ov):
            try:
                yield ov.phases.run_script
            except SystemExit as exc:
                print("code", exc.code)
        """)  # fmt: skip
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (3, "code 3\n")


def test_fail_makes_the_exit_code_3_unless_the_script_fails_itself(place: Place) -> None:
    place.write(
        main="import sys\nsys.exit(int(sys.argv[1]))\n",
        voirfile="def instrument_x(ov):\n    ov.fail('not good enough')\n",
    )
    ended = place.voirkit("main.py", "0")
    assert ended.code == 3
    assert "not good enough" in ended.err
    assert place.voirkit("--force", "main.py", "5").code == 5


def test_give_from_threads_of_the_script_arrives_at_once(place: Place) -> None:
    place.write(
        main="""
        import threading
        from giving import give
        def work():
            give(x=1)
            print("given")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
        voirfile="def instrument_x(ov):\n    ov.given['?x'].print('got {}')\n",
    )
    assert place.voirkit("main.py").out == "got 1\ngiven\n"


def test_what_the_script_gives_is_counted_without_any_instrument(place: Place) -> None:
    place.write(
        main="def f():\n    from giving import give\n    give(a=1)\n    give(a=1, b=2)\nf()\n"
    )
    assert place.voirkit("main.py").summary["given"] == {"a": 2, "b": 1}


def test_reductions_reach_instruments_that_wait_for_finalize(place: Place) -> None:
    place.write(main="from voirkit import give\nfor x in (3, 1, 2): give(x=x)\n", voirfile="""
        def instrument_x(ov):
            low = ov.given["?x"].min().accum()
            never = ov.given["?y"].min().accum()
            yield ov.phases.run_script
            print("run_script", low)
            yield ov.phases.finalize
            print("finalize", low, never)
        """)  # fmt: skip
    assert place.voirkit("main.py").out == "run_script []\nfinalize [1] []\n"


def test_a_failing_subscriber_is_told_once_and_the_program_goes_on(place: Place) -> None:
    place.write(main="from voirkit import give\nfor x in range(3): give(x=x)\nprint('done')\n",
                voirfile="def instrument_x(ov):\n    ov.given['x'].subscribe(lambda x: 1 / 0)\n")  # fmt: skip
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert ended.err.count("ZeroDivisionError") == 1
    assert "voirfile.py:2" in ended.err


# the log


def test_the_log_goes_to_the_run_directory_and_to_its_readers(place: Place) -> None:
    place.write(main="import voirkit\nvoirkit.log(loss=0.5)\n", voirfile="""
        def instrument_x(ov):
            ov.log["?loss"].print("read {}")
            ov.log({"early": 1})
            yield ov.phases.finalize
            ov.log({"late": 2})
        """)  # fmt: skip
    ended = place.voirkit("main.py")
    assert ended.out == "read 0.5\n"
    assert [line for line in ended.log if "$event" not in line] == [
        {"early": 1},
        {"loss": 0.5},
        {"late": 2},
    ]
    assert [line["$data"]["name"] for line in ended.log if line.get("$event") == "phase"] == [
        "init", "parse_args", "load_script", "run_script", "finalize",
    ]  # fmt: skip


def test_events_that_are_given_are_logged(place: Place) -> None:
    place.write(
        main="from giving import give\ngive(**{'$event': 'mine', '$data': 5})\n",
        voirfile="def instrument_x(ov): ov.given\n",
    )
    assert {"$event": "mine", "$data": 5} in place.voirkit("main.py").log


def test_what_json_can_not_hold_is_logged_as_its_representation(place: Place) -> None:
    place.write(main="""
        import voirkit
        class Odd:
            def __repr__(self): raise OSError
        voirkit.log(x={1, 2})
        voirkit.log(x=Odd())
        """)  # fmt: skip
    lines = place.voirkit("main.py").log
    assert {"$unserializable": "{'x': {1, 2}}"} in lines
    assert {"$unrepresentable": None} in lines


def with_descriptor(
    place: Place, fd: int | None, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run voirkit with a pipe for its data; under the number ``fd`` and without DATA_FD if one is given."""
    read, write = os.pipe()

    def move() -> None:
        if fd is not None:
            os.dup2(write, fd)

    keep = [write] if fd is None else [write, fd]
    env = CLEAN if fd is not None else {**CLEAN, "DATA_FD": str(write)}
    ended = subprocess.run([sys.executable, "-m", "voirkit", *words], cwd=place.folder, env=env, pass_fds=keep, preexec_fn=move,
                           capture_output=True, text=True, check=False, timeout=240)  # fmt: skip
    os.close(write)
    with open(read) as file:
        return ended, [json.loads(line) for line in file]


@pytest.mark.parametrize("fd", [None, 3])
def test_a_harness_reads_the_log_from_the_data_descriptor(place: Place, fd: int | None) -> None:
    place.write(main="import voirkit\nvoirkit.log(loss=0.5)\n")
    ended, lines = with_descriptor(place, fd, "--run-dir", "run", "main.py")
    assert ended.returncode == 0
    assert {"loss": 0.5} in lines
    assert {"$event": "phase", "$data": {"name": "run_script"}} in lines


def test_data_can_be_hidden_in_standard_output(place: Place) -> None:
    from voirkit.escape import Decoder

    place.write(main="import voirkit\nprint('plain é')\nvoirkit.log(loss=0.5)\nprint('more')\n")
    ended = place.voirkit("main.py", env={"DATA_FD": "1"})
    plain, data = Decoder().feed(ended.out.encode())
    assert plain.decode() == "plain é\nmore\n"
    assert {"loss": 0.5} in [json.loads(line) for line in data.splitlines()]


def test_a_descriptor_that_is_not_open_is_no_error(place: Place) -> None:
    place.write(main="print('fine')\n")
    for value in ("9", "99999999999999", "nonsense", "-1"):
        assert place.voirkit("--force", "main.py", env={"DATA_FD": value}).out == "fine\n"


def test_a_file_that_the_script_opens_as_descriptor_3_is_not_written_to(place: Place) -> None:
    place.write(
        main="import voirkit\nf = open('mine.txt', 'w')\nvoirkit.log(x=1)\nf.write('mine')\nf.close()\n"
    )
    place.voirkit("main.py")
    assert (place.folder / "mine.txt").read_text() == "mine"


def test_a_harness_that_goes_away_is_no_error(place: Place) -> None:
    place.write(main="import voirkit\nfor i in range(100): voirkit.log(i=i)\nprint('done')\n")
    read, write = os.pipe()
    os.close(read)
    ended = place.voirkit("main.py", env={"DATA_FD": str(write)}, pass_fds=[write])
    os.close(write)
    assert (ended.code, ended.out) == (0, "done\n")


# the run directory


def test_the_run_directory_tells_what_was_run_and_how_it_ended(place: Place) -> None:
    place.write(main="import sys\nprint('x')\nsys.exit(4)\n")
    ended = place.voirkit("main.py", "--epochs", "1")
    manifest = json.loads((place.folder / "run" / "run.json").read_text())
    assert manifest["command"] == ended.summary["command"] == ["main.py", "--epochs", "1"]
    assert manifest["exit_code"] == ended.summary["exit_code"] == 4
    assert manifest["ended"] == ended.summary["ended"] == "exit"
    assert manifest["schema"] == ended.summary["schema"] == 1
    assert manifest["clocks"]["perf_counter_ns"] > 0
    assert ended.summary["duration_s"] > 0
    for key in ("rates", "steps", "loader", "loss", "given", "probes", "syscalls", "calls", "parameters", "native", "torch_profile", "checks", "evaluation", "ranks",
                "verdict", "overhead", "dropped", "warnings"):  # fmt: skip
        assert key in ended.summary


@pytest.mark.parametrize(
    ("text", "ended_as", "code"),
    [
        ("raise ValueError('x')\n", "exception", 1),
        ("def f(:\n", "exception", 1),
        ("raise KeyboardInterrupt\n", "signal", 130),
        ("raise SystemExit('text')\n", "exit", 1),
        ("raise SystemExit(-1)\n", "exit", 255),
        ("", "normal", 0),
    ],
)
def test_the_summary_tells_how_a_script_ended(
    place: Place, text: str, ended_as: str, code: int
) -> None:
    place.write(main=text)
    summary = place.voirkit("main.py").summary
    assert (summary["ended"], summary["exit_code"]) == (ended_as, code)


def test_a_run_that_did_not_end_is_running(place: Place) -> None:
    place.write(main="import os\nos._exit(4)\n")
    place.voirkit("main.py")
    manifest = json.loads((place.folder / "run" / "run.json").read_text())
    assert (manifest["ended"], manifest["exit_code"]) == ("running", None)


def test_without_a_choice_each_run_gets_a_directory_of_its_own_and_latest_points_to_the_last(
    place: Place,
) -> None:
    place.write(main="")
    for _ in range(3):
        assert place.run(sys.executable, "-m", "voirkit", "main.py").code == 0
    runs = sorted(p for p in (place.folder / "voirkit-runs").iterdir() if not p.is_symlink())
    assert len(runs) == 3
    assert all(run.name.split("-")[1].startswith("main") for run in runs)
    assert (place.folder / "voirkit-runs" / "latest").resolve() in runs


def test_a_directory_that_holds_a_run_is_refused_unless_forced(place: Place) -> None:
    place.write(main="print('ran')\n")
    assert place.voirkit("main.py").out == "ran\n"
    again = place.voirkit("main.py")
    assert (again.code, again.out) == (2, "")
    assert "--force" in again.err
    assert place.voirkit("--force", "main.py").out == "ran\n"


def test_a_directory_with_foreign_files_is_refused_even_if_forced(place: Place) -> None:
    place.write(main="print('ran')\n")
    place.voirkit("main.py")
    (place.folder / "run" / "notes.md").write_text("mine")
    before = sorted(p.name for p in (place.folder / "run").iterdir())
    ended = place.voirkit("--force", "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert "notes.md" in ended.err
    assert sorted(p.name for p in (place.folder / "run").iterdir()) == before


def test_a_file_as_run_directory_is_refused(place: Place) -> None:
    place.write(main="", run="x")
    (place.folder / "run.py").rename(place.folder / "run")
    assert place.voirkit("main.py").code == 2


def test_a_run_directory_that_disappears_is_told_and_the_script_goes_on(place: Place) -> None:
    place.write(
        main="import shutil, voirkit\nvoirkit.log(a=1)\nshutil.rmtree('run')\nvoirkit.log(a=2)\nprint('done')\n"
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "cannot be written" in ended.err
    assert "Traceback" not in ended.err


def test_a_disk_that_takes_no_more_is_told_and_the_script_goes_on(place: Place) -> None:
    place.write(main="""
        import resource, voirkit
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        for i in range(1000): voirkit.log(i=i)
        print("done")
        """)  # fmt: skip
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "too large" in ended.err
    assert "Traceback" not in ended.err


def test_a_folder_that_can_not_be_written_to_costs_the_record_and_not_the_run(
    place: Place, tmp_path: Path
) -> None:
    place.write(main="print('ran')\n")
    (place.folder / "voirkit-runs").write_text("in the way")
    ended = place.run(sys.executable, "-m", "voirkit", "main.py")
    assert (ended.code, ended.out) == (0, "ran\n")
    assert "not recorded" in ended.err


def test_a_forked_child_writes_its_own_log(place: Place) -> None:
    place.write(main="""
        import os, voirkit
        voirkit.log(who="parent")
        pid = os.fork()
        if not pid:
            voirkit.log(who="child")
            os._exit(0)
        os.waitpid(pid, 0)
        """)  # fmt: skip
    ended = place.voirkit("main.py")
    files = list((place.folder / "run" / "stream").iterdir())
    assert len(files) == 2
    assert [line for line in ended.log if line == {"who": "child"}] == [{"who": "child"}]


def test_ranks_share_a_directory_and_the_first_writes_the_summary(place: Place) -> None:
    place.write(main="import voirkit, os\nvoirkit.log(rank=int(os.environ['RANK']))\n")
    for force in ([], ["--force"]):
        for rank in ("0", "1"):
            ended = place.voirkit(
                *force, "main.py", env={"RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": "1234"}
            )
            assert ended.code == 0, ended.err
        names = sorted(p.name.split("-")[1] for p in (place.folder / "run" / "stream").iterdir())
        assert sorted(set(names)) == ["r0", "r1"]
    assert ended.summary["world_size"] == 2
    assert ended.err == ""


def test_ranks_do_not_write_into_the_run_of_another_job(place: Place) -> None:
    place.write(main="")
    place.voirkit("main.py")
    before = sorted(place.folder.rglob("*"))
    for rank in ("0", "1"):
        assert (
            place.voirkit("main.py", env={"RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": "1"}).code
            == 2
        )
    assert sorted(place.folder.rglob("*")) == before


def test_quiet_silences_voirkit_but_not_warnings(place: Place) -> None:
    place.write(
        main="",
        voirfile="def instrument_x(ov):\n    yield ov.phases.run_script\n    ov.say('said')\n    ov.warn('warned')\n    ov.warn('warned')\n",
    )
    assert place.voirkit("--quiet", "main.py").err == "voirkit: warned\n"
    assert "said" in place.voirkit("--force", "main.py").err


def test_the_version_and_the_help_are_shown_whatever_instruments_reduce(place: Place) -> None:
    place.write(main="", voirfile="def instrument_x(ov):\n    ov.given['?x'].min().print()\n")
    assert place.voirkit("--version").out.startswith("voirkit 0.")
    shown = place.voirkit("--help")
    assert (shown.code, shown.err) == (0, "")
    assert "--train-rate" in shown.out
    assert "SCRIPT" in shown.out


# what instruments do that they had better not


ENDS = "    yield ov.phases.finalize\n"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (ENDS + "    ov.stop()\n", 0, ""),
        ("    ov.given['?x'].max().subscribe(lambda x: ov.stop())\n", 0, ""),
        (
            "    ov.given['?x'].subscribe(lambda x: ov.abort(ValueError('aborted')))\n",
            1,
            "ValueError: aborted",
        ),
        (ENDS + "    ov.abort(ValueError('aborted'))\n", 1, "ValueError: aborted"),
        ("    ov.given['?y'].fail_if_empty('nothing came')\n", 1, "nothing came"),
        ("    ov.given['?x'].subscribe(lambda x: sys.exit(5))\n", 0, "SystemExit"),
        ("    yield ov.phases.load_script\n    sys.exit(5)\n", 0, "SystemExit"),
        ("    ov.summary['rates']['x'] = {'a': 1}\n", 0, "summary"),
        ("    ov.summary['x'] = ov.summary\n", 0, "summary"),
        (ENDS + "    ov.summary.clear()\n", 0, ""),
        ("    yield ov.phases.load_script\n    ov.abort('text')\n", 0, "TypeError"),
        ("    yield ov.phases.load_script\n    raise KeyboardInterrupt\n", -2, "KeyboardInterrupt"),
    ],
)
def test_the_exit_code_tells_what_an_instrument_meant(
    place: Place, body: str, code: int, words: str
) -> None:
    place.write(
        main="from giving import give\ngive(x=1)\nprint('ran')\n",
        voirfile=f"import sys\ndef instrument_x(ov):\n{body}\ndef instrument_last(ov):\n    yield ov.phases.finalize(priority=-5)\n    print('finalized')\n",
    )
    ended = place.voirkit("main.py")
    assert ended.code == code, ended.err
    assert words in ended.err
    assert "Traceback" not in ended.err or code
    if code == 0:
        assert ended.out.endswith("finalized\n")


def test_a_run_that_is_refused_leaves_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import giving

    from voirkit import streams

    monkeypatch.chdir(place.folder)
    assert streams.Given is not None
    with pytest.raises(CommandLineError):
        Overseer()(["nothing.py"])
    assert giving.give.context is giving.global_context


def test_a_restart_by_torchrun_goes_on_in_the_same_directory(place: Place) -> None:
    place.write(
        main="import voirkit, os\nvoirkit.log(attempt=os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    )
    for attempt in ("0", "1"):
        env = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": attempt,
            "MASTER_PORT": attempt,
        }
        assert place.voirkit("main.py", env=env).code == 0
    assert {"attempt": "0"} in place.voirkit("--version").log
    assert {"attempt": "1"} in place.voirkit("--version").log


def test_an_async_instrument_is_refused(place: Place) -> None:
    place.write(main="", voirfile="async def instrument_x(ov):\n    pass\n")
    ended = place.voirkit("main.py")
    assert ended.code == 2
    assert "async" in ended.err


def test_what_waits_for_the_record_gets_the_summary_with_steps_and_verdict(place: Place) -> None:
    place.write(
        main=TRAINING + "Training(length=20).epoch()\n",
        voirfile="""
        def instrument_x(ov):
            ov.when_complete(lambda summary: print("steps", summary["steps"]["n"], summary["verdict"]["kind"]))
            ov.when_complete(lambda summary: 1 / 0)
            ov.when_complete(lambda summary: print("and the next"))
        """,
    )
    ended = place.voirkit("--quiet", "main.py")
    assert ended.code == 0, ended.err
    assert ended.out == f"steps 20 {ended.summary['verdict']['kind']}\nand the next\n"
    assert "ZeroDivisionError" in ended.err
