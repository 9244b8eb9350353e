"""The selector language: the text becomes the functions and captures that it names, and those a plan: what is captured, fires, must hold.

The language is ptera's, and so is the parser (``ptera.selector`` 1.4.1); the errors are not, and mark the place. Whether what a selector
names exists is asked in ``check.py``; the functions themselves are found in ``live_functions.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from itertools import count
from typing import Any
from weakref import ref

from voirkit.errors import SelectorError, did_you_mean
from voirkit.probes.source import TOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_NAME = f"{__name__}_of_ptera"


def _load(module: str) -> Any:
    if _NAME not in sys.modules:
        found = find_spec("ptera")  # of a package without parents: looks for it and runs nothing
        if found is None or found.submodule_search_locations is None:
            raise ImportError("voirkit needs ptera 1.4.1", name="ptera")
        spec = ModuleSpec(_NAME, None, is_package=True)
        spec.submodule_search_locations = list(found.submodule_search_locations)
        sys.modules[_NAME] = module_from_spec(spec)
    return import_module(f"{_NAME}.{module}")


ptera_selector: Any = _load("selector")
tags: Any = _load("tags")
tools: Any = _load("tools")
ABSENT: Any = _load("utils").ABSENT
tag: Any = tags.tag


def tag_names(value: Any) -> frozenset[str]:
    """The names of a tag or of several tags, ptera's own included; none for anything else."""
    members = getattr(value, "members", None)
    found = members if type(value).__name__ == "TagSet" and isinstance(members, frozenset) else [value]
    return frozenset(str(t.name) for t in found if is_tag(t))


def is_tag(value: Any) -> bool:
    """Whether it is a tag: one of these, or one of the package ``ptera`` itself."""
    return type(value).__name__ == "Tag" and type(value).__module__ in (tags.__name__, "ptera.tags")


_TOP_WORD = "*module*"  # what stands for it where ptera reads: a word to its lexer, and as long

BETWEEN = (">", "as", ",", "=", "~", ":")
BEFORE = ("!", "!!", "$", ":")
EXAMPLE = "'//train_epoch > loss'"
NO_MEANING = {
    ">>": "'>>' is not part of the language: a plain '>' already means at any depth below.",
    "[": "an index cannot be probed: name the variable alone.",
    "[[": "an index cannot be probed: name the variable alone.",
    '"': "a string stands in single quotes.",
    "'": "a quote is opened and not closed.",
    "<": f"'<' stands only in '//{TOP}', the top level of the script.",
}

HASH_VARIABLES = ("#enter", "#exit", "#value", "#error", "#yield", "#receive")
CONSTANT = re.compile(r"-?[0-9]+(\.[0-9]*)?|'[^']*'|[@/].*")  # numbers, strings, tags, absolute references
LOOP = re.compile(r"#(?:end)?loop_(\w+)")


@dataclass(frozen=True, slots=True)
class Capture:
    """One thing captured in a function."""

    name: str  # ``x``, ``#enter``, ``#loop_i``; empty for a generic ``$x``
    alias: str  # its name in the events
    focus: int  # 1 for ``>`` and ``!``, 2 for ``!!``, 0 for context


