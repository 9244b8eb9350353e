"""What can be probed in a file is found without running it."""

from __future__ import annotations

import sys
import textwrap

import pytest

from voirkit.errors import SelectorError
from voirkit.probes.selector.catalogue import (
    Catalogue,
    Function,
    Loop,
    catalogue,
    catalogue_of_function,
    catalogue_of_module,
)


def read(text: str) -> Catalogue:
    return catalogue(textwrap.dedent(text).lstrip("\n"), "main.py")


def function(text: str, *path: str) -> Function:
    found = read(text).find(path or ("f",))
    assert found is not None
    return found


def forms(found: Function) -> dict[str, tuple[str, ...]]:
    return {name: variable.forms for name, variable in found.variables.items()}


NESTED = """
    LIMIT = 3

    class Trainer:
        size: int = 4

        class Inner:
            def deep(self):
                pass

        @staticmethod
        def fixed(x):
            pass

        async def later(self):
            pass

    @decorate(
        1
    )
    def outer(a, b=2, *c, d, **e):
        def inner(x):
            class Local:
                def m(self):
                    pass
        return inner

    short = lambda n: n + 1
"""


# Functions


def test_functions_are_found_with_their_paths_in_source_order() -> None:
    paths = ["/".join(f.path) for f in read(NESTED).functions]
    assert paths == [
        "Trainer/Inner/deep",
        "Trainer/fixed",
        "Trainer/later",
        "outer",
        "outer/inner",
        "outer/inner/Local/m",
        "short",
    ]


def test_a_function_says_where_it_stands() -> None:
    found = read(NESTED)
    kinds = {"/".join(f.path): f.kind for f in found.functions}
    assert kinds["outer"] == kinds["short"] == "function"
    assert kinds["Trainer/fixed"] == kinds["outer/inner/Local/m"] == "method"
    assert kinds["outer/inner"] == "nested function"


def test_async_functions_and_lambdas_with_a_name_are_found() -> None:
    found = read(NESTED)
    assert {"Trainer.later", "short"} <= {f.name for f in found.functions}


def test_the_line_is_that_of_def_and_the_first_line_that_of_the_decorator() -> None:
    outer = function(NESTED, "outer")
    assert (outer.line, outer.last_line) == (20, 25)
    assert outer.decorators == ("decorate",)


def test_parameters_come_in_the_order_of_the_signature() -> None:
    assert list(function(NESTED, "outer").parameters) == ["a", "b", "c", "d", "e"]
    assert list(function("def f(a, /, b, *, c): pass").parameters) == ["a", "b", "c"]


def test_the_last_definition_is_the_live_one_and_all_are_kept() -> None:
    found = read("def f(): a = 1\ndef f(): b = 1\n")
    live = found.find(("f",))
    assert live is not None
    assert live.line == 2
    assert [f.line for f in found.definitions(("f",))] == [1, 2]
    assert found.candidates(("f",)) == [live]


def test_definitions_in_branches_can_each_be_the_live_one() -> None:
    found = read(
        """
        def f(): a = 1
        if x:
            def f(): b = 1
        else:
            def f(): c = 1
        """
    )
    assert [f.line for f in found.candidates(("f",))] == [1, 3, 5]
    assert [f.is_conditional for f in found.functions] == [False, True, True]


def test_a_property_is_its_getter() -> None:
    found = read(
        """
        class C:
            @property
            def x(self):
                got = 1
            @x.setter
            def x(self, value):
                put = value
        """
    ).find(("C", "x"))
    assert found is not None
    assert "got" in found.variables


def test_what_is_not_there_is_none() -> None:
    assert read("x = 1").find(("f",)) is None
    assert read("x = 1").find_class(("C",)) is None


