"""Parser of selectors, the language that names the functions and variables of a probe.

The text is parsed into functions and their captures (``parse``), and these are resolved to a plan
of captures, foci and conditions (``Rule``). A focus is a capture that makes an event whenever it is
set. The language and its parser are ptera's (``ptera.selector`` 1.4.1); the error messages are
voirkit's, and mark the place. ``check.py`` checks that the names of a selector exist.
``live_functions.py`` finds the functions themselves.
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
from typing import Any, NamedTuple
from weakref import ref

from voirkit.errors import SelectorError, did_you_mean
from voirkit.probes.source import TOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_NAME = f"{__name__}_of_ptera"


def _load(module: str) -> Any:
    if _NAME not in sys.modules:
        ptera = find_spec("ptera")  # runs no code, since ptera is a top-level package
        if ptera is None or ptera.submodule_search_locations is None:
            raise ImportError("voirkit needs ptera 1.4.1", name="ptera")
        spec = ModuleSpec(_NAME, None, is_package=True)
        spec.submodule_search_locations = list(ptera.submodule_search_locations)
        sys.modules[_NAME] = module_from_spec(spec)
    return import_module(f"{_NAME}.{module}")


ptera_selector: Any = _load("selector")
tags: Any = _load("tags")
tools: Any = _load("tools")
ABSENT: Any = _load("utils").ABSENT
tag: Any = tags.tag


def tag_names(value: Any) -> frozenset[str]:
    """Return the names in a tag or set of tags, also of the package ``ptera``; none for any other
    value."""
    members = getattr(value, "members", None)
    if type(value).__name__ == "TagSet" and isinstance(members, frozenset):
        return frozenset(str(member.name) for member in members if is_tag(member))
    return frozenset([str(value.name)]) if is_tag(value) else frozenset()


def is_tag(value: Any) -> bool:
    """True if a value is a tag, of the copy of ptera loaded here or of the package ``ptera``."""
    return type(value).__name__ == "Tag" and type(value).__module__ in (tags.__name__, "ptera.tags")


# Replaces TOP in the text that ptera parses: ptera's lexer takes it for a word. It has the length
# of TOP, so that positions stay the same.
_TOP_WORD = "*module*"

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
# matches numbers, strings, tags and absolute references
CONSTANT = re.compile(r"-?[0-9]+(\.[0-9]*)?|'[^']*'|[@/].*")
LOOP = re.compile(r"#(?:end)?loop_(\w+)")


@dataclass(frozen=True, slots=True)
class Capture:
    """One variable or event captured in a function."""

    name: str  # ``x``, ``#enter``, ``#loop_i``; empty for a generic ``$x``
    alias: str  # name of the capture in the events
    focus: int  # 1 for ``>`` and ``!``, 2 for ``!!``, 0 if the capture is no focus


@dataclass(frozen=True, slots=True)
class ParsedFunction:
    """A function in a selector."""

    reference: str  # the function's name, as written in the selector
    # module of an absolute reference, ``""`` for the script; None for a name in scope
    module: str | None
    path: tuple[str, ...]  # ``("Trainer", "run")``
    captures: tuple[Capture, ...]  # the captures in the function, in order
    selector: str  # the whole selector
    where: str  # ``file:line`` of the selector
    # True if the selector has no focus, so that its event comes at the end of this function's call
    is_total: bool = False
    is_replaced: bool = False  # True if the probe may replace the value of the focus variable

    @property
    def is_top(self) -> bool:
        """True if this is not a function, but the top level of the script or a module."""
        return self.path == (TOP,)

    @property
    def variables(self) -> list[str]:
        """Names of the captured plain variables."""
        names = [capture.name for capture in self.captures]
        return [name for name in names if name and not name.startswith("#")]

    @property
    def loops(self) -> list[str]:
        """The name ``i`` of each captured ``#loop_i`` and ``#endloop_i``."""
        matches = [LOOP.fullmatch(capture.name) for capture in self.captures]
        return [match[1] for match in matches if match is not None]

    @property
    def hashes(self) -> list[str]:
        """The captured ``#`` variables that are not about loops."""
        return [capture.name for capture in self.captures if capture.name in HASH_VARIABLES]

    def wrong(self, problem: str, next: str = "") -> SelectorError:
        """Return an error about this function."""
        return wrong(self.selector, self.where, problem, next)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A selector with valid syntax."""

    selector: str  # the text, as written
    where: str  # ``file:line`` of the selector
    functions: tuple[ParsedFunction, ...]  # the functions that the selector names, in order
    # the function whose variable makes the event; the outermost function if there is no focus
    focus: ParsedFunction
    names: tuple[str, ...]  # names in scope that the conditions use
    tags: tuple[str, ...]  # names in scope that are used as tags
    tree: Any = field(repr=False, compare=False)  # the tree of ptera's parser


def parse(selector: str, where: str) -> Parsed:
    """Parse a selector.

    Args:
        selector: The text, such as ``//train_epoch(batch) > loss``.
        where: ``file:line`` of the selector, for messages.

    Raises:
        SelectorError: The text is no selector, or asks for something that no probe can do.
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
    foci = [capture.focus for function in functions for capture in function.captures]
    functions[0] = replace(functions[0], is_total=not any(foci))
    if 2 in foci and 1 not in foci:
        problem = "'!!' marks the end of what a '!' begins, and there is no '!'."
        next = "Write '!' before what begins: f(!#loop_i as start, !!#endloop_i as end)."
        raise wrong(selector, where, problem, next, selector.find("!!"))
    focus = _function_with_focus(functions)
    if any(function.is_top for function in functions):
        _check_top(functions)
    return Parsed(selector, where, tuple(functions), focus, tuple(names), tuple(tags), tree)


