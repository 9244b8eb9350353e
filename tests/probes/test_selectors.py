"""Selectors are read before the script runs, and the message says what would be right."""

from __future__ import annotations

import pytest
from selecting import WHERE

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse


def refused(selector: str) -> str:
    """What is said about a selector that has not the form of one."""
    with pytest.raises(SelectorError) as caught:
        parse(selector, WHERE)
    return str(caught.value)


# Reading


ACCEPTED = [
    "f > x",
    "f(!x)",
    "f>x",
    "f\n  > x",
    "(f) > x",
    "f((x)) > a",
    "outer > inner > z",
    "f(x, y as yy) > z",
    "f(x, a)",
    "f()",
    "outer(extra(!c), brie(x))",
    "branch(leaf() as r) > total",
    "f() as r",
    "f > #value as r",
    "f(x as batch) > a as step",
    "f > out as a-b.c",
    "f(x=2) > a",
    "f(x=-1) > a",
    "f(x=0.5) > a",
    "f > a=4",
    "f(x)=5",
    "f(x='a > b') > a",
    "f(x=name) > a",
    "f(x=module.name) > a",
    "f(i ~ every(3))",
    "f(i ~ every(3)) > a",
    "f(i ~ between(1, end=n)) > a",
    "f > $x",
    "f($x) > a",
    "f > $x:@Cool",
    "f(c:tag.Cool) > a",
    "f > $x:@enter",
    "gen > $y:@exit",
    "f(!#loop_i as s, !!#endloop_i as e, i as batch)",
    "f(!x, !a)",
    "C.m > x",
    "/mod.sub/C/m > x",
    "//f > x",
    "/mod/outer/inner > x",
    "/__main__/f > x",
    "f > #enter",
    "f > #exit",
    "f > self.x",
    "f(self.net.lr) > x",
    "f > #error",
    "f > #yield",
    "f > #receive",
    "//train_epoch(inp as batch) > #endloop_inp as step",
    "//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)",
    "/argparse/ArgumentParser/parse_args() as options",
]


@pytest.mark.parametrize("selector", ACCEPTED)
def test_every_form_that_a_probe_can_serve_is_accepted(selector: str) -> None:
    assert parse(selector, WHERE).selector == selector


def test_a_parsed_selector_tells_its_functions_in_order() -> None:
    parsed = parse("//main(x) > C.m > /mod.sub/C/m > y", WHERE)
    assert [(f.reference, f.module, f.path) for f in parsed.functions] == [
        ("//main", "", ("main",)),
        ("C.m", None, ("C", "m")),
        ("/mod.sub/C/m", "mod.sub", ("C", "m")),
    ]
    assert parsed.focus is parsed.functions[2]


def test_a_parsed_function_tells_what_is_captured_in_it() -> None:
    (f,) = parse(
        "f(a as b, !#loop_i as s, !!#endloop_j, #value, $g, $t:@Tag, c=3)", WHERE
    ).functions
    assert f.variables == ["a", "c"]
    assert f.loops == ["i", "j"]
    assert f.hashes == ["#value"]
    assert [(c.name, c.alias, c.focus) for c in f.captures[:2]] == [
        ("a", "b", 0),
        ("#loop_i", "s", 1),
    ]
    assert [(c.name, c.alias, c.focus) for c in f.captures[2:5]] == [
        ("#endloop_j", "#endloop_j", 2),
        ("#value", "#value", 0),
        ("", "g", 0),
    ]
    assert [(c.name, c.alias) for c in f.captures[5:]] == [("", "t"), ("c", "c")]


def test_a_parsed_selector_tells_the_names_that_it_needs() -> None:
    parsed = parse(
        "f(a=1, b='s', c=name.part, i ~ every(n, end=last), d:tag.Cool, e:@Cool) > x", WHERE
    )
    assert parsed.names == ("name.part", "every", "n", "last")
    assert parsed.tags == ("tag.Cool",)


def test_the_focus_is_where_the_event_is_made() -> None:
    assert parse("outer(extra(!c), brie(x))", WHERE).focus.reference == "extra"
    assert parse("f(x, g(y))", WHERE).focus.reference == "f"
    assert parse("g > f() as r", WHERE).focus.reference == "f"


# Reading: errors


def test_what_is_no_string_is_refused() -> None:
    with pytest.raises(SelectorError, match="a selector is a string, not an object of type int"):
        parse(3, WHERE)  # type: ignore[arg-type]