@dataclass(frozen=True, slots=True)
class ParsedFunction:
    """A function in a selector."""

    reference: str  # as written
    module: str | None  # of an absolute reference, ``""`` for the script; None for a name in scope
    path: tuple[str, ...]  # ``("Trainer", "run")``
    captures: tuple[Capture, ...]  # what is captured in it, in order
    selector: str  # the whole selector
    where: str  # ``file:line`` of the selector
    is_total: bool = False  # whether the selector has no focus, so that its event comes at the end of this function's call
    is_replaced: bool = False  # whether the probe may replace what its focus is set to

    @property
    def is_top(self) -> bool:
        """Whether it is no function, but the top level of the script or a module."""
        return self.path == (TOP,)

    @property
    def variables(self) -> list[str]:
        """Names of the plain variables captured."""
        return [c.name for c in self.captures if c.name and not c.name.startswith("#")]

    @property
    def loops(self) -> list[str]:
        """``i`` for each ``#loop_i`` and ``#endloop_i``."""
        return [found[1] for c in self.captures if (found := LOOP.fullmatch(c.name))]

    @property
    def hashes(self) -> list[str]:
        """The other ``#`` variables."""
        return [c.name for c in self.captures if c.name in HASH_VARIABLES]

    def wrong(self, what: str, next: str = "") -> SelectorError:
        """An error about this function."""
        return wrong(self.selector, self.where, what, next)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A selector that has the form of one."""

    selector: str  # as written
    where: str  # ``file:line`` it stands at
    functions: tuple[ParsedFunction, ...]  # the functions that it names, in order
    focus: ParsedFunction  # the one whose variable makes the event; the outermost if there is no focus
    names: tuple[str, ...]  # names in scope that its conditions use
    tags: tuple[str, ...]  # names in scope that it uses as tags
    tree: Any = field(repr=False, compare=False)  # as ptera's parser gives it


def parse(selector: str, where: str) -> Parsed:
    """Read a selector.

    Args:
        selector: Such as ``//train_epoch(batch) > loss``.
        where: ``file:line`` it stands at, for messages.

    Raises:
        SelectorError: It is none, or asks for what no probe can do.
    """
    tree = read_tree(selector, where)
    if not hasattr(tree, "captures"):
        raise _lonely(selector, where, tree.name and tree.name.replace(_TOP_WORD, TOP))
    functions: list[ParsedFunction] = []
    names: list[str] = []
    tags: list[str] = []
    for call in _calls_in(tree):
        captures = tuple(_capture(element, selector, where) for element in call.captures)
        module, path = _reference(call.element, selector, where)
        name = call.element.name.value.replace(_TOP_WORD, TOP)
        functions.append(ParsedFunction(name, module, path, captures, selector, where))
        for element in (call.element, *call.captures):
            names += _names_in(element.value, selector, where)
            tags += _names_in(element.category, selector, where)
    functions[0] = replace(functions[0], is_total=not any(c.focus for f in functions for c in f.captures))
    focused = [f for f in functions if any(c.focus for c in f.captures)]
    kinds = {c.focus for f in functions for c in f.captures}
    if 2 in kinds and 1 not in kinds:
        what = "'!!' marks the end of what a '!' begins, and there is no '!'."
        next = "Write '!' before what begins: f(!#loop_i as start, !!#endloop_i as end)."
        raise wrong(selector, where, what, next, selector.find("!!"))
    focus = (focused or functions[:1])[-1]
    if any(function.is_top for function in functions):
        _check_top(functions)
    return Parsed(selector, where, tuple(functions), focus, tuple(names), tuple(tags), tree)


def _check_top(functions: list[ParsedFunction]) -> None:
    """The top level of a module is no call: what is about calls has no meaning there."""
    top = next(function for function in functions if function.is_top)
    next_ = f"Write '{top.reference} > VARIABLE', or of a loop '{top.reference}(X as batch) > #endloop_X as step'."
    if len(functions) > 1:
        raise top.wrong("the top level is no call, so that no function can be named beside it: make a probe for each.", next_)
    if top.hashes:
        raise top.wrong(f"the top level is no call, and has no '{top.hashes[0]}'.", next_)
    if top.is_total:
        raise top.wrong("the top level is no call, at the end of which there could be an event: it needs a focus.", next_)


def _calls_in(call: Any) -> Iterator[Any]:
    yield call
    for child in call.children:
        yield from _calls_in(child)


def _lonely(selector: str, where: str, name: str | None) -> SelectorError:
    if name is None:
        return _wildcard(selector, where)
    if name == "//" or name.endswith(TOP):
        raise wrong(selector, where, "it names the top level, but nothing to observe in it.", f"Write '{name} > VARIABLE'.")
    if name.startswith("/"):
        next = f"Write '{name} > VARIABLE', or '{name}() as result' for what it returns."
        return wrong(selector, where, "it names a function, but nothing to observe in it.", next)
    next = f"Write FUNCTION > {name}, such as '//train_epoch > {name}'; for what a function returns, '{name}() as result'."
    return wrong(selector, where, f"'{name}' stands alone: a variable of which function?", next)


def _wildcard(selector: str, where: str) -> SelectorError:
    at = selector.find("*")
    what = "'*' stands for any function, and a probe needs to know which." if at >= 0 else "a function needs a name."
    return wrong(selector, where, what, f"Name it, such as in {EXAMPLE}.", at if at >= 0 else None)


def _reference(element: Any, selector: str, where: str) -> tuple[str | None, tuple[str, ...]]:
    """Module and path of a function's name."""
    if element.name is None:
        raise _wildcard(selector, where)
    name = element.name.value
    at = selector.find(name.replace(_TOP_WORD, TOP))
    if element.value is not ABSENT:
        raise wrong(selector, where, f"'{name}' is a function here, and has no value to compare.", position=at)
    module, path = None, name.split(".")
    if name == "//" or (name.startswith("/") and name.endswith(f"/{_TOP_WORD}") and name.count("/") == 2):
        module, path = name[1:].partition("/")[0], [TOP]
        if all(part.isidentifier() for part in (module.split(".") if module else [])):
            return ("" if module == "__main__" else module), (TOP,)
    if _TOP_WORD in name:
        raise wrong(selector, where, f"'{TOP}' stands alone behind '//' or '/package.module/'.", f"Did you mean '//{TOP}'?", at)
    if name.startswith("/"):
        module, *path = name[1:].split("/")
        if not path or not all(path):
            near = f"Did you mean '//{module}'?" if module.isidentifier() and not path else ""
            raise wrong(selector, where, f"'{name}' names no function.", near, at)
        if any("." in part for part in path):
            fixed = f"/{module}/{'/'.join(path).replace('.', '/')}"
            if not module and "." in path[0] and len(path) > 1:  # one slash too many
                fixed = name[1:]
            raise wrong(selector, where, f"in '{name}' only the module may have dots.", f"Did you mean '{fixed}'?", at)
    if not all(part.isidentifier() for part in [*path, *(module.split(".") if module else [])]):
        raise wrong(selector, where, f"'{name}' is not the name of a function.", position=at)
    return ("" if module == "__main__" else module), tuple(path)


