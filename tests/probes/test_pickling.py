"""Functions with probes are pickled by value as without: for joblib, dask, Ray and their like."""

from __future__ import annotations

import marshal

import pytest
from conftest import Place, needs_pickler

from voirkit import probing

FUNCTIONS = """
    def f(x):
        y = x * 2
        def inner(z):
            w = z + y
            return w
        return inner(1)
    class K:
        def m(self):
            y = 4
            return y
    def taps(function):
        return [c for c in function.__code__.co_consts if callable(c)]
    """
VOIRFILE = """
    def instrument_p(ov):
        for selector in ("//f > y", "//f/inner > w", "//K/m > y"):
            ov.probe(selector).subscribe(lambda event: None)
    """


@pytest.mark.parametrize("library", ["cloudpickle", "dill"])
def test_who_pickles_by_value_takes_the_program_s_own_code(place: Place, library: str) -> None:
    needs_pickler(library)
    place.write(
        {
            "functions.py": FUNCTIONS,
            "program.py": f"""
            import sys, {library}
            from functions import *
            f.__module__ = K.__module__ = K.m.__module__ = "__main__"
            if "late" in sys.argv:
                import voirkit
                probes = [voirkit.global_probe(s) for s in ("f > y", "f > #enter", "K.m > y")]
                for probe in probes:
                    probe.subscribe(lambda event: None)
                assert taps(f)
            g = {library}.loads({library}.dumps(f))
            print(g(4), taps(g), g.__code__.co_varnames)
            print({library}.loads({library}.dumps(K))().m())
            """,
        }
    )
    plain, probed = place.python("program.py"), place.python("program.py", "late")
    assert plain.err == ""
    assert (plain.out, plain.err, plain.code) == (probed.out, probed.err, probed.code)


def test_code_with_taps_is_not_marshalled() -> None:
    def f(x: int) -> None:
        y = x
        del y

    with probing("f > y").values(), pytest.raises(ValueError, match="unmarshallable"):
        marshal.dumps(f.__code__)
    assert marshal.loads(marshal.dumps(f.__code__)) == f.__code__


def test_joblib_s_processes_run_a_script_s_functions(place: Place) -> None:
    pytest.importorskip("joblib")
    main = "import warnings\nfrom joblib import Parallel, delayed\n" + FUNCTIONS.replace(
        "\n    ", "\n"
    )
    place.write(
        voirfile=VOIRFILE,
        main=main + "print(Parallel(n_jobs=2)(delayed(f)(i) for i in range(3)))\n",
    )
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.out, ended.code) == ("[1, 3, 5]\n", 0)
