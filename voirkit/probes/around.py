"""Inserts code before and after the body of a library's function, for instruments.

These time every call. The code is inserted into the function itself, which keeps its identity,
name, signature, lines and frame. No wrapper is visible in tracebacks, or to ``warnings``
(``stacklevel``), ``pickle``, ``inspect`` or ``is``. Modules that imported the function earlier get
the new body too. This module must not import giving, or know torch.

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

A lambda cannot have a ``finally``: ``leave`` is called only if the lambda returns. Several
``Around`` may surround the body of one function; the first is the innermost.

Checked with Python 3.10 to 3.13.
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
        """The state of a thread. ``inside`` is an integer that ``enter`` may set; ``leave`` must
        set it back to ``was``."""

        inside: int


class Absent:
    """Placeholder for the value of a call that has not returned.

    If an exception ended the call, the exception is in ``sys.exc_info()``.
    """

    def __deepcopy__(self, memo: object) -> Absent:
        return self


ABSENT = Absent()
_SLOTS = ("here", "enter", "leave", "absent", "on")
# Called by code that must know whether torch.compile traces it. When executed, this returns True.
# Under ``fullgraph=True`` torch.compile traces, in place of this, a function that returns None
# (``compatibility.py``).
_ON = True.__bool__
# CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR: flags of functions whose body runs after the call
# has returned
_GENERATES = 0x20 | 0x80 | 0x200


class Around:
    """A pair of functions, ``enter`` and ``leave``, called before and after the body of others.

    A call for which neither is called costs one comparison (some 40 ns) and the test of ``plain``.

    Args:
        thread_state: Object that holds ``inside`` for each thread. Its ``copy.deepcopy`` must
            return the object itself, since torch.compile copies constants.
        most: If ``thread_state.inside`` is greater than this, only the body is executed.
        enter: A function, since a method would be copied with its object. It is called with the
            passed variables, and returns the time when the call began, anything but 0. Must not
            raise.
        leave: A function. It is called with the result of ``enter`` (0 if ``enter`` was
            interrupted), the previous ``thread_state.inside``, and the passed variables. Must not
            raise.
        passed: Names of variables of the function (parameters or free variables), whose values are
            passed as they are before and after the body.
        value: If True, ``leave`` gets the value that the call returns, or ``ABSENT``, as its last
            argument.
        plain: Expressions. The first that can be evaluated in the function's module is evaluated at
            each call; if it is true, only the body is executed.
        unasked: True if the function's module cannot tell whether torch.compile traces the
            function. torch.compile then leaves the function alone, or, where it must not
            (``fullgraph=True``), compiles only the body.
        leave_with: Names of the variables that ``leave`` gets in place of ``passed``, if the body
            may delete its own variables.
    """

    def __init__(
        self,
        thread_state: ThreadState,
        most: int,
        enter: Callable[..., int],
        leave: Callable[..., None],
        passed: Sequence[str] = (),
        value: bool = False,
        plain: Sequence[str] = (),
        leave_with: Sequence[str] | None = None,
        unasked: bool = False,
    ) -> None:
        if unasked:
            watch_torch_compile()
        exclude_from_torch_compile()
        self.unasked = unasked
        self.thread_state = thread_state
        self.most = most
        self.enter = enter
        self.leave = leave
        self.passed = passed
        self.value = value
        self.plain = plain
        self.leave_with = passed if leave_with is None else leave_with
        # keys: id of the program's code object, then ids of the Arounds inside this one
        self._layers_by_codes: dict[tuple[int, ...], Layers] = {}
        weave.register_around(self)

    def forget(self) -> None:
        """Unregister this ``Around``, after it was removed from all functions."""
        weave.unregister_around(self)

    def is_made_here(self, code: CodeType) -> bool:
        """True if a code object was made with this ``Around``."""
        layers = _layers.get(id(code))
        return layers is not None and self in layers.arounds

    def code(self, function: FunctionType, qualname: str | None = None) -> CodeType:
        """Return the function's code with this ``Around`` outside of those it already has.

        Args:
            function: A function whose body runs when it is called, not a generator.
            qualname: Qualified name of the function's definition, if its ``__qualname__`` is
                another (``functools.wraps``); Python 3.10 needs it.

        Raises:
            NoSource: The code cannot be made.
        """
        old = weave.code_of(function)
        layers = _layers.get(id(old))
        if layers is None:
            arounds: tuple[Around, ...] = (self,)
            return _stacked(old, function.__globals__, qualname or function.__qualname__, arounds)
        if self in layers.arounds:
            return old
        arounds = (*layers.arounds, self)
        return _stacked(layers.original, function.__globals__, layers.qualname, arounds)

    def less(self, function: FunctionType) -> CodeType:
        """Return the function's code without this ``Around``: with those that remain, or the
        original."""
        code = weave.code_of(function)
        layers = _layers.get(id(code))
        if layers is None or self not in layers.arounds:
            return code
        remaining = tuple(around for around in layers.arounds if around is not self)
        if not remaining:
            return layers.original
        return _stacked(layers.original, function.__globals__, layers.qualname, remaining)

    def _check(self, code: CodeType) -> None:
        variables = _variables_of(code)
        for name in (*self.passed, *self.leave_with):
            if name not in variables:
                raise NoSource(f"has no variable {name}.")

    def surround(
        self, node: FunctionNode, code: CodeType, names: dict[str, Any], depth: int
    ) -> dict[str, Any]:
        """Insert this ``Around`` into the syntax tree of a function.

        Args:
            depth: Number of ``Around`` that the function already has.

        Returns:
            The object that replaces each marker in the code's constants.

        Raises:
            NoSource: The function lacks a variable, or the module a ``plain`` expression.
        """
        self._check(code)
        variables = _variables_of(code)
        expressions = [text for text in self.plain if text.partition(".")[0] not in variables]
        plain = _first_that_works(expressions, names, self.plain)
        markers = {slot: f"{MARK}around {depth} {slot}" for slot in _SLOTS}
        self._surround(node, markers, plain, depth)
        values = (self.thread_state, self.enter, self.leave, ABSENT, _ON)
        return dict(zip(markers.values(), values, strict=True))

    def _surround(
        self, node: FunctionNode, markers: dict[str, str], plain: str | None, depth: int
    ) -> None:
        slots = {slot: standing_for(marker) for slot, marker in markers.items()}
        suffix = depth or ""
        was_name, began_name, value_name = f"@was{suffix}", f"@began{suffix}", f"@value{suffix}"
        test = self._test(slots, was_name, plain)
        names = [began_name, was_name, *self.leave_with]
        if self.value:
            names.append(value_name)
        enter = ast.Call(slots["enter"], loads(self.passed), [])
        leave = ast.Call(slots["leave"], loads(names), [])
        if isinstance(node, ast.Lambda):
            parts: list[ast.expr] = [
                ast.NamedExpr(ast.Name(began_name, ast.Store()), enter),
                ast.NamedExpr(ast.Name(value_name, ast.Store()), node.body),
                leave,
            ]
            every = ast.Tuple(parts, ast.Load())
            timed_value = ast.Subscript(every, ast.Constant(1), ast.Load())
            node.body = _place_like(ast.IfExp(test, node.body, timed_value), node.body)
            return
        has_docstring = ast.get_docstring(node, clean=False) is not None
        # global and nonlocal declarations have to come before the first use of the name
        top = [*(node.body[:1] if has_docstring else ()), *_take_declarations(node.body)]
        body = node.body[1:] if has_docstring else node.body
        timed = body  # the same nodes in both branches: they are compiled twice
        before: list[ast.stmt] = [_set(began_name, ast.Constant(0))]
        if self.value:
            copied = [copy.deepcopy(statement) for statement in body]
            timed = _Returns(value_name).visit(ast.Module(copied, [])).body
            before.append(_set(value_name, slots["absent"]))
        entering = _set(began_name, enter)
        leaving = ast.Expr(leave)
        for part in (test, entering, leaving, *before):
            _place_like(part, body[0])
        last = ast.copy_location(ast.Try([entering, *timed], [], [], [leaving]), body[0])
        node.body = [*top, ast.copy_location(ast.If(test, body, [*before, last]), body[0])]

    def _test(self, slots: dict[str, ast.expr], was: str, plain: str | None) -> ast.expr:
        """Return the condition under which only the body is executed."""
        inside = ast.Attribute(slots["here"], "inside", ast.Load())
        inside_before = ast.NamedExpr(ast.Name(was, ast.Store()), inside)
        test: ast.expr = ast.Compare(inside_before, [ast.Gt()], [ast.Constant(self.most)])
        if plain is not None:
            test = ast.BoolOp(ast.Or(), [ast.parse(plain, mode="eval").body, test])
        if self.unasked:
            is_compiled = ast.UnaryOp(ast.Not(), ast.Call(slots["on"], [], []))
            test = ast.BoolOp(ast.Or(), [is_compiled, test])
        return test


def _variables_of(code: CodeType) -> set[str]:
    return {*code.co_varnames, *code.co_cellvars, *code.co_freevars}


def _place_like(new: Any, old: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(new, old))


class Layers:
    """A code object with ``Around`` inserted, and the code it was made from.

    Attributes:
        code: The code object. This reference keeps it alive while ``_layers`` has its id.
        original: The program's own code object.
        qualname: Qualified name of the function's definition.
        arounds: The ``Around`` in the code, innermost first.
    """

    __slots__ = ("__weakref__", "arounds", "code", "original", "qualname")

    def __init__(
        self, code: CodeType, original: CodeType, qualname: str, arounds: tuple[Around, ...]
    ) -> None:
        self.code = code
        self.original = original
        self.qualname = qualname
        self.arounds = arounds


# by id of the code object that has the ``Around``
_layers: weakref.WeakValueDictionary[int, Layers] = weakref.WeakValueDictionary()


def _stacked(
    original: CodeType, names: dict[str, Any], qualname: str, arounds: tuple[Around, ...]
) -> CodeType:
    """Return a function's code with all given ``Around``, the first innermost.

    Equal arguments give the same code object. Raises NoSource if the code cannot be made.
    """
    outermost = arounds[-1]
    key = (id(original), *map(id, arounds[:-1]))
    layers = outermost._layers_by_codes.get(key)
    if layers is None:
        code = _surrounded(original, names, qualname, arounds)
        layers = Layers(code, original, qualname, arounds)
        outermost._layers_by_codes[key] = layers
        _layers[id(code)] = layers
        weave.register_code(code, original, frozenset(map(id, arounds)))
    return layers.code


def _surrounded(
    original: CodeType, names: dict[str, Any], qualname: str, arounds: tuple[Around, ...]
) -> CodeType:
    if original.co_flags & _GENERATES:
        raise NoSource("runs after its call has returned: it is a generator or async.")
    for around in arounds:
        around._check(original)
    tree, node = weave.tree_of(original, qualname, names)
    values: dict[str, Any] = {}
    for depth, around in enumerate(arounds):
        values.update(around.surround(node, original, names, depth))
    start = (original.co_name, original.co_firstlineno)
    codes = [
        inner
        for inner in all_codes(compile_like(tree, original))
        if (inner.co_name, inner.co_firstlineno) == start
    ]
    code = next(inner for inner in codes if _has_marker(inner, values))
    consts = [
        values.get(const, const) if isinstance(const, str) else const for const in code.co_consts
    ]
    return code.replace(co_consts=tuple(consts))


def _has_marker(code: CodeType, values: dict[str, Any]) -> bool:
    return any(isinstance(const, str) and const in values for const in code.co_consts)


class _Returns(ast.NodeTransformer):
    """Transformer that stores each returned value in a variable."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Return(self, node: ast.Return) -> Any:
        statements = [
            _set(self._name, node.value or ast.Constant(None)),
            ast.Return(ast.Name(self._name, ast.Load())),
        ]
        return [_place_like(statement, node) for statement in statements]

    def _leave_alone(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave_alone


def _take_declarations(body: list[ast.stmt]) -> list[ast.stmt]:
    """Remove the declarations of global and nonlocal variables from a body, and return them."""
    declarations: list[ast.stmt] = []
    for statement in list(body):
        if isinstance(statement, ast.Global | ast.Nonlocal):
            declarations.append(statement)
            if len(body) > 1:
                body.remove(statement)
            else:
                body[0] = ast.copy_location(ast.Pass(), statement)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            handlers = getattr(statement, "handlers", ())
            cases = getattr(statement, "cases", ())
            for part in (statement, *handlers, *cases):
                for field in ("body", "orelse", "finalbody"):
                    declarations += _take_declarations(getattr(part, field, []))
    return declarations


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _first_that_works(
    expressions: Sequence[str], names: dict[str, Any], alternatives: Sequence[str]
) -> str | None:
    """Return the first expression that can be evaluated in the function's module.

    Return None if no expression was given. Raises NoSource if some were, but none can be evaluated.
    """
    for expression in expressions:
        try:
            eval(expression, {**names})
        except (NameError, AttributeError):
            continue
        return expression
    if alternatives:
        raise NoSource(f"cannot tell {alternatives[0]}.")
    return None