def _capture(element: Any, selector: str, where: str) -> Capture:
    name, at = element.name or "", selector.find(element.name or "")
    if name.startswith("#"):
        if name not in HASH_VARIABLES and not LOOP.fullmatch(name):
            known = f"There are: {', '.join([*HASH_VARIABLES, '#loop_X', '#endloop_X'])}."
            loop = name.rpartition("_")[2] if "_" in name else "X"
            near = did_you_mean(name, [*HASH_VARIABLES, f"#loop_{loop}", f"#endloop_{loop}"])
            raise wrong(selector, where, f"there is no '{name}'.", f"{known}  {near}".rstrip(), at)
    elif name and not all(part.isidentifier() for part in name.split(".")):  # self.x: an attribute that the function sets
        raise wrong(selector, where, f"'{name}' is not the name of a variable.", position=at)
    focus = max(element.tags, default=0)
    return Capture(name, element.capture or "", focus)


def _names_in(value: Any, selector: str, where: str) -> list[str]:
    """The names in scope that a condition or tag uses."""
    if isinstance(value, ptera_selector.VCall):
        return [name for part in (value.fn, *value.args) for name in _names_in(part, selector, where)]
    if isinstance(value, ptera_selector.VKeyword):
        return _names_in(value.value, selector, where)
    if not isinstance(value, ptera_selector.VSymbol) or CONSTANT.fullmatch(value.value):
        return []
    if not all(part.isidentifier() for part in value.value.split(".")):
        next = "Values are whole numbers, numbers such as 0.5, strings in single quotes, and names."
        raise wrong(selector, where, f"'{value.value}' is not a value.", next, selector.find(value.value))
    return [value.value]


