"""Something done before and after the body of a function of a library, in the function itself: for what times every call.

The function keeps its identity, name, signature, lines and frame: no wrapper is seen in tracebacks, by ``warnings`` (``stacklevel``),
``pickle``, ``inspect`` or ``is``, and who has imported it before has the new body too. Nothing here may load giving or know torch.

A body ``B`` becomes::

    if <plain> or (was := thread_state.inside) > <most>:
        B
    else:
        began = 0
        try:
            began = enter(<passed>)
            B
        finally:
            leave(began, was, <passed>)

A lambda's, in which there is no ``finally``, is left only where it returns. Several may stand around a function, the first innermost.

Checked with python 3.10 to 3.13.
"""

from __future__ import annotations

import ast
import copy
import weakref

from voirkit.probes import weave
from voirkit.probes.compatibility import exclude_from_torch_compile, watch_torch_compile
from voirkit.probes.source import NoSource, all_codes, compile_like
from voirkit.probes.tap_emitter import MARK, loads, standing_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FunctionType
    from typing import Any, Protocol

    from voirkit.probes.source import FunctionNode

    class ThreadState(Protocol):
        """What a thread is inside of; ``inside`` is an integer that ``enter`` may set, and ``leave`` must set back to ``was``."""

        inside: int


class Absent:
    """The value of a call that has none (yet): it was left by an exception, which is then ``sys.exc_info()``."""

    def __deepcopy__(self, memo: object) -> Absent:
        return self


ABSENT = Absent()
_SLOTS = ("here", "enter", "leave", "absent", "on")
_ON = True.__bool__  # what is put in its place under ``fullgraph=True`` says nothing (``compatibility.py``)
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR: the body runs later than the call


class Around:
    """What is done around the body of functions. A call for which nothing is done costs one comparison (some 40 ns) and ``plain``.

    Args:
        thread_state: Holds ``inside`` for each thread. ``copy.deepcopy`` of it must give itself, since torch.compile copies constants.
        most: Where ``thread_state.inside`` is more than this, nothing is done around the body.
        enter: A function; a method would be copied with its object. Called with the passed variables; returns when the call began, anything
            but 0. Must not raise.
        leave: A function. Called with what ``enter`` returned (0 if that was interrupted), what ``thread_state.inside`` was, and the passed
            variables. Must not raise.
        passed: Names of variables of the function, as they are before and after the body: parameters, or free variables.
        value: Whether ``leave`` gets what the call returns, or ``ABSENT``, as its last argument.
        plain: Expressions; the first that can be evaluated in the function's module is asked at each call, and nothing is done around the
            body where it is true.
        unasked: The module cannot tell whether torch.compile looks at the function: it leaves it alone, or, where it must not
            (``fullgraph=True``), compiles it as without this.
        leave_with: What ``leave`` gets instead of the passed variables: a program may delete its own, and then they cannot be had.
    """

    def __init__(
        self, thread_state: ThreadState, most: int, enter: Callable[..., int], leave: Callable[..., None], passed: Sequence[str] = (),
        value: bool = False, plain: Sequence[str] = (), leave_with: Sequence[str] | None = None, unasked: bool = False,
    ) -> None:  # fmt: skip
        if unasked:
            watch_torch_compile()
        exclude_from_torch_compile()
        self.unasked = unasked
        self.thread_state, self.most, self.enter, self.leave = thread_state, most, enter, leave
        self.passed, self.value, self.plain = passed, value, plain
        self.leave_with = passed if leave_with is None else leave_with
        self._made: dict[tuple[int, ...], Layers] = {}  # by identity of the program's code and of those further in
        weave.register_around(self)

    def forget(self) -> None:
        """No function runs with this any more."""
        weave.unregister_around(self)

    def is_made_here(self, code: CodeType) -> bool:
        """Whether some code is one that was made with this."""
        known = _layers.get(id(code))
        return known is not None and self in known.arounds

    def code(self, function: FunctionType, qualname: str | None = None) -> CodeType:
        """The function's code with this around its body, and around all that stands around it already.

        Args:
            function: One whose body runs when it is called: no generator.
            qualname: Where it is defined, if its ``__qualname__`` does not tell (``functools.wraps``); python 3.10 needs it.

        Raises:
            NoSource: It cannot be made.
        """
        old = weave.code_of(function)
        known = _layers.get(id(old))
        if known is None:
            return _stacked(old, function.__globals__, qualname or function.__qualname__, (self,))
        return old if self in known.arounds else _stacked(known.own, function.__globals__, known.qualname, (*known.arounds, self))

    def less(self, function: FunctionType) -> CodeType:
        """The function's code without this: with what else stands around its body, or its own."""
        known = _layers.get(id(weave.code_of(function)))
        if known is None or self not in known.arounds:
            return weave.code_of(function)
        left = tuple(around for around in known.arounds if around is not self)
        return _stacked(known.own, function.__globals__, known.qualname, left) if left else known.own

    def _check(self, code: CodeType) -> None:
        unknown = [
            name for name in (*self.passed, *self.leave_with) if name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        ]
        if unknown:
            raise NoSource(f"has no variable {unknown[0]}.")

    def surround(self, node: FunctionNode, code: CodeType, names: dict[str, Any], depth: int) -> dict[str, Any]:
        """Put this around the body of a function in a tree.

        Args:
            depth: How many stand around it already.

        Returns:
            What each marker stands for.

        Raises:
            NoSource: It cannot be.
        """
        self._check(code)
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        plain = _first_that_works([expression for expression in self.plain if expression.partition(".")[0] not in own], names, self.plain)
        markers = {slot: f"{MARK}around {depth} {slot}" for slot in _SLOTS}
        self._surround(node, markers, plain, depth)
        return dict(zip(markers.values(), (self.thread_state, self.enter, self.leave, ABSENT, _ON), strict=True))

    def _surround(self, node: FunctionNode, markers: dict[str, str], plain: str | None, depth: int) -> None:
        here, enter, leave, absent, on = (standing_for(markers[slot]) for slot in _SLOTS)
        kept_was, kept_began, kept_value = (f"@{name}{depth or ''}" for name in ("was", "began", "value"))
        passed = loads(self.passed)
        was = ast.NamedExpr(ast.Name(kept_was, ast.Store()), ast.Attribute(here, "inside", ast.Load()))
        test: ast.expr = ast.Compare(was, [ast.Gt()], [ast.Constant(self.most)])
        if plain is not None:
            test = ast.BoolOp(ast.Or(), [ast.parse(plain, mode="eval").body, test])
        if self.unasked:
            test = ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), ast.Call(on, [], [])), test])
        left = loads([kept_began, kept_was, *self.leave_with, *([kept_value] if self.value else [])])
        if isinstance(node, ast.Lambda):
            parts = {kept_began: ast.Call(enter, passed, []), kept_value: node.body}
            kept: list[ast.expr] = [ast.NamedExpr(ast.Name(name, ast.Store()), value) for name, value in parts.items()]
            timed_value = ast.Subscript(ast.Tuple([*kept, ast.Call(leave, left, [])], ast.Load()), ast.Constant(1), ast.Load())
            node.body = ast.fix_missing_locations(ast.copy_location(ast.IfExp(test, node.body, timed_value), node.body))
            return
        documented = ast.get_docstring(node, clean=False) is not None
        top = [*(node.body[:1] if documented else ()), *_taken_out(node.body)]  # a name may not be declared after it was used
        body = node.body[1:] if documented else node.body
        timed = body  # the very nodes: they are compiled twice
        before: list[ast.stmt] = [_set(kept_began, ast.Constant(0))]
        if self.value:
            timed = _Returns(kept_value).visit(ast.Module([copy.deepcopy(statement) for statement in body], [])).body
            before.append(_set(kept_value, absent))
        entering = _set(kept_began, ast.Call(enter, passed, []))
        leaving = ast.Expr(ast.Call(leave, left, []))
        for made in (test, entering, leaving, *before):
            ast.fix_missing_locations(ast.copy_location(made, body[0]))
        last = ast.copy_location(ast.Try([entering, *timed], [], [], [leaving]), body[0])
        node.body = [*top, ast.copy_location(ast.If(test, body, [*before, last]), body[0])]


