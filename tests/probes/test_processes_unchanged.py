"""A program with child processes runs as under python though its functions are probed, and nothing is left when the probes have ended."""

from __future__ import annotations

import os
import re
import signal
import sys

from conftest import Place
from forking import forked, half, run

from voirkit import probing

UNCHANGED = """
    import json, multiprocessing, os, signal, sys, threading, warnings

    def work(n, tell=None):
        half = n / 2
        if tell is not None:
            import pickle
            found = vars(multiprocessing.current_process())
            tell.put([sorted(found), sys.path, sorted(os.environ), sys.argv, sorted(k for k in vars(sys.modules["__main__"]))])
        return half

    class Mine(multiprocessing.get_context("spawn").Process):
        def __getstate__(self):
            print(sorted(vars(self)))
            return {**vars(self), "more": 1}

        def run(self):
            print(self.more, work(2))

    def fails(how):
        work(1)
        if how == "exit":
            sys.exit(5)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "_exit":
            os._exit(6)
        raise ValueError(how)

    if __name__ == "__main__":
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            child = context.Process(target=work, args=(4, queue))
            child.start()
            print(json.dumps(queue.get()))
            child.join()
            print(sorted(vars(child)), child.exitcode)
            for how in ("exit", "kill", "_exit", "raise"):
                child = context.Process(target=fails, args=(how,))
                child.start()
                child.join()
                print(method, how, child.exitcode)
            try:
                context.Process(target=lambda: 0).start()
            except Exception as exc:
                import traceback
                print("".join(traceback.format_exception(exc)))
        child = Mine()
        child.start()
        child.join()
        pid = os.fork()
        if pid == 0:
            work(1)
            print("the child goes on", flush=True)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no child is left")
        sys.exit(4)
"""


def test_a_program_with_children_runs_as_under_python(place: Place) -> None:
    place.write(
        main=UNCHANGED,
        voirfile="def instrument_x(ov):\n    ov.probe('//work > half').subscribe(lambda event: None)\n",
    )
    # python 3.15 itself makes the main module of a child without what it then warns of, in the traceback of an error there
    env = {"PYTHONWARNINGS": "error,ignore:Module globals is missing:DeprecationWarning"}
    bare = run(place, "main.py", env=env)
    probed = run(place, "--quiet", "main.py", voirkit=True, env=env)
    assert (bare.code, probed.code) == (4, 4)
    assert re.sub("0x[0-9a-f]+", "0x", probed.out) == re.sub("0x[0-9a-f]+", "0x", bare.out)
    assert sorted(_told(probed.err)) == sorted(_told(bare.err))
    assert probed.summary["probes"][0]["events"] == 3 * 5 + 2
    assert probed.summary["dropped"] == {}


def _told(text: str) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if "Process-" not in line and "Process Process" not in line
    ]


def test_nothing_is_left_when_the_probes_have_ended() -> None:
    import multiprocessing.process
    import threading

    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    with probing("half > result").values() as seen:
        forked(lambda: half(1))
        assert "__reduce_ex__" in vars(multiprocessing.process.BaseProcess)
    assert len(seen) == 1
    assert "__reduce_ex__" not in vars(multiprocessing.process.BaseProcess)
    assert [t.name for t in threading.enumerate() if t.name == "voirkit-events"] == []
    assert (os.listdir("/proc/self/fd") if sys.platform == "linux" else []) == before


def test_without_children_there_is_no_thread_and_no_socket() -> None:
    import threading

    from voirkit.probes import processes

    with probing("half > result").values():
        half(1)
        assert processes._children.exchange is None
        assert [t.name for t in threading.enumerate() if t.name == "voirkit-events"] == []


