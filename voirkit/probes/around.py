"""Something done before and after the body of a function of a library, in the function itself: for what times every call.

The function keeps its identity, name, signature, lines and frame: no wrapper is seen in tracebacks, by ``warnings`` (``stacklevel``),
``pickle``, ``inspect`` or ``is``, and who has imported it before has the new body too. Nothing here may load giving or know torch.

A body ``B`` becomes::

    if <plain> or (was := here.inside) > <most>:
        B
    else:
        began = 0
        try:
            began = enter(<passed>)
            B
        finally:
            leave(began, was, <passed>)

A lambda's, in which there is no ``finally``, is left only where it returns.

Checked with python 3.10 to 3.13.
"""

from __future__ import annotations

import ast
import copy

from voirkit.probes import weave, woven
from voirkit.probes.calls import MARK
from voirkit.probes.compiled import leave_out, watch
from voirkit.probes.source import NoSource, all_codes, compiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FunctionType
    from typing import Any, Protocol

    from voirkit.probes.names import FunctionNode

    class Here(Protocol):
        """What a thread is inside of; ``inside`` is an integer that ``enter`` may set, and ``leave`` must set back to ``was``."""

        inside: int


class Absent:
    """The value of a call that has none (yet): it was left by an exception, which is then ``sys.exc_info()``."""

    def __deepcopy__(self, memo: object) -> Absent:
        return self


ABSENT = Absent()
_SLOTS = ("here", "enter", "leave", "absent", "on")
_ON = True.__bool__  # what is put in its place under ``fullgraph=True`` says nothing (``compiled.py``)
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR: the body runs later than the call