def wrong(selector: str, where: str, what: str, next: str = "", position: int | None = None) -> SelectorError:
    """The error for a selector, with a mark under the place if that is known."""
    if position is not None:
        before = selector.rfind("\n", 0, position) + 1
        line = selector[before:].split("\n", 1)[0]
        pad = "".join(c if c == "\t" else " " for c in line[: position - before])
        next = f"  {line}\n  {pad}^" + (f"\n{next}" if next else "")
    return SelectorError(f"selector {selector!r}: {what}", where=where, next=next)


_LONGEST = 4096  # characters


def read_tree(selector: str, where: str) -> Any:
    """Parse a selector. Returns a ``Call``, or an ``Element`` for a name that stands alone, of ptera.selector (1.4.1). Raises
    SelectorError: it has not the form of a selector."""
    if not isinstance(selector, str):
        raise SelectorError(f"a selector is a string, not an object of type {type(selector).__name__}.", where=where)
    if not selector.strip():
        raise wrong(selector, where, "it is empty.", f"Write FUNCTION > VARIABLE, such as {EXAMPLE}.")
    if len(selector) > _LONGEST:  # ptera keeps of each word the rest of the selector: 64 kB of quotes take a gigabyte
        raise wrong(selector[:60] + "...", where, f"it is longer than {_LONGEST:,} characters.")
    check_form(selector, where)
    try:
        tree = ptera_selector.parse(selector.replace(TOP, _TOP_WORD))
    except SyntaxError as error:
        at = (error.offset or 1) - 1 + len(selector) - len(selector.lstrip())
        at += len(selector[at:]) - len(selector[at:].lstrip())  # its operators begin with the white space before them
        raise wrong(selector, where, "it cannot be read.", position=at) from None
    except Exception:  # AssertionError, AttributeError ... for a form that ptera does not expect
        raise wrong(selector, where, "it cannot be read.") from None
    if isinstance(tree, list):
        raise wrong(selector, where, "it is a list: give each selector as an argument of its own.")
    return tree


def check_form(selector: str, where: str) -> None:
    """Go through the words from left to right: names where names belong, operators between them, brackets in pairs. Raises SelectorError:
    with the place of the first fault."""
    tokens = _tokens(selector)
    _check_parentheses(tokens, selector, where)
    wants_name, last = True, ""
    calls: list[bool] = []
    for text, kind, at in tokens:
        if kind in ("WORD", "STRING"):
            if not wants_name:
                hint = f"Write '{last} > {text}' for the variable {text} in a call of {last}." if last != ")" else ""
                raise wrong(selector, where, f"an operator is missing before '{text}'.", hint, at)
            wants_name = False
        elif text == "(":
            calls.append(not wants_name)
            wants_name = True
        elif text == ")":
            if wants_name and not (last == "(" and calls[-1]):
                raise wrong(selector, where, f"a name is missing between '{last}' and ')'.", position=at)
            calls.pop()
            wants_name = False
        elif text in BEFORE and wants_name:
            pass
        elif text in BETWEEN:
            if wants_name:
                place = f"between '{last}' and '{text}'" if last else f"before '{text}'"
                hint = "A comparison has one '='." if text == last == "=" else ""
                raise wrong(selector, where, f"a name is missing {place}.", hint, at)
            wants_name = True
        elif text in BEFORE:
            raise wrong(selector, where, f"'{text}' stands before a name, not after it.", position=at)
        else:
            raise wrong(selector, where, NO_MEANING.get(text, f"'{text}' has no meaning in a selector."), position=at)
        last = text
    if wants_name:
        raise wrong(selector, where, f"a name is missing after '{last}'.", position=len(selector.rstrip()))