class Layers:
    """Code with something around its body.

    Attributes:
        code: The code; a reference to it in the table of all.
        own: The program's own.
        qualname: Where its function is defined.
        arounds: Who stands around the body, from within.
    """

    __slots__ = ("__weakref__", "arounds", "code", "own", "qualname")

    def __init__(self, code: CodeType, own: CodeType, qualname: str, arounds: tuple[Around, ...]) -> None:
        self.code, self.own, self.qualname, self.arounds = code, own, qualname, arounds


_layers: weakref.WeakValueDictionary[int, Layers] = weakref.WeakValueDictionary()  # by identity of the new code


def _stacked(own: CodeType, names: dict[str, Any], qualname: str, arounds: tuple[Around, ...]) -> CodeType:
    """A function's code with all of these around its body, the first innermost; each time the same. Raises NoSource: it cannot be made."""
    outermost = arounds[-1]
    key = (id(own), *map(id, arounds[:-1]))
    known = outermost._made.get(key)
    if known is None:
        if own.co_flags & _GENERATES:
            raise NoSource("runs after its call has returned: it is a generator or async.")
        for around in arounds:
            around._check(own)
        tree, node = weave.tree_of(own, qualname, names)
        values: dict[str, Any] = {}
        for depth, around in enumerate(arounds):
            values.update(around.surround(node, own, names, depth))
        alike = [c for c in all_codes(compile_like(tree, own)) if c.co_name == own.co_name and c.co_firstlineno == own.co_firstlineno]
        made = next(c for c in alike if any(isinstance(c2, str) and c2 in values for c2 in c.co_consts))
        code = made.replace(co_consts=tuple(values.get(c, c) if isinstance(c, str) else c for c in made.co_consts))
        known = outermost._made[key] = Layers(code, own, qualname, arounds)
        _layers[id(code)] = known
        weave.register_code(code, own, frozenset(map(id, arounds)))
    return known.code


class _Returns(ast.NodeTransformer):
    """Keeps what is returned in a variable."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Return(self, node: ast.Return) -> Any:
        made = [_set(self._name, node.value or ast.Constant(None)), ast.Return(ast.Name(self._name, ast.Load()))]
        return [ast.fix_missing_locations(ast.copy_location(statement, node)) for statement in made]

    def _leave_alone(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave_alone


def _taken_out(body: list[ast.stmt]) -> list[ast.stmt]:
    """The declarations of global and nonlocal variables in a body, which has them no more."""
    found: list[ast.stmt] = []
    for statement in list(body):
        if isinstance(statement, ast.Global | ast.Nonlocal):
            found.append(statement)
            if len(body) > 1:
                body.remove(statement)
            else:
                body[0] = ast.copy_location(ast.Pass(), statement)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                for inner in ("body", "orelse", "finalbody"):
                    found += _taken_out(getattr(part, inner, []))
    return found


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _first_that_works(expressions: Sequence[str], names: dict[str, Any], alternatives: Sequence[str]) -> str | None:
    """The first expression that the function's module can evaluate. Raises NoSource: some expression is wanted, and none can be had."""
    for expression in expressions:
        try:
            eval(expression, {**names})
        except (NameError, AttributeError):
            continue
        return expression
    if alternatives:
        raise NoSource(f"cannot tell {alternatives[0]}.")
    return None