def test_a_child_that_puts_a_file_in_the_place_of_a_standard_one_gets_that_number(
    place: Place,
) -> None:
    place.write(program="""
        import os
        from voirkit import probing
        def work(n):
            half = n / 2
        def child(fd):
            os.close(fd)
            if fd == 1:
                os.close(0)
            work(1)
            os.open(f"file{fd}", os.O_CREAT | os.O_WRONLY)
            if fd == 1:
                os.open("file1", os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"written")
            work(2)
            os._exit(0)
        with probing("work > half").values() as seen:
            for fd in (0, 1, 2):
                pid = os.fork()
                if pid == 0:
                    child(fd)
                assert os.waitpid(pid, 0)[1] == 0
        print([e["half"] for e in seen], [open(f"file{fd}").read() for fd in (0, 1, 2)])
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.out, ended.err) == (
        0,
        "[0.5, 1.0, 0.5, 1.0, 0.5, 1.0] ['written', 'written', 'written']\n",
        "",
    )


def test_a_program_without_standard_files_gets_their_numbers_for_its_own(place: Place) -> None:
    place.write(program="""
        import os
        from voirkit import probing
        def work(n):
            half = n / 2
        with probing("work > half").values() as seen:
            os.close(0)
            os.close(1)
            for n in (1, 2):
                pid = os.fork()
                if pid == 0:
                    work(n)
                    os._exit(0)
                os.waitpid(pid, 0)
            while len(seen) < 2:
                pass
            assert os.open(os.devnull, os.O_RDONLY) == 0
            assert os.open("out", os.O_CREAT | os.O_WRONLY) == 1
        print([e["half"] for e in seen])
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.err) == (0, "")
    assert (place.folder / "out").read_text() == "[0.5, 1.0]\n"


def test_a_child_that_closes_all_descriptors_keeps_its_own_files(place: Place) -> None:
    written = place.folder / "own.txt"

    def child() -> None:
        half(1)
        os.closerange(3, 1000)
        for _ in range(50):
            os.open(written, os.O_CREAT | os.O_WRONLY)
        half(2)

    with probing("half > result").values() as seen:
        forked(child)
    assert [e["result"] for e in seen] == [0.5]
    assert written.read_bytes() == b""


def test_a_child_is_not_waited_for(place: Place) -> None:
    program = """
        import os, time
        from voirkit import probing
        def f(n):
            x = n
        seen = []
        with probing("f > x") as probe:
            probe.print()
            probe.subscribe(seen.append)
            child = os.fork()
            if child == 0:
                os.close(1)
                os.close(2)
                f(1)
                time.sleep(600)
                os._exit(0)
            while not seen:
                time.sleep(0.001)
        print(child)
    """
    place.write(program=program)
    event, child = run(place, "program.py").out.splitlines()
    assert event.startswith("{'x': 1,")
    os.kill(int(child), signal.SIGKILL)  # it is there still


def test_a_global_probe_sees_children_that_python_waits_for_at_its_end(place: Place) -> None:
    program = """
        import multiprocessing, time
        from voirkit import global_probe
        def f(n):
            time.sleep(0.5)
            x = n
        if __name__ == "__main__":
            global_probe("//f > x").print()
            multiprocessing.get_context("fork").Process(target=f, args=(1,)).start()
    """
    place.write(program=program)
    ended = run(place, "-W", "error", "program.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("{'x': 1,")


def test_python_does_not_warn_of_forks_with_threads(place: Place) -> None:
    place.write(program="""
        import os, time, warnings
        from voirkit import probing
        def work(n):
            half = n / 2
        before = list(warnings.filters)
        with probing("work > half").values() as seen:
            for n in range(3):
                pid = os.fork()
                if pid == 0:
                    work(n)
                    os._exit(0)
                os.waitpid(pid, 0)
            while len(seen) < 3 or warnings.filters != before:
                time.sleep(0.001)
        print(len(seen))
    """)  # fmt: skip
    ended = run(place, "-W", "always", "program.py")
    assert (ended.code, ended.out, ended.err) == (0, "3\n", "")


def test_python_does_not_warn_of_forks_that_take_long_on_a_busy_machine(place: Place) -> None:
    place.write(program="""
        import os, time, warnings
        from voirkit import probing
        from voirkit.probes import exchange
        exchange.HUSHED_S = 0.01
        def work(n):
            half = n / 2
        def fork(n):
            pid = os.fork()
            if pid == 0:
                work(n)
                os._exit(0)
            os.waitpid(pid, 0)
        before = list(warnings.filters)
        with probing("work > half").values() as seen:
            fork(1)
            os.register_at_fork(after_in_parent=lambda: time.sleep(0.3))  # from then on until python looks whether it is to warn
            fork(2)
            fork(3)
            while len(seen) < 3 or warnings.filters != before:
                time.sleep(0.001)
        print(len(seen))
    """)  # fmt: skip
    ended = run(place, "-W", "always", "program.py")
    assert (ended.code, ended.out, ended.err) == (0, "3\n", "")
