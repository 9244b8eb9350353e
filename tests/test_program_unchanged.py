"""A script does under voirkit exactly what it does under python: same output, same errors, same exit code."""

from __future__ import annotations

import os
import signal
import sys
import zipfile

import pytest
from conftest import Ended, Place

PROGRAMS = {
    "an empty script": "",
    "a flat script without functions": "total = 0\nfor i in range(4):\n    total += i\nprint(total)\n",
    "sys.argv, sys.path and module names at import time and later": """
        import sys
        AT_IMPORT = list(sys.argv), sys.path[0], __name__, __file__, __package__, __spec__, __doc__
        def later():
            return list(sys.argv), sys.path[0], __name__, __file__
        print(AT_IMPORT)
        if __name__ == "__main__":
            print(later())
        """,
    "the module __main__ is the script": """
        '''The text.'''
        import sys
        import __main__
        x: int = 3
        def f(): pass
        print(__main__.f is f, __main__ is sys.modules["__main__"], __main__.__dict__ is globals(), __main__.__doc__)
        print(sorted(n for n in globals() if n.startswith("__")), type(__builtins__), type(__loader__), __annotations__)
        """,
    "annotations of variables of the module stand together": """
        import sys
        x: int = 3
        def f(): pass
        if x:
            y: Undefined = 4
        print("between", sorted(n for n in globals() if n.startswith("__")))
        def g(): pass
        z: str = "5"
        Undefined = list
        print(sys.modules["__main__"].__annotations__)
        """,
    "a future import holds for the whole script": """
        from __future__ import annotations
        print("between")
        def f(x: Undefined) -> AlsoUndefined: return x
        class C:
            y: NotThere = 1
        print(f.__annotations__, C.__annotations__, f(1))
        """,
    "code between functions runs in its place": """
        print("one")
        def f(): return "f"
        print("two", f())
        class C:
            print("in the class")
        def g(x=f()): return x
        print("three", g())
        """,
    "callbacks of an exit stack that fail one after the other": """
        from contextlib import ExitStack
        def fail(text):
            raise ValueError(text)
        with ExitStack() as stack:
            stack.callback(fail, "second")
            stack.callback(fail, "first")
            fail("before them")
        """,
    "a hook for exceptions that fails itself": """
        import sys
        def hook(kind, value, tb):
            try:
                [][1]
            except IndexError:
                raise KeyError("in the hook")
        sys.excepthook = hook
        int("x")
        """,
    "a hook for exceptions that exits": """
        import sys
        sys.excepthook = lambda *args: sys.exit(7)
        int("x")
        """,
    "functions that are defined after the main block": """
        def main():
            try:
                late()
            except NameError as exc:
                print(exc)
        if __name__ == "__main__":
            main()
        def late(): return 1
        print(late())
        """,
    "a decorator that runs what it decorates": """
        def now(f):
            print("running", f.__name__)
            return f
        @now
        def main(): pass
        print("after")
        """,
    "a text after a function is not the docstring": "def f(): pass\n'not me'\nprint(__doc__)\ndef g(): pass\n'nor me'\nprint(__doc__)\n",
    "conditional imports and definitions": """
        try:
            import no_such_module
        except ImportError:
            no_such_module = None
        import sys
        if sys.version_info > (3, 0):
            def f(): return "new"
        else:
            def f(): return "old"
        print(f(), no_such_module)
        """,
    "source of functions and classes": """
        import inspect
        def f(x):
            return x  # here
        class C:
            a = 1
        print(inspect.getsource(f), inspect.getsource(C), inspect.getsourcelines(f)[1], f.__code__.co_filename)
        """,
    "classes of the script can be pickled": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        data = pickle.dumps(Point(3))
        print(b"__main__" in data, pickle.loads(data).x)
        """,
    "relative data files": "import pathlib\nprint(pathlib.Path('data.txt').read_text())\n",
    "a module beside the script": "import sibling\nprint(sibling.VALUE)\n",
    "an exception": "def f(x):\n    y = 1 / x\n    return y\n\n\ndef g():\n    return f(0)\n\n\ng()\n",
    "an exception at import time": "import sys\nx = {}['key']\ndef f(): pass\n",
    "chained exceptions": """
        def f():
            try:
                {}["a"]
            except KeyError as exc:
                raise ValueError("outer") from exc
        def g():
            try:
                f()
            except ValueError:
                raise RuntimeError("during")
        g()
        """,
    "an exception with notes and a long message": "raise ValueError('x' * 200, ['y'] * 20)\n",
    "a hook for uncaught exceptions": """
        import sys, traceback
        def hook(kind, value, tb):
            print("hooked", kind.__name__, value, len(traceback.extract_tb(tb)), file=sys.stderr)
        sys.excepthook = hook
        def f(): raise ValueError("v")
        f()
        """,
    "a syntax error in what is imported": "import broken\n",
    "a recursion without end": "import sys\nsys.setrecursionlimit(200)\ndef f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    print('deep')\n",
    "exit codes: 3": "import sys\nprint('before')\nsys.exit(3)\n",
    "exit codes: none": "raise SystemExit\n",
    "exit codes: 256 is 0 for the shell": "import sys\nsys.exit(256)\n",
    "exit codes: a text": "import sys\nsys.exit('a text on stderr')\n",
    "exit codes: true": "raise SystemExit(True)\n",
    "os._exit": "import os, sys\nprint('before', flush=True)\nos._exit(4)\n",
    "atexit functions": "import atexit\natexit.register(print, 'last')\nprint('first')\n",
    "an exception in a thread": """
        import threading
        def work(): raise ValueError("in the thread")
        threading.excepthook = lambda args: print("thread", args.exc_value)
        t = threading.Thread(target=work); t.start(); t.join()
        print("done")
        """,
    "a thread that outlives the main part": """
        import threading, time
        def work():
            while threading.main_thread().is_alive():
                time.sleep(0.01)
            print("thread ends")
        threading.Thread(target=work).start()
        print("main ends")
        """,
    "an executor that is left open": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        print(list(pool.map(abs, [-1, -2])))
        """,
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 5\nprint(asyncio.run(main()))\n",
    "warnings name the script's line": "import warnings\ndef f():\n    warnings.warn('careful')\nf()\n",
    "binary output": "import sys\nsys.stdout.buffer.write(bytes(range(32, 127)))\nsys.stdout.write('no line break')\n",
    "input": "print(repr(input()))\n",
    "a changed folder": "import os, tempfile\nos.chdir(tempfile.gettempdir())\nprint('gone')\n",
    "closed output": "import sys\nprint('x')\nsys.stdout.flush()\nsys.stdout.close()\nsys.stderr.close()\n",
    "a changed sys.argv and sys.path": "import sys\nsys.argv = []\nsys.path.clear()\nprint('cleared')\n",
    "the end of modules": "class D:\n    def __del__(self): print('deleted')\nd = D()\nprint('end')\n",
    "a script that forks and lets the child run on": """
        import os, sys
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            print("parent", os.waitstatus_to_exitcode(status))
        else:
            sys.exit(7)
        """,
    "random numbers": "import random\nrandom.seed(1)\nprint(random.random())\nprint(hash('a') == hash('a'))\n",
    "the command line of argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\nprint(p.parse_args(['--n', '2']), p.prog)\n",
    "an argparse error": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\np.parse_args(['--n', 'x'])\n",
}  # fmt: skip