def test_classes_tell_their_bases_and_methods() -> None:
    found = read(
        """
        class A(nn.Module, Generic[T], make(1), metaclass=M):
            limit = 3
            def run(self): pass
        """
    )
    a = found.find_class(("A",))
    assert a is not None
    assert a.bases == ("nn.Module", "Generic", "make")
    assert list(a.names) == ["limit", "run"]
    assert found.inside(("A",)) == ["run"]


# Variables


BINDINGS = [
    ("x = 1", "assignment"),
    ("a = x = 1", "assignment"),
    ("a, (b, x) = 1, (2, 3)", "assignment"),
    ("[a, x] = 1, 2", "assignment"),
    ("a, *x = 1, 2", "assignment"),
    ("x += 1", "augmented"),
    ("x: int = 1", "annotated"),
    ("print(x := 1)", "walrus"),
    ("[(x := i) for i in y]", "walrus"),
    ("for x in y: pass", "for"),
    ("for a, (b, *x) in y: pass", "for"),
    ("with y as x: pass", "with"),
    ("with y as (a, x): pass", "with"),
    ("try: pass\n    except E as x: pass", "except"),
    ("import x", "import"),
    ("import x.y", "import"),
    ("import y as x", "import"),
    ("from y import x", "import"),
    ("from .y import z as x", "import"),
    ("def x(): pass", "def"),
    ("async def x(): pass", "def"),
    ("class x: pass", "class"),
    ("match y:\n        case [x, *_]: pass", "match"),
    ("match y:\n        case [1, *x]: pass", "match"),
    ("match y:\n        case {'k': 1, **x}: pass", "match"),
    ("match y:\n        case K(a=x): pass", "match"),
    ("match y:\n        case int() as x: pass", "match"),
    ("del x", "del"),
    ("while a:\n        if b: pass\n        else: x = 1", "assignment"),
    ("try: pass\n    finally: x = 1", "assignment"),
]


@pytest.mark.parametrize(("statement", "form"), BINDINGS)
def test_every_form_of_binding_makes_a_variable(statement: str, form: str) -> None:
    assert forms(function(f"def f(y):\n    {statement}\n"))["x"] == (form,)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_a_type_statement_makes_a_variable() -> None:
    assert forms(function("def f():\n    type x = int\n")) == {"x": ("type",)}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_no_variables() -> None:
    assert function("def f[T: int](x: T):\n    y = x\n").own_names == ["x", "y"]


def test_variables_come_in_the_order_of_their_first_binding_with_its_line() -> None:
    found = function(
        """
        def f(n):
            b = (a := 1)
            for i in (c := []):
                d = 1
            b += 1
        """
    )
    assert [(v.name, v.line) for v in found.variables.values()] == [
        ("a", 2),
        ("b", 2),
        ("c", 3),
        ("i", 3),
        ("d", 4),
    ]
    assert found.variables["b"].forms == ("assignment", "augmented")


def test_a_parameter_that_is_assigned_stays_a_parameter() -> None:
    found = function("def f(n):\n    n = 1\n")
    assert found.parameters["n"].forms == ("parameter", "assignment")
    assert not found.variables


def test_comprehension_variables_are_kept_apart() -> None:
    found = function("def f(n):\n    a = {k: [v for v in k] for k, (w, *r) in n if k for q in w}\n")
    assert list(found.variables) == ["a"]
    assert set(found.comprehension_variables) == {"k", "w", "r", "q", "v"}


def test_variables_of_inner_functions_lambdas_and_classes_are_not_the_functions() -> None:
    found = function(
        """
        def f(n):
            def g(p):
                q = 1
            class C:
                r = 1
            h(lambda s: [t for t in s])
            k = lambda u: u
        """
    )
    assert found.own_names == ["n", "g", "C", "k"]
    assert not found.comprehension_variables


def test_a_bare_annotation_is_no_binding() -> None:
    found = function("def f():\n    x: int\n    y = 1\n")
    assert found.declared == {"x": 2}
    assert list(found.variables) == ["y"]
    assert found.knows("x")