def _tokens(selector: str) -> list[tuple[str, str | None, int]]:
    """Text, kind (OPERATOR, WORD, STRING, None) and place of each word, as ptera's lexer sees them."""
    indent = len(selector) - len(selector.lstrip())
    tokens = []
    for token in ptera_selector.parser.lexer(selector.replace(TOP, _TOP_WORD)):
        if token.value:  # white space between two words is an operator without text
            at = token.location.start + indent
            tokens.append((token.value.replace(_TOP_WORD, TOP), token.type, at + len(selector[at:]) - len(selector[at:].lstrip())))
    return tokens


def _check_parentheses(tokens: list[tuple[str, str | None, int]], selector: str, where: str) -> None:
    opened = []
    for text, kind, at in tokens:
        if kind == "OPERATOR" and text == "(":
            opened.append(at)
        elif kind == "OPERATOR" and text == ")":
            if not opened:
                raise wrong(selector, where, "a parenthesis is closed that was never opened.", position=at)
            opened.pop()
    if opened:
        raise wrong(selector, where, "a parenthesis is never closed.", position=opened[-1])


Check = Callable[[Any], bool]
HASHES_OF_TAG = {"enter": ("#enter", "#receive"), "exit": ("#yield", "#exit")}
GENERIC_HASHES = ("#enter", "#exit")


class Element:
    """One thing captured in a function.

    Attributes:
        name: ``x``, ``self.x``, ``#enter``, ``#loop_i``; None for a generic ``$x``.
        alias: Its name in events.
        focus: 1 if setting it makes an event (``>``, ``!``), 2 for ``!!``, else 0.
        tag: Name of the tag that the assignment must have, or None.
        check: Whether a value counts; None if any does.
    """

    __slots__ = ("alias", "check", "focus", "name", "source", "tag")

    def __init__(self, name: str | None, alias: str, focus: int, tag: str | None, check: Check | None, source: Any) -> None:
        self.name, self.alias, self.focus, self.tag, self.check = name, alias, focus, tag, check
        self.source = source  # ptera's element, shown by raw captures

    def matches(self, name: str, tags: frozenset[str], kind: str) -> bool:
        """Whether it captures a (hash) variable that is set with these tags; kinds are those of ``tap_emitter.Site``."""
        if kind == "unset":
            return False
        if self.tag is not None and self.tag not in tags and name not in HASHES_OF_TAG.get(self.tag, ()):
            return False
        if self.name is not None:
            return self.name == name
        if kind in ("read", "attribute", "each") or name.startswith("#"):
            return self.tag is not None or name in GENERIC_HASHES
        return True

    @property
    def loop(self) -> str | None:
        """``i`` for ``#loop_i`` and ``#endloop_i``."""
        found = LOOP.fullmatch(self.name or "")
        return found[1] if found else None