def same(place: Place, *words: str, **options: object) -> Ended:
    """Run a script under both; all that can be seen from outside must be the same."""
    theirs = place.python(*words, **options)
    ours = place.voirkit("--quiet", "--force", *words, **options)
    assert (ours.code, ours.out, ours.err) == (theirs.code, theirs.out, theirs.err)
    return ours


@pytest.mark.parametrize("name", PROGRAMS)
def test_does_the_same(place: Place, name: str) -> None:
    place.write(main=PROGRAMS[name], sibling="VALUE = 7\n", broken="def f(:\n    pass\n")
    (place.folder / "data.txt").write_text("the data")
    same(place, "main.py", "--epochs", "2", "x y", "--", "--help", "-m")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(place: Place, method: str) -> None:
    place.write(
        main=f"""
        import multiprocessing as mp, sys
        class Square:
            def __call__(self, x): return x * x, sys.argv[1:], __name__ in ("__main__", "__mp_main__")
        def main():
            with mp.get_context("{method}").Pool(2) as pool:
                print(pool.map(Square(), range(3)))
        if __name__ == "__main__":
            main()
        """
    )
    same(place, "main.py", "--flag")


def test_a_script_in_another_folder_finds_its_siblings(place: Place) -> None:
    place.write(
        {
            "sub/main.py": "import sibling, sys\nprint(sibling.VALUE, sys.path[0], sys.argv)\n",
            "sub/sibling.py": "VALUE = 1\n",
        }
    )
    same(place, "sub/main.py")
    same(place, "./sub/../sub/main.py")
    same(place, str(place.folder / "sub" / "main.py"))