def test_attribute_targets_are_kept_apart() -> None:
    found = function(
        "def f(self):\n    self.x = 1\n    self.net.lr += 1\n    a, self.y = 1, 2\n    g().z = 1\n"
    )
    assert [(v.name, v.line) for v in found.attributes.values()] == [
        ("self.x", 2),
        ("self.net.lr", 3),
        ("self.y", 4),
    ]
    assert list(found.variables) == ["a"]


def test_imported_names_know_where_they_come_from() -> None:
    names = read(
        "import a.b\nimport a.b as c\nfrom d.e import f as g\nfrom ..h import i\nfrom j import *\n"
    ).names
    assert {name: v.origin for name, v in names.items()} == {
        "a": ("a", ""),
        "c": ("a.b", ""),
        "g": ("d.e", "f"),
        "i": ("..h", "i"),
    }


# What a function reads


def test_names_from_outside_are_global_or_free() -> None:
    source = """
        G = 1
        def outer(a):
            b = late = 1
            def inner(x):
                global D
                D = x + a + b + len(G) + later
                return D
            later = 1
        """
    inner = function(source, "outer", "inner")
    assert set(inner.globals_read) == {"len", "G", "D"}
    assert set(inner.free_read) == {"a", "b", "later"}
    assert inner.globals_declared == ("D",)
    assert all(inner.knows(name) for name in ("x", "a", "b", "later", "len", "G", "D"))
    assert not inner.knows("late")


def test_nonlocal_names_are_variables_and_free() -> None:
    inner = function(
        "def o():\n    n = 0\n    def i():\n        nonlocal n\n        n += 1\n", "o", "i"
    )
    assert inner.nonlocals_declared == ("n",)
    assert inner.free_read == ("n",)
    assert "n" in inner.variables


def test_what_defaults_decorators_and_annotations_read_belongs_to_the_function_around() -> None:
    source = "def o():\n    @d(1)\n    def i(x: t = v) -> r:\n        return x\n"
    assert set(function(source, "o").globals_read) == {"d", "t", "v", "r"}
    assert not function(source, "o", "i").globals_read


def test_what_lambdas_and_comprehensions_read_belongs_to_the_function() -> None:
    found = function("def f(n):\n    return sorted(n, key=lambda k: [TABLE[k][i] for i in k])\n")
    assert set(found.globals_read) == {"sorted", "TABLE"}


# Loops, returns, yields


def test_for_loops_tell_their_names_and_lines() -> None:
    found = function(
        """
        def f(loader):
            for i, (inp, *rest) in enumerate(loader):
                while True:
                    for inp in rest:
                        pass
            return [q for q in loader]
        """
    )
    assert found.loops == (Loop(("i", "inp", "rest"), 2), Loop(("inp",), 4))


def test_returns_and_yields_tell_their_lines() -> None:
    found = function(
        "def f(n):\n    if n:\n        return\n    x = yield n\n    yield from n\n    return (lambda: (yield))\n"
    )
    assert found.returns == (3, 6)
    assert found.yields == (4, 5)
    assert found.is_generator


# The file


def test_top_level_names_have_their_lines() -> None:
    names = read(
        "import os\nLIMIT = 3\nfor step in []:\n    pass\ndef f(): pass\nclass C: pass\n"
    ).names
    assert {name: v.line for name, v in names.items()} == {
        "os": 1,
        "LIMIT": 2,
        "step": 3,
        "f": 5,
        "C": 6,
    }


def test_a_file_without_functions_is_no_special_case() -> None:
    assert read("").functions == ()
    assert read("for step in []: pass").loops == (Loop(("step",), 1),)


def test_a_source_that_does_not_parse_raises_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        catalogue("x = = 1", "torn.py")
    with pytest.raises(SyntaxError):
        catalogue("x = 1\0", "torn.py")


def test_a_source_in_another_encoding_is_read() -> None:
    assert list(
        catalogue("# -*- coding: latin-1 -*-\né = 1\n".encode("latin-1"), "main.py").names
    ) == ["é"]