def test_unbalanced_parentheses_are_marked() -> None:
    assert refused("//train_epoch( > loss") == (
        "voirfile.py:7: selector '//train_epoch( > loss': a parenthesis is never closed.\n    //train_epoch( > loss\n                 ^"
    )
    assert "closed that was never opened" in refused("f) > x")


def test_the_mark_stands_under_the_right_line_of_a_long_selector() -> None:
    assert refused("f(\n\tx y) > z").endswith(
        "\n    \tx y) > z\n    \t  ^\n  Write 'x > y' for the variable y in a call of x."
    )
    assert refused("  f > > x").endswith("\n      f > > x\n          ^")


FORMS = [
    ("//train_epoch > > loss", "a name is missing between '>' and '>'"),
    ("> x", "a name is missing before '>'"),
    ("f >", "a name is missing after '>'"),
    ("f(x,) > a", "a name is missing between ',' and ')'"),
    ("f(, x) > a", "a name is missing between '(' and ','"),
    ("f(x as) > a", "a name is missing between 'as' and ')'"),
    ("f(()) > a", "a name is missing between '(' and ')'"),
    ("f(x == 3) > a", "A comparison has one '='"),
    ("f > x!", "'!' stands before a name"),
    ("f > !!!x", "'!!!' has no meaning"),
    ("f a", "an operator is missing before 'a'"),
    ("f(x)y", "an operator is missing before 'y'"),
    ("a >> b", "'>>' is not part of the language"),
    ("//train_epoch > settings[rate]", "settings[rate]': an index cannot be probed"),
    ("f > d['k']", "an index cannot be probed"),
    ("{out}", "'{' has no meaning"),
    ("f > %", "'%' has no meaning"),
    ('f > x="s"', "single quotes"),
    ("f > x='s", "a quote is opened and not closed"),
    ("", "selector '': it is empty"),
    (" \n ", "it is empty"),
    ("f > x, f > y", "each selector as an argument of its own"),
    ("f(x ~ lambda: 3) > a", "it cannot be read"),
    ("f > (x, y)", "it cannot be read"),
    ("f > x=1e-3", "'1e-3' is not a value"),
]


@pytest.mark.parametrize(("selector", "words"), FORMS)
def test_what_has_not_the_form_of_a_selector_is_refused(selector: str, words: str) -> None:
    said = refused(selector)
    assert said.startswith(f"voirfile.py:7: selector {selector!r}: ")
    assert words in said


MEANINGS = [
    ("loss", "'loss' stands alone: a variable of which function?"),
    ("loss", "'//train_epoch > loss'"),
    ("//train_epoch", "it names a function, but nothing to observe"),
    ("*", "'*' stands for any function"),
    ("* > loss", "'*' stands for any function"),
    ("$f > loss", "a function needs a name"),
    ("f(n, !!#value)", "'!!' marks the end of what a '!' begins"),
    ("f > #lop_x", "there is no '#lop_x'"),
    ("f > #lop_x", "#enter, #exit, #value, #error, #yield, #receive, #loop_X, #endloop_X"),
    ("f > #lop_x", "Did you mean '#loop_x'"),
    ("f > #valu", "Did you mean '#value'?"),
    ("f > #loop_", "there is no '#loop_'"),
    ("//Trainer.run > x", "Did you mean '//Trainer/run'?"),
    ("//pkg.mod/f > x", "Did you mean '/pkg.mod/f'?"),
    ("/pkg.mod/C.m > x", "Did you mean '/pkg.mod/C/m'?"),
    ("/train_epoch > x", "Did you mean '//train_epoch'?"),
    ("/ > x", "'/' names no function"),
    ("//a//b > x", "'//a//b' names no function"),
    ("3 > x", "'3' is not the name of a function"),
    ("'f' > x", "is not the name of a function"),
    ("#enter > x", "'#enter' is not the name of a function"),
    ("f > 3", "'3' is not the name of a variable"),
    ("f > a/b", "'a/b' is not the name of a variable"),
    ("f=5 > x", "'f' is a function here"),
    ("f > self.", "'self.' is not the name of a variable"),
    ("f(self..lr) > x", "'self..lr' is not the name of a variable"),
]


@pytest.mark.parametrize(("selector", "words"), MEANINGS)
def test_what_no_probe_can_mean_is_refused(selector: str, words: str) -> None:
    assert words in refused(selector)


def test_a_selector_longer_than_anybody_writes_is_refused_at_once() -> None:
    """ptera keeps of each word the rest of the selector: these took a gigabyte."""
    assert "longer than 4,096 characters" in refused("f() as " + "'" * 65_000)
