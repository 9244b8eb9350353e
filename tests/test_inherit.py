"""What processes that multiprocessing starts anew inherit: an offer is taken before their work is loaded, and they start whatever fails."""

from __future__ import annotations

import json
import os
from textwrap import dedent
from typing import Any

import pytest
from conftest import Place

TOOLS = """
    import os, sys

    taken = []

    def take(offer):
        taken.append((offer, "work" in sys.modules, hasattr(sys.modules["__main__"], "PREPARED")))

    def offer():
        return {"n": 1, "from": 0}

    def take_other(offer):
        taken.append(offer)

    def nothing():
        return None

    def fails(offer=None):
        raise ValueError("as ever")

    def unpicklable():
        return lambda: 0

    class Explodes:
        def __reduce__(self):
            return int, ("no number",)

    def explodes():
        return Explodes()
"""

WORK = """
    import multiprocessing, tools

    def work(queue, depth=0):
        queue.put([list(map(repr, tools.taken)), None])
        if depth:
            multiprocessing.set_forkserver_preload([])
            child = multiprocessing.Process(target=work, args=(queue, depth - 1))
            child.start()
            child.join()

    class Mine(multiprocessing.get_context("spawn").Process):
        def __init__(self, queue, other=None):
            super().__init__()
            self.queue, self.other = queue, other

        def run(self):
            work(self.queue)
"""

PROGRAM = """
    import json, multiprocessing, os, sys

    PREPARED = 1

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        multiprocessing.set_start_method(sys.argv[1])
        import tools, work
        from voirkit.processes import inherit
        queue = context.Queue()

        def told(target=work.work, args=(), make=context.Process):
            child = make(target=target, args=(queue, *args)) if make is context.Process else make(queue, *args)
            child.start()
            child.join()
            assert child.exitcode == 0
            return queue.get()[0]

"""


def said(place: Place, body: str, method: str = "spawn", err: str = "") -> Any:
    place.write(tools=TOOLS, work=WORK, program=PROGRAM + body)
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    ended = place.python("-W", "error", "program.py", method, timeout=240, env=env)
    assert (ended.code, ended.err) == (0, err)
    return json.loads(ended.out.splitlines()[-1])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_offers_are_taken_after_the_main_module_is_loaded_and_before_the_work(
    place: Place, method: str
) -> None:
    assert said(place, """
        inherit.watch("tools:take", tools.offer)
        inherit.watch("tools:take_other", lambda: [2])
        inherit.watch("tools:fails", tools.nothing)
        print(json.dumps(told()))
    """, method) == ["({'n': 1, 'from': 0}, False, True)", "[2]"]  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_offers_can_be_taken_before_the_main_module_is_loaded(place: Place, method: str) -> None:
    assert said(place, """
        context.set_forkserver_preload([])  # else the server itself loads the main module, since 3.14 and in late 3.13
        inherit.watch("tools:take_other", lambda: [2])
        inherit.watch("tools:take", tools.offer, before_main=True)
        child = context.Process(target=work.work, args=(queue, 1))
        child.start()
        child.join()
        print(json.dumps([queue.get()[0] for _ in range(2)]))
    """, method) == [["({'n': 1, 'from': 0}, False, False)", "[2]"], ["({'n': 1, 'from': 0}, False, False)"]]  # fmt: skip


def test_nothing_is_taken_before_the_main_module_after_unwatch(place: Place) -> None:
    assert said(place, """
        from multiprocessing import spawn
        before = spawn.get_preparation_data
        inherit.watch("tools:take", tools.offer, before_main=True)
        one = told()
        inherit.unwatch("tools:take")
        print(json.dumps([len(one), len(told()), spawn.get_preparation_data is before]))
    """) == [1, 0, True]  # fmt: skip


def test_the_module_of_a_class_of_processes_is_loaded_later_too(place: Place) -> None:
    assert said(place, """
        inherit.watch("tools:take", tools.offer)
        print(json.dumps(told(make=work.Mine)))
    """) == ["({'n': 1, 'from': 0}, False, True)"]  # fmt: skip


def test_children_of_children_inherit_what_can_be_found_by_name(place: Place) -> None:
    assert said(place, """
        inherit.watch("tools:take", tools.offer)
        inherit.watch("tools:take_other", lambda: [2])
        child = context.Process(target=work.work, args=(queue, 2))
        child.start()
        child.join()
        print(json.dumps([len(queue.get()[0]) for _ in range(3)]))
    """) == [2, 1, 1]  # fmt: skip


def test_nothing_is_taken_after_unwatch(place: Place) -> None:
    assert said(place, """
        from multiprocessing.process import BaseProcess
        inherit.watch("tools:take", tools.offer)
        inherit.watch("tools:take_other", tools.offer)
        inherit.unwatch("tools:take")
        one = told()
        inherit.unwatch("tools:take_other")
        inherit.unwatch("tools:take_other")
        print(json.dumps([len(one), len(told()), "__reduce_ex__" in vars(BaseProcess)]))
    """) == [1, 0, False]  # fmt: skip