def test_a_script_behind_a_link_finds_the_siblings_of_its_target(place: Place) -> None:
    place.write(
        {
            "real/main.py": "import sibling, sys\nprint(sibling.VALUE, sys.path[0], __file__)\n",
            "real/sibling.py": "VALUE = 2\n",
        }
    )
    os.symlink("real/main.py", place.folder / "link.py")
    same(place, "link.py")


def test_a_folder_with_a_main_file(place: Place) -> None:
    text = "import sys, other\nprint(sys.argv, sys.path[0], __package__, __spec__.name, other.X)\n"
    place.write({"app/__main__.py": text, "app/other.py": "X = 3\n"})
    same(place, "app", "a")


def test_an_archive_with_a_main_file(place: Place) -> None:
    with zipfile.ZipFile(place.folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys, other\nprint(sys.argv, other.X, __name__)\n")
        archive.writestr("other.py", "X = 4\n")
    same(place, "app.zip", "a")


@pytest.mark.parametrize("name", ["package", "package.tool", "package.sub"])
def test_a_module(place: Place, name: str) -> None:
    text = "import sys\nfrom . import value\nprint(sys.argv, sys.path[0], __name__, __package__, __spec__.name, value.X)\n"
    place.write(
        {
            "package/__init__.py": "print('package')\n", "package/value.py": "X = 5\n", "package/__main__.py": text, "package/tool.py": text,
            "package/sub/__init__.py": "", "package/sub/value.py": "X = 7\n", "package/sub/__main__.py": text,
        }
    )  # fmt: skip
    same(place, "-m", name, "--flag", "x")


def test_an_exception_in_a_module(place: Place) -> None:
    place.write(tool="def f(): return 1 / 0\nf()\n")
    theirs, ours = place.python("-m", "tool"), place.voirkit("--quiet", "-m", "tool")
    own = [
        line
        for line in theirs.err.splitlines(keepends=True)
        if "<frozen runpy>" not in line and "runpy.py" not in line
    ]
    assert [
        line
        for line in own
        if "run_globals" not in line and "exec(code" not in line and "return _run_code" not in line
    ] == (ours.err.splitlines(keepends=True))
    assert (ours.code, ours.out) == (theirs.code, theirs.out)


def test_a_function_of_a_module(place: Place) -> None:
    place.write(tool="import sys\ndef main():\n    print('ran', sys.argv[1:], __name__)\n")
    ended = place.voirkit("-m", "tool:main", "a", "--b")
    assert (ended.code, ended.out) == (0, "ran ['a', '--b'] tool\n")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("toll:main", "-m toll: there is no module 'toll'.\n  Did you mean 'tool'"),
        (":main", "-m: ':main' names no function of a module.\n  Write: -m MODULE:FUNCTION"),
        ("tool:", "-m: 'tool:' names no function of a module.\n  Write: -m MODULE:FUNCTION"),
        ("tool:main()", "-m: 'tool:main()' names no function of a module."),
    ],
)
def test_a_function_that_cannot_be_there_makes_no_run(place: Place, name: str, fault: str) -> None:
    place.write(tool="def main():\n    print('ran')\n")
    ended = place.voirkit("-m", name)
    assert (ended.code, ended.out) == (2, "")
    assert fault in ended.err
    assert not (place.folder / "run").exists()