def _function_with_focus(functions: list[ParsedFunction]) -> ParsedFunction:
    """Return the last function with a focus; the outermost function if there is none."""
    for function in functions[::-1]:
        if any(capture.focus for capture in function.captures):
            return function
    return functions[0]


def _check_top(functions: list[ParsedFunction]) -> None:
    """Raise SelectorError if a selector asks for a call at the top level of a module, which has
    none."""
    top = next(function for function in functions if function.is_top)
    next_ = (
        f"Write '{top.reference} > VARIABLE', or of a loop '{top.reference}(X as batch) >"
        " #endloop_X as step'."
    )
    if len(functions) > 1:
        raise top.wrong(
            "the top level is no call, so that no function can be named beside it: make a probe for"
            " each.",
            next_,
        )
    if top.hashes:
        raise top.wrong(f"the top level is no call, and has no '{top.hashes[0]}'.", next_)
    if top.is_total:
        raise top.wrong(
            "the top level is no call, at the end of which there could be an event: it needs a"
            " focus.",
            next_,
        )


def _calls_in(call: Any) -> Iterator[Any]:
    yield call
    for child in call.children:
        yield from _calls_in(child)


def _lonely(selector: str, where: str, name: str | None) -> SelectorError:
    """Return the error for a selector that is only a name."""
    if name is None:
        return _wildcard(selector, where)
    if name == "//" or name.endswith(TOP):
        problem = "it names the top level, but nothing to observe in it."
        next = f"Write '{name} > VARIABLE'."
    elif name.startswith("/"):
        problem = "it names a function, but nothing to observe in it."
        next = f"Write '{name} > VARIABLE', or '{name}() as result' for what it returns."
    else:
        problem = f"'{name}' stands alone: a variable of which function?"
        next = (
            f"Write FUNCTION > {name}, such as '//train_epoch > {name}'; for what a function"
            f" returns, '{name}() as result'."
        )
    return wrong(selector, where, problem, next)


def _wildcard(selector: str, where: str) -> SelectorError:
    next = f"Name it, such as in {EXAMPLE}."
    position = selector.find("*")
    if position < 0:
        return wrong(selector, where, "a function needs a name.", next)
    problem = "'*' stands for any function, and a probe needs to know which."
    return wrong(selector, where, problem, next, position)