@pytest.mark.parametrize(("offer", "error"), [("fails", "ValueError"), ("unpicklable", "")])
def test_a_process_starts_though_an_offer_can_not_be_made(
    place: Place, offer: str, error: str
) -> None:
    place.write(tools=TOOLS, work=WORK, program=PROGRAM + f"""
        inherit.watch("tools:take", tools.{offer})
        inherit.watch("tools:take_other", tools.offer)
        print(json.dumps([told(), told()]))
    """)  # fmt: skip
    ended = place.python("program.py", "spawn", timeout=240)
    assert ended.code == 0
    assert json.loads(ended.out) == [["{'n': 1, 'from': 0}"]] * 2
    assert ended.err.count("voirkit: tools does not reach processes that are started anew") == 1
    assert error in ended.err


def test_a_process_starts_though_an_offer_can_not_be_taken(place: Place) -> None:
    said_there = (
        "voirkit: tools does not work in a process that was started anew (ValueError: as ever).\n"
        "voirkit: nowhere does not work in a process that was started anew (ModuleNotFoundError: No module named 'nowhere').\n"
    )
    assert said(place, """
        inherit.watch("tools:fails", tools.offer)
        inherit.watch("nowhere:take", tools.offer)
        inherit.watch("tools:take_other", tools.offer)
        print(json.dumps(told()))
    """, err=said_there) == ["{'n': 1, 'from': 0}"]  # fmt: skip


def test_a_process_starts_though_an_offer_can_not_be_loaded(place: Place) -> None:
    said_there = (
        "voirkit: tools does not work in a process that was started anew "
        "(ValueError: invalid literal for int() with base 10: 'no number').\n"
    )
    assert said(place, """
        inherit.watch("tools:take", tools.explodes)
        inherit.watch("tools:take_other", tools.offer)
        print(json.dumps(told()))
    """, err=said_there) == ["{'n': 1, 'from': 0}"]  # fmt: skip


def test_a_process_starts_though_voirkit_does_not_work_there(place: Place) -> None:
    place.write({"empty/__init__.py": ""})
    assert said(place, """
        inherit._FOLDER = "empty"
        inherit.watch("tools:take", tools.offer)
        print(json.dumps(told()))
    """, err="voirkit: sees nothing in a process that was started anew (ModuleNotFoundError: No module named 'voirkit.processes').\n") == []  # fmt: skip


def test_a_process_inherits_once_though_another_is_among_its_arguments(place: Place) -> None:
    assert said(place, """
        inherit.watch("tools:take", tools.offer)
        print(json.dumps([len(told(make=work.Mine, args=(work.Mine(queue),))), len(told())]))
    """) == [1, 1]  # fmt: skip


def test_voirkit_need_not_be_on_the_path_of_the_child(place: Place) -> None:
    place.write({"other/voirkit.py": "raise SystemError('something else of that name')"})
    assert said(place, """
        inherit.watch("tools:take", tools.offer)
        sys.path[:] = ["other", *(folder for folder in sys.path if not os.path.exists(os.path.join(folder, "voirkit")))]
        print(json.dumps(told()))
    """) == ["({'n': 1, 'from': 0}, False, True)"]  # fmt: skip


# Each prints what a worker has taken, when it begins with its work.
EXECUTORS = {
    "joblib": "joblib.Parallel(n_jobs=2)([joblib.delayed(work.taken)()] * 2)[0]",
    "loky": "loky.get_reusable_executor(max_workers=1).submit(work.taken).result()",
    "multiprocess": "multiprocess.get_context('spawn').Pool(1).apply(work.taken)",
}
OTHERS = """
    import importlib, json, sys

    if __name__ == "__main__":
        from voirkit.processes import inherit
        import tools, work

        if sys.argv[1] != "plainly":
            inherit.watch("tools:take_other", tools.offer, before_main=True)
            inherit.watch("tools:take_other_late", lambda: [2])
        if sys.argv[1] == "no more":
            inherit.unwatch("tools:take_other")
            inherit.unwatch("tools:take_other_late")
        {library} = importlib.import_module("{library}")
        print(json.dumps({expression}))
"""
TAKEN = """
    import sys, tools

    def taken():
        return [tools.taken, sys.argv, "torch" in sys.modules]
"""


@pytest.mark.parametrize("library", EXECUTORS)
def test_processes_that_other_libraries_start_take_the_offers(place: Place, library: str) -> None:
    pytest.importorskip(library)
    program = dedent(OTHERS).format(library=library, expression=EXECUTORS[library])
    place.write(tools=TOOLS + "\n    take_other_late = take_other\n", work=TAKEN, program=program)
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}

    def workers(how: str) -> Any:
        ended = place.python("program.py", how, env=env)
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out)

    assert workers("plainly") == [[], ["program.py", "plainly"], False]
    assert workers("watched") == [[{"n": 1, "from": 0}, [2]], ["program.py", "watched"], False]
    assert workers("no more") == [[], ["program.py", "no more"], False]


def test_importing_it_is_light(place: Place) -> None:
    place.write(
        program="import sys\nbefore = set(sys.modules)\nimport voirkit.processes.inherit\nprint(*sorted(set(sys.modules) - before))"
    )
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    loaded = place.python("program.py", env=env).out.split()
    assert [name for name in loaded if name.startswith("voirkit")] == [
        "voirkit",
        "voirkit.imports",
        "voirkit.processes",
        "voirkit.processes.inherit",
    ]
    assert not {"multiprocessing", "pickle", "weakref", "importlib.util"} & set(loaded)