def test_reading_gives_no_warnings_of_the_source() -> None:
    assert "x" in read(r"x = '\d'").names


def test_long_chains_are_no_deep_recursion() -> None:
    branches = "".join(f"    elif n == {i}:\n        x{i} = 1\n" for i in range(600))
    total = " + ".join(["1"] * 1500)
    found = function(f"def f(n):\n    if n:\n        pass\n{branches}    y = {total}\n")
    assert len(found.variables) == 601


def test_lines_can_start_later() -> None:
    assert (
        catalogue("def f():\n    a = 1\n", "main.py", first_line=10)
        .functions[0]
        .variables["a"]
        .line
        == 11
    )


# Modules


@pytest.fixture
def library(tmp_path, monkeypatch):
    package = tmp_path / "lab_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "steps.py").write_text(
        "raise RuntimeError('imported')\ndef train():\n    loss = 1\n"
    )
    (package / "torn.py").write_text("def f(:\n")
    (tmp_path / "lab_namespace").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_a_module_is_found_without_importing_it_or_its_package(library) -> None:
    found = catalogue_of_module("lab_package.steps")
    assert found is not None
    assert found.find(("train",)) is not None
    assert found.filename == str(library / "steps.py")
    assert found.module == "lab_package.steps"
    assert "lab_package" not in sys.modules


def test_modules_without_python_source_have_no_catalogue(library) -> None:
    assert catalogue_of_module("math") is None
    assert catalogue_of_module("sys") is None
    assert catalogue_of_module("lab_namespace") is None


def test_frozen_modules_of_the_standard_library_are_read_from_their_files() -> None:
    found = catalogue_of_module("os")
    assert found is not None
    assert found.find(("walk",)) is not None


def test_an_unknown_module_is_an_error_with_the_nearest_name(library) -> None:
    with pytest.raises(SelectorError, match=r"no module 'lab_pakage'[\s\S]*'lab_package'"):
        catalogue_of_module("lab_pakage")
    with pytest.raises(
        SelectorError, match=r"no module 'lab_package.step'[\s\S]*'lab_package.steps'"
    ):
        catalogue_of_module("lab_package.step")
    with pytest.raises(SelectorError, match=r"no module 'math.floor'"):
        catalogue_of_module("math.floor")


def test_a_module_that_does_not_parse_raises_syntax_error(library) -> None:
    with pytest.raises(SyntaxError):
        catalogue_of_module("lab_package.torn")


# Live functions


def plain(n):
    local = n + 1
    return [local]


def test_a_live_function_is_read_from_its_source() -> None:
    found = catalogue_of_function(plain)
    assert found is not None
    assert found.line == plain.__code__.co_firstlineno
    assert found.variables["local"].line == found.line + 1
    assert found.filename == __file__


def test_a_live_inner_function_knows_its_free_names_and_path() -> None:
    def inner(x):
        return x + step + len("a")

    step = 1
    found = catalogue_of_function(inner)
    assert found is not None
    assert found.free_read == ("step",)
    assert found.globals_read == ("len",)
    assert found.path == ("test_a_live_inner_function_knows_its_free_names_and_path", "inner")
    assert found.kind == "nested function"


def test_a_live_method_knows_that_it_is_one() -> None:
    class Local:
        def run(self):
            pass

    found = catalogue_of_function(Local.run)
    assert found is not None
    assert found.kind == "method"


def test_a_function_without_source_has_no_catalogue() -> None:
    names: dict[str, object] = {}
    exec("def f(): pass", names)
    assert catalogue_of_function(names["f"]) is None  # type: ignore[arg-type]


def test_a_match_on_true_false_and_none_is_read() -> None:
    found = catalogue(
        "def f(x):\n    match x:\n        case True | False | None:\n            y = 1\n    return y\n",
        "main.py",
    )
    assert "y" in found.functions[0].variables
