"""Where annotations go: under voirkit, in its processes of every kind, however they end; and alone, into ``$VOIRKIT_RUN_DIR``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from annotating import Event, counts, events, phases, rows
from conftest import CLEAN, Ended, Place

pytestmark = pytest.mark.long

ANNOTATED = """
    from voirkit.ai import ai

    for i in range(5):
        with ai.compute.forward(step=i):
            pass
"""
WORK = """
    import multiprocessing, os, sys
    from voirkit.ai import ai

    ai.data.update(epoch=1)

    def work(n):
        for i in range(n):
            with ai.data.item:
                pass
        if sys.argv[2:] == ["kill"]:
            os.kill(os.getpid(), 9)

    if __name__ == "__main__":
        with ai.compute.forward:
            child = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(7,))
            child.start()
            child.join()
            print(child.exitcode)
"""
ENGINES = pytest.mark.parametrize(
    "engine", [{}, {"VOIRKIT_NO_EXTENSION": "1"}], ids=["chosen", "python"]
)


def recorded_under_voirkit(
    place: Place, *words: str, **options: object
) -> tuple[Ended, list[Event]]:
    ended = place.voirkit("--quiet", *words, **options)
    return ended, rows(place.folder / "run")


def trace_files(place: Place) -> set[str]:
    return {path.suffix for path in (place.folder / "run" / "trace").rglob("*") if path.is_file()}


# under voirkit


@ENGINES
def test_a_script_under_voirkit_is_recorded_and_compacted_when_it_is_read(place, engine):
    place.write(main=ANNOTATED)
    ended = place.voirkit("main.py", env=engine)
    assert ended.code == 0
    assert "warning" not in ended.err
    found = rows(place.folder / "run")
    assert [e.args for e in found] == [{"step": i} for i in range(5)]
    assert ".seg" not in trace_files(place)


def test_the_summary_says_what_recording_cost(place):
    place.write(main=ANNOTATED)
    summary = place.voirkit("main.py").summary
    assert summary["dropped"] == {}
    assert summary["overhead"]["events"] - phases(place.folder / "run") == 5
    assert 0 < summary["overhead"]["seconds"] < 1
    assert 0 < summary["overhead"]["completing_s"] < 60
    assert summary["overhead"]["share"] == pytest.approx(
        summary["overhead"]["seconds"] / summary["duration_s"], rel=0.2
    )


def test_a_script_without_annotations_loads_no_recorder_and_leaves_no_trace(place):
    place.write(
        main="import sys; print([m for m in sys.modules if m.startswith(('voirkit.trace', 'voirkit.ai', 'voirkit.dftracer'))])"
    )
    ended = place.voirkit("main.py")
    assert ended.out == "[]\n"
    assert not (place.folder / "run" / "trace").exists()


def test_annotations_that_are_never_used_leave_no_trace(place):
    place.write(main="from voirkit.ai import ai; ai.update(epoch=1)")
    assert place.voirkit("main.py").code == 0
    assert not (place.folder / "run" / "trace").exists()


@pytest.mark.parametrize(
    ("end", "code"),
    [("1 / 0", 1), ("sys.exit(4)", 4), ("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", -9)],
)
@ENGINES
def test_however_a_script_ends_its_annotations_are_there(place, end, code, engine):
    place.write(main=f"{ANNOTATED}\n    import os, sys\n    {end}\n")
    ended, found = recorded_under_voirkit(place, "main.py", env=engine)
    assert ended.code == code
    assert counts(found) == {"forward": 5}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_record_too(place, method):
    place.write(main=WORK)
    ended, found = recorded_under_voirkit(place, "main.py", method)
    assert (ended.out, ended.err) == ("0\n", "")
    assert counts(found) == {"forward": 1, "item": 7}
    assert len({e.pid for e in found}) == 2
    assert all(e.args == {"epoch": 1} for e in found if e.name == "item")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_process_that_is_killed_leaves_what_it_recorded(place, method):
    place.write(main=WORK)
    ended, found = recorded_under_voirkit(place, "main.py", method, "kill")
    assert ended.out == "-9\n"
    assert counts(found) == {"forward": 1, "item": 7}


def test_what_a_spawned_child_records_while_its_main_module_is_loaded_is_there(place):
    place.write(
        main="""
        import multiprocessing
        from voirkit.ai import ai

        with ai.data:
            pass

        def work():
            pass

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
        """
    )
    assert counts(recorded_under_voirkit(place, "main.py")[1]) == {"data": 2}


def test_a_child_of_a_script_that_does_not_annotate_itself_records(place):
    place.write(
        main="""
        import multiprocessing

        def work():
            from voirkit.ai import ai
            with ai.data.item:
                pass

        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                child = multiprocessing.get_context(method).Process(target=work)
                child.start()
                child.join()
        """
    )
    assert counts(recorded_under_voirkit(place, "main.py")[1]) == {"item": 2}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_record_each_sample(place, method):
    pytest.importorskip("torch")
    place.write(
        main="""
        import sys
        from torch.utils.data import DataLoader, Dataset
        from voirkit.ai import ai

        class Numbers(Dataset):
            def __len__(self):
                return 8

            @ai.data.item
            def __getitem__(self, i):
                return i

        if __name__ == "__main__":
            for batch in ai.dataloader.fetch.iter(DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])):
                pass
        """
    )
    ended, found = recorded_under_voirkit(place, "main.py", method)
    assert ended.code == 0, ended.err
    assert counts(found) == {"item": 8, "fetch.iter": 4, "fetch.block": 4}
    assert len({e.pid for e in found if e.name == "item"}) == 2


def test_beyond_the_limit_annotations_are_counted(place):
    place.write(
        main="from voirkit.ai import ai\nfor i in range(10_000):\n    with ai.compute.forward: pass\nprint(i)"
    )
    ended = place.voirkit("--trace-limit", "100KB", "main.py")
    assert ended.out == "9999\n"
    summary = ended.summary
    assert (
        summary["dropped"]["compute.forward"]
        == 10_000 - (summary["overhead"]["events"] - phases(place.folder / "run"))
        > 5000
    )
    assert any("--trace-limit" in warning for warning in summary["warnings"])
    assert len(rows(place.folder / "run")) == summary["overhead"]["events"] - phases(
        place.folder / "run"
    )
    assert (
        sum(f.stat().st_size for f in (place.folder / "run" / "trace").rglob("*") if f.is_file())
        < 100_000
    )


def test_what_child_processes_could_not_record_is_counted_too(place):
    place.write(
        main="""
        import os
        from voirkit.ai import ai

        with ai.compute.forward: pass
        if os.fork() == 0:
            for i in range(10_000):
                with ai.data.item: pass
            os._exit(0)
        os.wait()
        """
    )
    summary = place.voirkit("--trace-limit", "100KB", "main.py").summary
    recorded = counts(rows(place.folder / "run"))
    dropped = {
        name: n for name, n in summary["dropped"].items() if name != "python.import"
    }  # imports that take long are records too
    assert dropped == {"data.item": 10_000 - recorded["item"]}
    assert recorded["forward"] == 1


@pytest.mark.parametrize(
    ("words", "where"),
    [(["--trace-limit", "many"], "--trace-limit many"), (["--trace-limit=-1"], "--trace-limit")],
)
def test_a_limit_that_is_no_size_is_refused(place, words, where):
    place.write(main="print(1)")
    ended = place.voirkit(*words, "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert where in ended.err
    assert "such as 4GB" in ended.err


@pytest.mark.parametrize("value", ['"100KB"', "100000"])
def test_the_limit_can_stand_in_a_configuration_file(place, value):
    place.write(
        {"voirkit.toml": f"trace-limit = {value}\n"},
        main="from voirkit.ai import ai\nfor i in range(10_000):\n    with ai.data: pass",
    )
    assert place.voirkit("main.py").summary["dropped"]["data.data"] > 5000


def test_a_folder_that_can_not_be_written_to_is_told_and_the_script_goes_on(place):
    place.write(
        main=f"import os\nos.mkdir('run/trace'); os.rmdir('run/trace'); open('run/trace', 'w').close()\n{ANNOTATED.strip()}\nprint('on')".replace(
            "\n    ", "\n"
        )
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "on\n"), ended.err
    assert ended.summary["dropped"] == {"compute.forward": 5}
    assert "cannot be written" in ended.summary["warnings"][0]


def test_interrupting_the_end_leaves_the_segments(place):
    place.write(main=ANNOTATED)
    place.write(
        voirfile="""
        import subprocess

        def instrument_interrupt(ov):
            yield ov.phases.run_script
            def run(*args, **kwargs):
                raise KeyboardInterrupt
            subprocess.run = run
        """
    )
    ended = place.voirkit("main.py")
    assert ended.code == 0
    assert "interrupted" in ended.summary["warnings"][0]
    assert ".seg" in trace_files(place)
    assert counts(rows(place.folder / "run")) == {"forward": 5}


def test_ranks_of_a_job_that_is_started_again_record_into_one_run(place):
    place.write(
        main=ANNOTATED
        + "\n    import os\n    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), 9)\n"
    )
    for again in ("0", "1"):
        for rank in ("0", "1"):
            env = {
                "RANK": rank,
                "WORLD_SIZE": "2",
                "TORCHELASTIC_RESTART_COUNT": again,
                "TORCHELASTIC_RUN_ID": "a",
                "MASTER_PORT": "1",
            }
            ended = place.voirkit("main.py", env=env)
            assert ended.code == (0 if again == "1" else -signal.SIGKILL), ended.err
    found = rows(place.folder / "run")
    assert counts(found) == {"forward": 20}
    assert len({e.pid for e in found}) == 4


# alone


def alone(place: Place, *words: str, **env: str) -> Ended:
    return place.python(*words, env={"VOIRKIT_RUN_DIR": "run", **env})


@ENGINES
def test_a_script_alone_records_into_the_folder_that_the_environment_names(place, engine):
    place.write(main=ANNOTATED)
    ended = alone(place, "main.py", **engine)
    assert (ended.code, ended.err) == (0, "")
    assert counts(events(place.folder / "run")) == {"forward": 5}
    assert counts(rows(place.folder / "run")) == {"forward": 5}


def test_that_folder_is_a_run_directory(place):
    place.write(main=ANNOTATED)
    ended = alone(place, "main.py", "--lr", "1")
    manifest = json.loads((place.folder / "run" / "run.json").read_text())
    assert (manifest["command"], manifest["ended"], manifest["exit_code"]) == (
        ["main.py", "--lr", "1"],
        "normal",
        None,
    )
    assert ended.summary["overhead"]["events"] - phases(place.folder / "run") == 5


def test_a_script_alone_that_fails_is_known_to_have_failed(place):
    place.write(main=ANNOTATED + "\n    1 / 0\n")
    assert alone(place, "main.py").code == 1
    assert json.loads((place.folder / "run" / "run.json").read_text())["ended"] == "exception"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_of_a_script_alone_record_too(place, method):
    place.write(main=WORK)
    ended = alone(place, "main.py", method)
    assert (ended.out, ended.err) == ("0\n", "")
    assert counts(events(place.folder / "run")) == {"forward": 1, "item": 7}


def test_several_programs_record_into_one_folder(place):
    place.write(
        other=ANNOTATED,
        main=ANNOTATED
        + "\n    import subprocess, sys\n    subprocess.run([sys.executable, 'other.py'], check=True)\n",
    )
    assert alone(place, "main.py").err == ""
    found = events(place.folder / "run")
    assert counts(found) == {"forward": 10}
    assert len({e.pid for e in found}) == 2
    assert json.loads((place.folder / "run" / "run.json").read_text())["command"] == ["main.py"]


def test_programs_that_begin_at_once_agree_on_who_leads(place):
    place.write(main=ANNOTATED)
    env = {**CLEAN, "VOIRKIT_RUN_DIR": "run"}
    running = [
        subprocess.Popen(
            [sys.executable, "main.py"], cwd=place.folder, env=env, stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    told = [process.communicate(timeout=240)[1] for process in running]
    leader = json.loads((place.folder / "run" / "run.json").read_text())["pid"]
    assert leader in [process.pid for process in running]
    assert len(events(place.folder / "run")) == 5 * sum(not text for text in told)


def test_ranks_alone_take_part_in_one_run_also_when_they_are_started_again(place):
    place.write(
        main=ANNOTATED
        + "\n    import os\n    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), 9)\n"
    )
    for again in ("0", "1"):
        for rank in ("0", "1"):
            env = {
                "RANK": rank,
                "WORLD_SIZE": "2",
                "TORCHELASTIC_RESTART_COUNT": again,
                "TORCHELASTIC_RUN_ID": "a",
                "MASTER_PORT": "1",
            }
            assert alone(place, "main.py", **env).err == ""
    assert counts(events(place.folder / "run")) == {"forward": 20}
    manifest = json.loads((place.folder / "run" / "run.json").read_text())
    assert (manifest["ended"], manifest["restart"], manifest["rank"]) == ("normal", 1, 0)


def test_the_folder_of_another_run_is_left_alone(place):
    place.write(main=ANNOTATED)
    alone(place, "main.py")
    ended = alone(place, "main.py")
    assert ended.code == 0
    assert "this folder holds another run" in ended.err
    assert len(events(place.folder / "run")) == 5


def test_a_folder_with_files_of_somebody_else_is_left_alone(place):
    place.write({"run/notes.txt": "mine"}, main=ANNOTATED)
    ended = alone(place, "main.py")
    assert ended.code == 0
    assert "holds what is not voirkit's (notes.txt)" in ended.err
    assert os.listdir(place.folder / "run") == ["notes.txt"]


def test_under_voirkit_its_own_folder_is_taken(place):
    place.write(main=ANNOTATED)
    place.voirkit("main.py", env={"VOIRKIT_RUN_DIR": "elsewhere"})
    assert counts(rows(place.folder / "run")) == {"forward": 5}
    assert not (place.folder / "elsewhere").exists()


def test_a_program_that_executes_itself_anew_goes_on_with_its_run(place):
    place.write(
        main=ANNOTATED
        + "\n    import os, sys\n    if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, 'main.py', 'again'])\n"
    )
    assert alone(place, "main.py").err == ""
    assert counts(events(place.folder / "run")) == {"forward": 10}
    assert json.loads((place.folder / "run" / "run.json").read_text())["ended"] == "normal"


def test_without_any_of_this_nothing_is_recorded(place):
    place.write(main=ANNOTATED)
    assert place.python("main.py").err == ""
    assert sorted(os.listdir(place.folder)) == ["main.py"]


# what it costs to have it


def test_importing_the_annotations_imports_nothing_heavy():
    heavy = [
        "torch",
        "numpy",
        "inspect",
        "asyncio",
        "dataclasses",
        "typing",
        "logging",
        "pathlib",
        "threading",
        "subprocess",
        "duckdb",
        "giving",
    ]
    code = (
        f"import sys, voirkit.ai, voirkit.dftracer; print([m for m in {heavy} if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=CLEAN
        ).stdout
        == "[]\n"
    )