def test_sources_of_every_encoding(place: Place) -> None:
    place.folder.joinpath("latin.py").write_bytes(
        "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n".encode("latin-1")
    )
    place.folder.joinpath("windows.py").write_bytes(
        b"\xef\xbb\xbfdef f():\r\n    return 1\r\nprint(f())\r\n"
    )
    same(place, "latin.py")
    same(place, "windows.py")


@pytest.mark.parametrize(
    "text", ["x = 1\nprint(x)\nif x\n", "return 3\n", "def f():\n  x\n y\n", "x = 1\nglobal x\n"]
)
def test_a_script_that_does_not_compile(place: Place, text: str) -> None:
    place.write(main=text)
    assert same(place, "main.py").code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it_as_they_end_python(place: Place, number: signal.Signals) -> None:
    place.write(
        main=f"""
        import atexit, signal
        atexit.register(print, "at exit", flush=True)
        def work():
            try:
                print("ready", flush=True)
                signal.raise_signal({int(number)})
            finally:
                print("finally", flush=True)
        work()
        """
    )
    assert same(place, "main.py").code == -number


def test_the_console_command_is_the_same_as_the_module(place: Place) -> None:
    place.write(main="import sys\nprint(sys.path[0], sys.argv)\nraise ValueError('x')\n")
    command = os.path.join(os.path.dirname(sys.executable), "voirkit")
    ended = place.run(command, "--quiet", "--run-dir", "run", "main.py", "a")
    theirs = place.python("main.py", "a")
    assert (ended.code, ended.out, ended.err) == (theirs.code, theirs.out, theirs.err)


def test_python_without_a_script_folder_on_its_path(place: Place) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("python 3.10 has no -P")
    place.write(main="import sys\nprint(sys.path[0])\n")
    theirs = place.python("-P", "main.py")
    assert (
        place.run(
            sys.executable, "-P", "-m", "voirkit", "--quiet", "--run-dir", "run", "main.py"
        ).out
        == theirs.out
    )