def _reference(element: Any, selector: str, where: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the module and path of a function's name."""
    if element.name is None:
        raise _wildcard(selector, where)
    name = element.name.value
    position = selector.find(name.replace(_TOP_WORD, TOP))

    def fail(problem: str, next: str = "") -> SelectorError:
        return wrong(selector, where, problem, next, position)

    if element.value is not ABSENT:
        raise fail(f"'{name}' is a function here, and has no value to compare.")
    module = _module_of_top(name)
    if module is not None:
        return module, (TOP,)
    if _TOP_WORD in name:
        problem = f"'{TOP}' stands alone behind '//' or '/package.module/'."
        raise fail(problem, f"Did you mean '//{TOP}'?")
    path = name.split(".")
    if name.startswith("/"):
        module, *path = name[1:].split("/")
        if not path or not all(path):
            near = f"Did you mean '//{module}'?" if module.isidentifier() and not path else ""
            raise fail(f"'{name}' names no function.", near)
        if any("." in part for part in path):
            fixed = _without_dots(module, path)
            raise fail(f"in '{name}' only the module may have dots.", f"Did you mean '{fixed}'?")
    if not _are_identifiers(path) or not _is_module_name(module):
        raise fail(f"'{name}' is not the name of a function.")
    return ("" if module == "__main__" else module), tuple(path)


def _without_dots(module: str, path: list[str]) -> str:
    """Return the reference that is probably meant by one with dots in its path."""
    if not module and "." in path[0] and len(path) > 1:  # written with one slash too many
        return "/" + "/".join(path)
    return f"/{module}/{'/'.join(path).replace('.', '/')}"


def _module_of_top(name: str) -> str | None:
    """Return the module whose top level a name refers to, empty for the script; None if the name
    refers to something else."""
    if name == "//":
        return ""
    module, slash, word = name[1:].partition("/")
    if not name.startswith("/") or not slash or word != _TOP_WORD or not _is_module_name(module):
        return None
    return "" if module == "__main__" else module


def _is_module_name(name: str | None) -> bool:
    return not name or _are_identifiers(name.split("."))


def _are_identifiers(parts: list[str]) -> bool:
    return all(part.isidentifier() for part in parts)


def _capture(element: Any, selector: str, where: str) -> Capture:
    name = element.name or ""
    position = selector.find(name)
    if name.startswith("#"):
        if name not in HASH_VARIABLES and not LOOP.fullmatch(name):
            choices = f"There are: {', '.join([*HASH_VARIABLES, '#loop_X', '#endloop_X'])}."
            loop = name.rpartition("_")[2] if "_" in name else "X"
            near = did_you_mean(name, [*HASH_VARIABLES, f"#loop_{loop}", f"#endloop_{loop}"])
            next = f"{choices}  {near}".rstrip()
            raise wrong(selector, where, f"there is no '{name}'.", next, position)
    # a name with dots, such as self.x, is an attribute that the function sets
    elif name and not _are_identifiers(name.split(".")):
        problem = f"'{name}' is not the name of a variable."
        raise wrong(selector, where, problem, position=position)
    focus = max(element.tags, default=0)
    return Capture(name, element.capture or "", focus)


def _names_in(value: Any, selector: str, where: str) -> list[str]:
    """Return the names in scope that a condition or tag uses."""
    if isinstance(value, ptera_selector.VCall):
        names = []
        for part in (value.fn, *value.args):
            names += _names_in(part, selector, where)
        return names
    if isinstance(value, ptera_selector.VKeyword):
        return _names_in(value.value, selector, where)
    if not isinstance(value, ptera_selector.VSymbol) or CONSTANT.fullmatch(value.value):
        return []
    text: str = value.value
    if not _are_identifiers(text.split(".")):
        next = "Values are whole numbers, numbers such as 0.5, strings in single quotes, and names."
        raise wrong(selector, where, f"'{text}' is not a value.", next, selector.find(text))
    return [text]


def wrong(
    selector: str, where: str, problem: str, next: str = "", position: int | None = None
) -> SelectorError:
    """Return an error about a selector, with a mark under the position if it is known."""
    if position is not None:
        start = selector.rfind("\n", 0, position) + 1
        line = selector[start:].split("\n", 1)[0]
        before = line[: position - start]
        pad = "".join(character if character == "\t" else " " for character in before)
        mark = f"  {line}\n  {pad}^"
        next = f"{mark}\n{next}" if next else mark
    return SelectorError(f"selector {selector!r}: {problem}", where=where, next=next)


_LONGEST = 4096  # maximum length of a selector in characters


def read_tree(selector: str, where: str) -> Any:
    """Parse a selector with ptera.

    Returns:
        A ``Call`` of ptera.selector (1.4.1), or an ``Element`` for a selector that is only a name.

    Raises:
        SelectorError: The text does not have the syntax of a selector.
    """
    if not isinstance(selector, str):
        kind = type(selector).__name__
        raise SelectorError(f"a selector is a string, not an object of type {kind}.", where=where)
    if not selector.strip():
        next = f"Write FUNCTION > VARIABLE, such as {EXAMPLE}."
        raise wrong(selector, where, "it is empty.", next)
    # The length is limited, since ptera stores the rest of the selector with each word: 64 kB of
    # quotes take a gigabyte.
    if len(selector) > _LONGEST:
        raise wrong(selector[:60] + "...", where, f"it is longer than {_LONGEST:,} characters.")
    check_form(selector, where)
    try:
        tree = ptera_selector.parse(selector.replace(TOP, _TOP_WORD))
    except SyntaxError as error:
        position = _word_at(selector, (error.offset or 1) - 1)
        raise wrong(selector, where, "it cannot be read.", position=position) from None
    except Exception:  # AssertionError, AttributeError ... for a form that ptera does not expect
        raise wrong(selector, where, "it cannot be read.") from None
    if isinstance(tree, list):
        raise wrong(selector, where, "it is a list: give each selector as an argument of its own.")
    return tree


def _word_at(selector: str, stripped_position: int) -> int:
    """Return the position of a word, from its position in the selector without leading white space.

    ptera's operators begin with the white space before them, which is skipped.
    """
    position = stripped_position + len(selector) - len(selector.lstrip())
    following = selector[position:]
    return position + len(following) - len(following.lstrip())


class Token(NamedTuple):
    """A word of a selector, as split by ptera's lexer."""

    text: str
    kind: str | None  # OPERATOR, WORD, STRING or None
    position: int


def check_form(selector: str, where: str) -> None:
    """Check the words from left to right: names and operators alternate, brackets are in pairs.

    Raises:
        SelectorError: There is a fault; the message marks the first.
    """
    tokens = _tokens(selector)
    _check_parentheses(tokens, selector, where)
    needs_name = True
    last = ""
    calls: list[bool] = []  # for each open parenthesis: True if its content may be empty
    for token in tokens:
        text = token.text
        problem = ""
        hint = ""
        if token.kind in ("WORD", "STRING"):
            if not needs_name:
                problem = f"an operator is missing before '{text}'."
                hint = _operator_hint(last, text)
            needs_name = False
        elif text == "(":
            calls.append(not needs_name)
            needs_name = True
        elif text == ")":
            may_be_empty = calls.pop() and last == "("
            if needs_name and not may_be_empty:
                problem = f"a name is missing between '{last}' and ')'."
            needs_name = False
        elif not (text in BEFORE and needs_name):
            problem, hint = _check_operator(text, last, needs_name)
            needs_name = True
        if problem:
            raise wrong(selector, where, problem, hint, token.position)
        last = text
    if needs_name:
        problem = f"a name is missing after '{last}'."
        raise wrong(selector, where, problem, position=len(selector.rstrip()))


def _operator_hint(last: str, text: str) -> str:
    if last == ")":
        return ""
    return f"Write '{last} > {text}' for the variable {text} in a call of {last}."


def _check_operator(text: str, last: str, needs_name: bool) -> tuple[str, str]:
    """Return the problem with an operator and a hint; both are empty if it correctly stands
    between two names."""
    if text in BETWEEN:
        if not needs_name:
            return "", ""
        place = f"between '{last}' and '{text}'" if last else f"before '{text}'"
        hint = "A comparison has one '='." if text == last == "=" else ""
        return f"a name is missing {place}.", hint
    if text in BEFORE:
        return f"'{text}' stands before a name, not after it.", ""
    return NO_MEANING.get(text, f"'{text}' has no meaning in a selector."), ""


def _tokens(selector: str) -> list[Token]:
    tokens = []
    for token in ptera_selector.parser.lexer(selector.replace(TOP, _TOP_WORD)):
        if token.value:  # white space between two words is an operator without text
            text = token.value.replace(_TOP_WORD, TOP)
            position = _word_at(selector, token.location.start)
            tokens.append(Token(text, token.type, position))
    return tokens


def _check_parentheses(tokens: list[Token], selector: str, where: str) -> None:
    opened = []
    for token in tokens:
        if token.kind != "OPERATOR":
            continue
        if token.text == "(":
            opened.append(token.position)
        elif token.text == ")":
            if not opened:
                problem = "a parenthesis is closed that was never opened."
                raise wrong(selector, where, problem, position=token.position)
            opened.pop()
    if opened:
        raise wrong(selector, where, "a parenthesis is never closed.", position=opened[-1])


Check = Callable[[Any], bool]
HASHES_OF_TAG = {"enter": ("#enter", "#receive"), "exit": ("#yield", "#exit")}
GENERIC_HASHES = ("#enter", "#exit")


class Element:
    """One variable or event captured in a function, with its condition resolved.

    Attributes:
        name: ``x``, ``self.x``, ``#enter``, ``#loop_i``; None for a generic ``$x``.
        alias: Its name in events.
        focus: 1 if setting it makes an event (``>``, ``!``), 2 for ``!!``, otherwise 0.
        tag: Name of the tag that the assignment must have, or None.
        check: A function that returns True for a value to capture; None to capture all values.
    """

    __slots__ = ("alias", "check", "focus", "name", "source", "tag")

    def __init__(
        self,
        name: str | None,
        alias: str,
        focus: int,
        tag: str | None,
        check: Check | None,
        source: Any,
    ) -> None:
        self.name = name
        self.alias = alias
        self.focus = focus
        self.tag = tag
        self.check = check
        self.source = source  # ptera's element, shown by raw captures

    def matches(self, name: str, tags: frozenset[str], kind: str) -> bool:
        """True if this captures a variable (or ``#`` variable) that is set with these tags.
        ``kind`` is a kind of ``tap_emitter.Site``."""
        if kind == "unset" or not self._has_tag(name, tags):
            return False
        if self.name is not None:
            return self.name == name
        if kind in ("read", "attribute", "each") or name.startswith("#"):
            return self.tag is not None or name in GENERIC_HASHES
        return True

    def _has_tag(self, name: str, tags: frozenset[str]) -> bool:
        return self.tag is None or self.tag in tags or name in HASHES_OF_TAG.get(self.tag, ())

    @property
    def loop(self) -> str | None:
        """The name ``i`` for ``#loop_i`` and ``#endloop_i``, otherwise None."""
        match = LOOP.fullmatch(self.name or "")
        return match[1] if match else None


class Node:
    """One function in a selector, called inside a call of its parent.

    Attributes:
        parent: The node of the enclosing call, or None.
        has_focus: True if the node, or a node below it, has a focus.
    """

    def __init__(self, rule: Rule, function: ParsedFunction, parent: Node | None) -> None:
        self.rule = rule
        self.function = function
        self.parent = parent
        self.elements: list[Element] = []  # the captures in the function itself
        self.children: list[Node] = []  # the functions called inside a call of this one

    @property
    def has_focus(self) -> bool:
        return any(e.focus for e in self.elements) or any(
            child.has_focus for child in self.children
        )

    def walk(self) -> Iterator[Node]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Rule:
    """A selector whose names have been resolved.

    Attributes:
        total: True if there is one event at the end of the outermost call, with all values. False
            if there is an event whenever the focus is set.
        raw: True if events hold ``Capture`` objects.
        overridable: True if the value of the focus may be replaced.
        wrap: Name of the first capture in a pair ``!a ... !!b``; None without a pair.
    """

    def __init__(
        self,
        parsed: Parsed,
        scope: Mapping[str, Any],
        *,
        raw: bool,
        total: bool | None,
        overridable: bool,
    ) -> None:
        self.parsed = parsed
        self.raw = raw
        self.overridable = overridable
        lookup = _Lookup(parsed, scope)
        # the node of the outermost call
        self.root = self._node(parsed.tree, None, iter(parsed.functions), count(), lookup)
        self.nodes = list(self.root.walk())
        foci = [element for node in self.nodes for element in node.elements if element.focus]
        self.total = total if total is not None else not foci
        self.wrap: str | None = None
        if {element.focus for element in foci} == {1, 2}:
            self.wrap = next(element.alias for element in foci if element.focus == 1)
        if overridable and self.total:
            raise parsed.focus.wrong(
                "a probe that can override needs a variable to replace.",
                "Write FUNCTION > VARIABLE.",
            )

    def _node(
        self,
        call: Any,
        parent: Node | None,
        functions: Iterator[ParsedFunction],
        numbers: Iterator[int],
        lookup: _Lookup,
    ) -> Node:
        # A method and not a nested function: one that calls itself would be a reference cycle, and
        # keep the scope, and so objects of the program, alive.
        node = Node(self, next(functions), parent)
        node.elements = [
            _element(capture, lookup, f"/{next(numbers)}") for capture in call.captures
        ]
        node.children = [
            self._node(child, node, functions, numbers, lookup) for child in call.children
        ]
        return node

    @property
    def names(self) -> set[str]:
        """The names that the event of a ``total`` rule must have at the end of a call."""
        return {
            element.alias
            for node in self.nodes
            for element in node.elements
            if not element.alias.startswith("/")
        }


def plain_names(node: Node) -> list[str]:
    """Return the variables that a node captures by name."""
    names = [element.name for element in node.elements if element.name is not None]
    return [name for name in names if not name.startswith("#")]


def _element(element: Any, lookup: _Lookup, number: str) -> Element:
    tag = None
    if element.category is not None:
        category = lookup.value(element.category)
        if not is_tag(category):
            raise lookup.parsed.focus.wrong(
                f"'{element.category}' is not a tag.", "A tag is written ':@Name'."
            )
        tag = str(category.name)
    check = None
    if element.value is not ABSENT:
        value = lookup.value(element.value)
        if isinstance(value, ptera_selector.MatchFunction):
            check = value.fn
        else:
            check = equality_check(value)
        if not callable(check):
            raise lookup.parsed.focus.wrong(
                f"what follows '~' is a {type(check).__name__}, and cannot be called."
            )
    focus = max(element.tags, default=0)
    return Element(element.name, element.capture or number, focus, tag, check, element)


def equality_check(expected: Any) -> Check:
    """Return a check that compares with ``==``."""
    return lambda value: bool(expected == value)


def identity_check(expected: Any) -> Check:
    """Return a check by identity that does not keep the expected object alive."""
    try:
        reference = ref(expected)
    except TypeError:
        # The class has slots, and allows no weak reference. If the object is freed, another one
        # may get its id, and pass the check.
        identity = id(expected)
        return lambda value: id(value) == identity
    return lambda value: value is reference()


class _Lookup:
    """Resolver of the names in conditions and tags."""

    def __init__(self, parsed: Parsed, scope: Mapping[str, Any]) -> None:
        self.parsed = parsed
        self.scope = scope

    def value(self, symbol: Any) -> Any:
        try:
            return symbol.eval(self)
        except SelectorError:
            raise
        except Exception as exc:  # the user's function that makes a condition may raise anything
            raise self.parsed.focus.wrong(
                f"a condition raised {type(exc).__name__}: {exc}."
            ) from None

    def __call__(self, name: str) -> Any:
        if name.startswith("@"):
            return getattr(tag, name[1:])
        first, *attributes = name.split(".")
        if first not in self.scope:
            if not attributes and hasattr(tools, first):
                return getattr(tools, first)  # every, between, lt ...: usable without an import
            near = did_you_mean(first, self.scope)
            raise self.parsed.focus.wrong(f"there is no '{first}' in scope.", near)
        value = self.scope[first]
        for attribute in attributes:
            value = getattr(value, attribute)
        return value