class Around:
    """What is done around the body of functions. A call for which nothing is done costs one comparison (some 40 ns) and ``plain``.

    Args:
        here: Holds ``inside`` for each thread. Copying it (``copy.deepcopy``) must give itself, since torch.compile copies constants.
        most: Where ``here.inside`` is more than this, nothing is done around the body.
        enter: A function; a method would be copied with its object. Called with the passed variables; returns when the call began, anything
            but 0. Must not raise.
        leave: A function. Called with what ``enter`` returned (0 if that was interrupted), what ``here.inside`` was, and the passed
            variables. Must not raise.
        passed: Names of variables of the function, as they are before and after the body: parameters, or free variables.
        value: Whether ``leave`` gets what the call returns, or ``ABSENT``, as its last argument.
        plain: Expressions; the first that can be evaluated in the function's module is asked at each call, and nothing is done around the
            body where it is true.
        unasked: The module can not tell whether torch.compile looks at the function: it leaves it alone, or, where it must not
            (``fullgraph=True``), compiles it as without this.
        left: What ``leave`` gets instead of the passed variables: a program may delete its own, and then they can not be had.
    """

    def __init__(
        self, here: Here, most: int, enter: Callable[..., int], leave: Callable[..., None], passed: Sequence[str] = (), value: bool = False,
        plain: Sequence[str] = (), left: Sequence[str] | None = None, unasked: bool = False,
    ) -> None:  # fmt: skip
        if unasked:
            watch()
        leave_out()
        self.unasked = unasked
        self.here, self.most, self.enter, self.leave = here, most, enter, leave
        self.passed, self.value, self.plain = passed, value, plain
        self.left = passed if left is None else left
        self._made: dict[int, tuple[CodeType, CodeType]] = {}  # by identity of the program's code: itself, and the new code
        weave.stand_around(self)

    def forget(self) -> None:
        """No function runs with this any more."""
        weave.go(self)

    def made(self, code: CodeType) -> bool:
        """Whether some code is one that was made with this."""
        return any(new is code for _, new in self._made.values())

    def code(self, function: FunctionType, qualname: str | None = None) -> CodeType:
        """The function's code with this around its body.

        Args:
            function: One whose body runs when it is called: no generator.
            qualname: Where it is defined, if its ``__qualname__`` does not tell (``functools.wraps``); python 3.10 needs it.

        Raises:
            NoSource: It can not be made.
        """
        old = function.__code__
        if self.made(old):
            return old
        found = self._made.get(id(old))
        if found is None:
            if old.co_flags & _GENERATES:
                raise NoSource("runs after its call has returned: it is a generator or async.")
            new = self._compile(function, qualname or function.__qualname__)
            found = self._made[id(old)] = (old, new)
            woven.note(new, old, frozenset([id(self)]))
        return found[1]

    def _compile(self, function: FunctionType, qualname: str) -> CodeType:
        code, names = function.__code__, function.__globals__
        unknown = [name for name in (*self.passed, *self.left) if name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)]
        if unknown:
            raise NoSource(f"has no variable {unknown[0]}.")
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        plain = _first_that_works([expression for expression in self.plain if expression.partition(".")[0] not in own], names, self.plain)
        tree, node = woven.tree_of(code, qualname, names)
        markers = {slot: f"{MARK}around {slot}" for slot in _SLOTS}
        self._put(node, markers, plain)
        alike = [c for c in all_codes(compiled(tree, code)) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]
        made = next(c for c in alike if any(marker in c.co_consts for marker in markers.values()))
        values = dict(zip(markers.values(), (self.here, self.enter, self.leave, ABSENT, _ON), strict=True))
        return made.replace(co_consts=tuple(values.get(c, c) if isinstance(c, str) else c for c in made.co_consts))

    def _put(self, node: FunctionNode, markers: dict[str, str], plain: str | None) -> None:
        here, enter, leave, absent, on = (_standing_for(markers[slot]) for slot in _SLOTS)
        passed: list[ast.expr] = [ast.Name(name, ast.Load()) for name in self.passed]
        was = ast.NamedExpr(ast.Name("@was", ast.Store()), ast.Attribute(here, "inside", ast.Load()))
        test: ast.expr = ast.Compare(was, [ast.Gt()], [ast.Constant(self.most)])
        if plain is not None:
            test = ast.BoolOp(ast.Or(), [ast.parse(plain, mode="eval").body, test])
        if self.unasked:
            test = ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), ast.Call(on, [], [])), test])
        left: list[ast.expr] = [ast.Name(name, ast.Load()) for name in ("@began", "@was", *self.left)]
        if self.value:
            left.append(ast.Name("@value", ast.Load()))
        if isinstance(node, ast.Lambda):
            parts = {"@began": ast.Call(enter, passed, []), "@value": node.body}
            kept: list[ast.expr] = [ast.NamedExpr(ast.Name(name, ast.Store()), value) for name, value in parts.items()]
            timed_value = ast.Subscript(ast.Tuple([*kept, ast.Call(leave, left, [])], ast.Load()), ast.Constant(1), ast.Load())
            node.body = ast.fix_missing_locations(ast.copy_location(ast.IfExp(test, node.body, timed_value), node.body))
            return
        documented = ast.get_docstring(node, clean=False) is not None
        top = [*(node.body[:1] if documented else ()), *_taken_out(node.body)]  # a name may not be declared after it was used
        body = node.body[1:] if documented else node.body
        timed = body  # the very nodes: they are compiled twice
        before: list[ast.stmt] = [_set("@began", ast.Constant(0))]
        if self.value:
            timed = _Returns().visit(ast.Module([copy.deepcopy(statement) for statement in body], [])).body
            before.append(_set("@value", absent))
        entering = _set("@began", ast.Call(enter, passed, []))
        leaving = ast.Expr(ast.Call(leave, left, []))
        for made in (test, entering, leaving, *before):
            ast.fix_missing_locations(ast.copy_location(made, body[0]))
        last = ast.copy_location(ast.Try([entering, *timed], [], [], [leaving]), body[0])
        node.body = [*top, ast.copy_location(ast.If(test, body, [*before, last]), body[0])]


class _Returns(ast.NodeTransformer):
    """Keeps what is returned in a variable."""

    def visit_Return(self, node: ast.Return) -> Any:
        made = [_set("@value", node.value or ast.Constant(None)), ast.Return(ast.Name("@value", ast.Load()))]
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


def _standing_for(marker: str) -> ast.expr:
    """An expression that stands for any object; the compiler has no warning for it, and leaves nothing of its form."""
    return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _first_that_works(expressions: Sequence[str], names: dict[str, Any], wanted: Sequence[str]) -> str | None:
    """The first expression that the function's module can evaluate.

    Raises:
        NoSource: Some expression is wanted, and none can be had.
    """
    for expression in expressions:
        try:
            eval(expression, {**names})
        except (NameError, AttributeError):
            continue
        return expression
    if wanted:
        raise NoSource(f"can not tell {wanted[0]}.")
    return None