class Node:
    """One function in a selector: a call of it inside calls of its parent's. ``parent``: the node of the enclosing call, or None;
    ``has_focus``: whether it or a call inside has the focus."""

    def __init__(self, rule: Rule, function: ParsedFunction, parent: Node | None) -> None:
        self.rule, self.function, self.parent = rule, function, parent
        self.elements: list[Element] = []  # what is captured in the function itself
        self.children: list[Node] = []  # the calls inside

    @property
    def has_focus(self) -> bool:
        return any(e.focus for e in self.elements) or any(child.has_focus for child in self.children)

    def walk(self) -> Iterator[Node]:
        """The node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Rule:
    """A selector with its names looked up.

    Attributes:
        total: Whether there is one event at the end of the outer call, with all values, instead of one whenever the focus is set.
        raw: Whether events hold ``Capture`` objects.
        overridable: Whether the focus may be replaced.
        wrap: Name of the begin in a pair ``!a ... !!b``; None without a pair.
    """

    def __init__(self, parsed: Parsed, scope: Mapping[str, Any], *, raw: bool, total: bool | None, overridable: bool) -> None:
        self.parsed, self.raw, self.overridable = parsed, raw, overridable
        lookup = _Lookup(parsed, scope)
        self.root = self._node(parsed.tree, None, iter(parsed.functions), count(), lookup)  # the outermost call
        self.nodes = list(self.root.walk())
        foci = [e for node in self.nodes for e in node.elements if e.focus]
        self.total = total if total is not None else not foci
        pair = {e.focus for e in foci} == {1, 2}
        self.wrap = next(e.alias for e in foci if e.focus == 1) if pair else None
        if overridable and self.total:
            raise parsed.focus.wrong("a probe that can override needs a variable to replace.", "Write FUNCTION > VARIABLE.")

    def _node(self, call: Any, parent: Node | None, functions: Iterator[ParsedFunction], numbers: Iterator[int], lookup: _Lookup) -> Node:
        # No function within a function: a cycle would keep the scope, and with it the program's objects, alive.
        node = Node(self, next(functions), parent)
        node.elements = [_element(e, lookup, f"/{next(numbers)}") for e in call.captures]
        node.children = [self._node(child, node, functions, numbers, lookup) for child in call.children]
        return node

    @property
    def names(self) -> set[str]:
        """What an event of a total has in it."""
        return {e.alias for node in self.nodes for e in node.elements if not e.alias.startswith("/")}


def plain_names(node: Node) -> list[str]:
    """The variables that a node captures by name."""
    return [e.name for e in node.elements if e.name is not None and not e.name.startswith("#")]


def _element(element: Any, lookup: _Lookup, number: str) -> Element:
    tag = None
    if element.category is not None:
        category = lookup.value(element.category)
        if not is_tag(category):
            raise lookup.parsed.focus.wrong(f"'{element.category}' is not a tag.", "A tag is written ':@Name'.")
        tag = str(category.name)
    check = None
    if element.value is not ABSENT:
        value = lookup.value(element.value)
        check = value.fn if isinstance(value, ptera_selector.MatchFunction) else equality_check(value)
        if not callable(check):
            raise lookup.parsed.focus.wrong(f"what follows '~' is a {type(check).__name__}, and cannot be called.")
    return Element(element.name, element.capture or number, max(element.tags, default=0), tag, check, element)


def equality_check(expected: Any) -> Check:
    """A check by ``==``."""
    return lambda value: bool(expected == value)


def identity_check(expected: Any) -> Check:
    """A check by identity, which keeps no object alive that the program lets go."""
    try:
        reference = ref(expected)
    except TypeError:  # of a class with slots: another object may get its identity when it is gone
        known = id(expected)
        return lambda value: id(value) == known
    return lambda value: value is reference()


class _Lookup:
    """The meaning of names in conditions and tags."""

    def __init__(self, parsed: Parsed, scope: Mapping[str, Any]) -> None:
        self.parsed, self.scope = parsed, scope

    def value(self, symbol: Any) -> Any:
        try:
            return symbol.eval(self)
        except SelectorError:
            raise
        except Exception as exc:  # a predicate factory of the user's may raise anything
            raise self.parsed.focus.wrong(f"a condition raised {type(exc).__name__}: {exc}.") from None

    def __call__(self, name: str) -> Any:
        if name.startswith("@"):
            return getattr(tag, name[1:])
        first, *rest = name.split(".")
        if first in self.scope:
            found = self.scope[first]
        elif not rest and hasattr(tools, first):
            return getattr(tools, first)  # every, between, lt ...: usable without an import
        else:
            raise self.parsed.focus.wrong(f"there is no '{first}' in scope.", did_you_mean(first, self.scope))
        for part in rest:
            found = getattr(found, part)
        return found