def test_nothing_is_written_outside_the_run_directory(place: Place) -> None:
    place.write(main="print(1)\n", voirfile="def instrument_x(ov): pass\n")
    before = sorted(place.folder.rglob("*"))
    place.voirkit("main.py", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert [
        p for p in sorted(place.folder.rglob("*")) if place.folder / "run" not in [p, *p.parents]
    ] == before


MORE = {
    "a long chain of elif": "x = 5\nif x == 0:\n    y = 0\n" + "".join(f"elif x == {i}:\n    y = {i}\n" for i in range(1, 400)) + "print(y)\n",
    "a long expression": "def f(x):\n    return " + " + ".join(["x"] * 1100) + "\nprint(f(1))\n",
    "all descriptors closed": "import os\nos.closerange(3, 64)\nf = open('mine.txt', 'w')\nf.write('x')\nf.close()\nprint(open('mine.txt').read())\n",
    "a descriptor taken over": """
        import os
        f = open("mine.txt", "w")
        for fd in range(3, f.fileno()): os.dup2(f.fileno(), fd)
        f.write("mine")
        f.flush()
        print(open("mine.txt").read())
        """,
    "a deleted folder": "import os, shutil\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\nprint('still here')\n",
    "an object of the script that needs a module when it is deleted": "import sibling\nclass B:\n    def __del__(self): print(sibling.VALUE)\nb = B()\n",
    "a syntax warning": "x = 1 is 1\nprint(x)\ndef f(): pass\nprint('between')\nassert (1, 'always')\n",
    "an exception of voirkit that the script raises": "import voirkit\nprint(1)\nraise voirkit.SelectorError('mine')\n",
    "a child that falls off the end": "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint('end', bool(pid), flush=True)\n",
    "a lost standard error": "import sys\nsys.stderr = None\nprint('x')\n",
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_does_the_same_in_odd_cases(place: Place, name: str) -> None:
    place.write(main=MORE[name], sibling="VALUE = 7\n")
    theirs = place.python("main.py")
    for noise in ([], ["--quiet"]):
        ours = place.voirkit(*noise, "--force", "main.py")
        assert (ours.code, ours.out) == (theirs.code, theirs.out)
        said = [line for line in ours.err.splitlines() if not line.startswith("voirkit: ")]
        assert said == theirs.err.splitlines()


def test_a_script_from_a_pipe(place: Place) -> None:
    shell = "print('from a pipe')"
    ended = place.run(
        "bash", "-c", f'"{sys.executable}" -m voirkit --quiet --run-dir run <(echo "{shell}")'
    )
    assert (ended.code, ended.out) == (0, "from a pipe\n")


def test_compiled_scripts_and_archives_with_a_first_line(place: Place) -> None:
    import py_compile
    import zipapp

    place.write(
        {
            "main.py": "print('compiled', __name__)\n",
            "app/__main__.py": "import sys\nprint('archive', sys.argv)\n",
        }
    )
    py_compile.compile(str(place.folder / "main.py"), cfile=str(place.folder / "main.pyc"))
    zipapp.create_archive(
        place.folder / "app", place.folder / "app.pyz", interpreter="/usr/bin/env python3"
    )
    same(place, "main.pyc")
    same(place, "app.pyz", "x")


def test_a_module_in_another_encoding(place: Place) -> None:
    place.folder.joinpath("tool.py").write_bytes(
        "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n".encode("latin-1")
    )
    same(place, "-m", "tool")


def test_a_package_whose_import_fails_fails_as_under_python(place: Place) -> None:
    place.write({"pkg/__init__.py": "import no_such_thing\n", "pkg/__main__.py": ""})
    ended = place.voirkit("--quiet", "-m", "pkg")
    assert ended.code == 1
    assert ended.err.rstrip().endswith("ModuleNotFoundError: No module named 'no_such_thing'")


@pytest.mark.parametrize("name", ["json", "argparse", "rich", "giving", "traceback"])
def test_files_beside_the_script_do_not_hide_what_voirkit_imports(place: Place, name: str) -> None:
    place.write(
        {
            f"{name}.py": "print('mine')\n",
            "main.py": "def f():\n    x = 1\n    return x\nprint(f())\n",
        }
    )
    place.write(
        voirfile="def instrument_x(ov):\n    ov.probe('//f > x').subscribe(lambda event: None)\n"
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "1\n"), ended.err
    assert same(place, f"{name}.py", env={"VOIRFILE": ""}).out == "mine\n"


def test_the_first_line_of_a_script_finds_no_module_that_plain_python_has_not_loaded(
    place: Place,
) -> None:
    """numpy reads its settings (``OPENBLAS_NUM_THREADS``) when it is loaded, and the script may have a module of that name."""
    place.write(
        main="import sys\nprint([name for name in ('numpy', 'ctypes', 'psutil') if name in sys.modules])"
    )
    for flag in ("--parameters", "--checks", "--verify"):
        assert place.voirkit("--quiet", "--force", flag, "main.py").out.startswith("[]\n"), flag
