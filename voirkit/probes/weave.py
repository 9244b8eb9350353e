"""Gives live functions code with taps, and their own back: the tree gets the taps, is compiled, and each marker becomes its tap.

Remembers of all such code what the program's own is, and whose taps it has. When the last tap goes a function gets its own code back,
the very object.
"""

from __future__ import annotations

import ast
import gc
import operator
import sys
import threading
import weakref
from dataclasses import dataclass
from itertools import zip_longest
from types import CodeType, FunctionType
from typing import Any

from voirkit import streams
from voirkit.probes import compatibility, instrumenter, source
from voirkit.probes.instrumenter import instrumenter_of
from voirkit.probes.source import FunctionNode, NoSource, all_codes, compile_like, inner_codes, is_code_of
from voirkit.probes.tap_emitter import MARK, Listener, Unobservable
from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from voirkit.probes.call_hooks import Layer

CO_GENERATOR = 0x20
FAR = 10**6  # a line that no file has
Path = tuple[str, ...]
Want = tuple[Path, Listener]  # where in the function (itself: an empty path), and who
Placed = tuple[FunctionNode, Path, Listener]  # a function, where in it, and who
FROZEN_BY_PYTHON = 1000  # 3.12 begins with 375
FEW_CODES = 64  # up to which it is quicker to ask who refers to them than to look at all objects
MANY = 8  # probes on a function
lock = threading.RLock()  # held while functions get and lose taps
overlays: dict[int, Layer] = {}  # by identity of the function: what stands over its code, whatever that is (python 3.11)
_patches: dict[int, Patch] = {}
_live: set[int] = set()  # identities of the listeners that are on
_around: set[int] = set()  # identities of those who stand around whole functions (``around.py``)
_PARTS = (
    "co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars", "co_cellvars", "co_names",
    "co_varnames", "co_code", "co_exceptiontable",
)  # fmt: skip


# Set by ``types.coroutine`` on the code of a generator function that is there already; no source says so.
AWAITABLE = 0x100  # inspect.CO_ITERABLE_COROUTINE


# code with taps


class Origin:
    """Where code with taps comes from.

    Attributes:
        old: The program's own code.
        wants: Whose taps are in it, and where.
        everyone: Identities of all whose taps were put in together with them.
    """

    __slots__ = ("code", "everyone", "old", "wants")

    def __init__(self, code: CodeType, old: CodeType, wants: list[Want], everyone: frozenset[int]) -> None:
        self.code = weakref.ref(code, forgetter(_origins, id(code)))  # a reference to it
        self.old, self.wants, self.everyone = old, wants, everyone


_origins: dict[int, Origin] = {}  # by identity of the new code
_by_tap: weakref.WeakKeyDictionary[FunctionType, Origin] = weakref.WeakKeyDictionary()  # of generators, by the taps in them


def forgetter(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry when what it is about is gone; holds the table itself, since a module's names are gone when python ends."""
    return lambda _: table.pop(key, None)


def origin_of(code: CodeType) -> Origin | None:
    """Where some code comes from, if it has taps."""
    known = _origins.get(id(code))
    if known is None and code.co_flags & AWAITABLE:  # types.coroutine has copied it
        twin = next((_by_tap[const] for const in code.co_consts if isinstance(const, FunctionType) and const in _by_tap), None)
        if twin is not None:
            own = twin.old.replace(co_flags=twin.old.co_flags | AWAITABLE)
            known = _origins[id(code)] = Origin(code, own, twin.wants, twin.everyone)
    return known


def own_code(code: CodeType) -> CodeType:
    """The program's own code, if some code has taps; else that code."""
    known = origin_of(code)
    return known.old if known is not None else code


def register_code(code: CodeType, old: CodeType, whose: frozenset[int]) -> None:
    """Remember that new code without taps stands for the program's own, as long as there is such code. ``old``: what it was made from;
    ``whose``: identities of those for whom it was made."""
    _origins[id(code)] = Origin(code, own_code(old), [], whose)


def register_overlay(code: CodeType, below: CodeType, whose: frozenset[int]) -> None:
    """As ``register_code``, of code that may stand over code with taps; and it is pickled as the program's own."""
    known = _origins.get(id(below))
    old, wants, everyone = (known.old, known.wants, known.everyone) if known is not None else (below, [], frozenset())
    _origins[id(code)] = Origin(code, old, wants, everyone | whose)
    compatibility.watch_picklers(own_code)


def origins() -> list[Origin]:
    """Those of all code that there is."""
    return list(_origins.values())


def weave_code(code: CodeType, qualname: str, names: dict[str, Any], wants: Sequence[Want]) -> CodeType:
    """New code for a function. Raises NoSource: it cannot be made."""
    tree, function = tree_of(code, qualname, names)
    table: dict[str, Any] = {}
    where = placed(function, wants)
    for path in dict.fromkeys(path for path, _ in wants):
        listeners = [listener for at, listener in wants if at == path]
        for inner in definitions(function, path):
            instrument_tree(inner, listeners, names, table, code)
    codes = _codes_in(compile_with_taps(tree, code), code)
    # Of lambdas in a line the innermost that all the marks are in.
    new = max(codes, key=lambda c: (_marks(c), codes.index(c)))
    return replace_markers(new, code, table, where)


def compile_with_taps(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree that has taps under the name and ``__future__`` imports of some code. Raises NoSource: it cannot be compiled."""
    try:
        return compile_like(tree, code)
    except SyntaxError as exc:  # such as too many blocks in blocks
        raise NoSource(f"cannot be probed: with its taps it does not compile ({exc.msg}).") from None
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None


def tree_of(code: CodeType, qualname: str, names: dict[str, Any]) -> tuple[ast.Module, FunctionNode]:
    """A module to compile, and in it the function that some code was compiled from. Raises NoSource: there is none that compiles to the
    same."""
    try:
        for lines in source.texts_of(code, names):
            for tree, function in source.trees_in(lines, code, qualname, names):
                if _compiles_to(tree, function, code):
                    source.remember_lines(code.co_filename, lines)
                    return tree, function
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None
    raise NoSource(source.why_other(code))


def _compiles_to(tree: ast.Module, function: FunctionNode, code: CodeType) -> bool:
    if not isinstance(function, ast.Lambda) or hasattr(code, "co_positions"):
        return any(is_same_code(found, code) for found in _codes_in(compile_like(tree, code), code))
    # In python 3.10 nothing distinguishes the code of two lambdas in a line; so this one gets a line of its own.
    line, function.lineno = function.lineno, FAR
    try:
        return any(is_same_code(c, code, same_start=False) for c in all_codes(compile_like(tree, code)) if c.co_firstlineno == FAR)
    finally:
        function.lineno = line


def instrument_tree(
    node: FunctionNode, listeners: Sequence[Listener], names: dict[str, Any] | None, table: dict[str, Any], old: CodeType | None
) -> None:  # fmt: skip
    """Put the taps of listeners into a tree.

    Args:
        node: A function in it.
        names: The module's names, if it has run.
        table: Gets each marker's function.
        old: Code that the function's own stands in, or is; None: unknown.

    Raises:
        Unobservable: They would not see all that is wanted.
    """
    wanted = dict.fromkeys(name for listener in listeners for name in listener.names)
    outside = instrumenter.outer_names(node) if wanted else ()
    own = next((c for c in all_codes(old) if source.is_code_of(c, node)), None) if old is not None else None
    tree_instrumenter = instrumenter_of(node, listeners, [name for name in wanted if name in outside], names, table, own)
    tree_instrumenter.instrument()
    tree_instrumenter.check()


def definitions(node: ast.AST, path: Path) -> list[FunctionNode]:
    """The functions at a path inside a function, class or module; the thing itself for an empty path."""
    if not path:
        return [node] if isinstance(node, FunctionNode) else []
    found: list[FunctionNode] = []
    stack: list[ast.AST] = list(getattr(node, "body", []))[::-1] if isinstance(getattr(node, "body", None), list) else []
    while stack:
        at = stack.pop()
        if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if at.name == path[0] and not _is_setter(at):  # of a property the getter is meant
                found += definitions(at, path[1:])
        elif isinstance(at, ast.Assign | ast.AnnAssign) and isinstance(at.value, ast.Lambda) and len(path) == 1:
            targets = at.targets if isinstance(at, ast.Assign) else [at.target]
            if any(isinstance(t, ast.Name) and t.id == path[0] for t in targets):
                found.append(at.value)
        elif isinstance(at, ast.stmt | ast.ExceptHandler | getattr(ast, "match_case", ())):
            stack += [c for c in ast.iter_child_nodes(at) if not isinstance(c, ast.expr)][::-1]
    return found


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in node.decorator_list)


def placed(root: ast.AST, wants: Sequence[Want]) -> list[Placed]:
    """Whose taps come into which functions: those at the paths, and those around them."""
    ends = ((path, n, listener) for path, listener in wants for n in range(len(path) + 1))
    return [(node, path[n:], listener) for path, n, listener in ends for node in definitions(root, path[:n])]


def _codes_in(module: CodeType, code: CodeType) -> list[CodeType]:
    """The code in a module's that stands where some code stood; several for lambdas in a line."""
    return [c for c in all_codes(module) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]


def _marks(code: CodeType) -> int:
    """How many marks stand in some code."""
    return sum(isinstance(k, str) and k.startswith(MARK) for c in all_codes(code) for k in c.co_consts)


def matches(plain: CodeType, old: CodeType) -> list[CodeType]:
    """Where the functions and classes of a few statements of a module stand in the module's code. Raises NoSource: the module's code does
    not come from these statements."""
    alike: dict[tuple[str, int], list[CodeType]] = {}
    for code in inner_codes(old):
        alike.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    found = []
    for code in inner_codes(plain):
        same = alike.get((code.co_name, code.co_firstlineno))
        if not same or not is_same_code(same[0], code):
            raise NoSource(source.CHANGED)
        found.append(same.pop(0))
    return found


def graft_functions(new: CodeType, old: CodeType, places: Sequence[CodeType], table: dict[str, Any], where: Sequence[Placed]) -> CodeType:
    """A module's old code, in which the functions and classes that also stand in the new code have its taps.

    Args:
        new: Code of some of the module's statements, with taps.
        places: Where they stand in it.
        table: Each marker's function.
        where: Whose taps come into which functions.
    """
    inner = inner_codes(new)
    if len(inner) != len(places):  # python 3.10 makes one of two equal lambdas of a line
        raise NoSource(source.CHANGED)
    instead = {id(place): replace_markers(made, place, table, where) for made, place in zip(inner, places, strict=True)}
    consts = tuple(instead.get(id(const), const) for const in old.co_consts)
    return old if all(map(operator.is_, consts, old.co_consts)) else old.replace(co_consts=consts)


def replace_markers(new: CodeType, old: CodeType | None, table: dict[str, Any], where: Sequence[Placed]) -> CodeType:
    """Code with the markers replaced; what in it has none is the old code, the very object."""
    inner_old = inner_codes(old) if old is not None else []
    inner_new = inner_codes(new)
    pairs = dict(zip(map(id, inner_new), inner_old, strict=False)) if len(inner_new) == len(inner_old) else {}
    consts: list[Any] = []
    changed = False
    for const in new.co_consts:
        if isinstance(const, str) and const.startswith(MARK):
            const, changed = table[const], True
        elif isinstance(const, CodeType):
            before = pairs.get(id(const))
            const = replace_markers(const, before, table, where)
            changed = changed or const is not before
        consts.append(const)
    if not changed and old is not None:
        return old
    code = new.replace(co_consts=tuple(consts), co_flags=new.co_flags | (old.co_flags & AWAITABLE if old is not None else 0))
    compatibility.watch_all(own_code, is_probed)
    if old is not None:
        wants = [(path, listener) for node, path, listener in where if source.is_code_of(old, node)]
        made = _origins[id(code)] = Origin(code, old, wants, frozenset(id(listener) for _, _, listener in where))
        if code.co_flags & CO_GENERATOR:  # of which types.coroutine may make a copy
            _by_tap.update({const: made for const in consts if isinstance(const, FunctionType)})
    return code


# live functions that have it


def code_of(function: FunctionType) -> CodeType:
    """The code of a function, without what stands over it."""
    layer = overlays.get(id(function))
    return function.__code__ if layer is None else layer.under(function)


def set_code(function: FunctionType, code: CodeType) -> None:
    """Give a function other code, under what stands over it."""
    layer = overlays.get(id(function))
    if layer is None:
        function.__code__ = code
    else:
        layer.put_under(function, code)


class Patch:
    """A function that has taps, or will have when somebody listens."""

    def __init__(self, function: FunctionType) -> None:
        key = id(function)
        self.function = weakref.ref(function, forgetter(_patches, key))
        self.keep: FunctionType | None = None
        origin = origin_of(code_of(function))  # it may be compiled, or made by a function, with taps
        self.original = origin.old if origin is not None else code_of(function)
        self.before = code_of(function)
        self.wants: list[Want] = [want for want in origin.wants if id(want[1]) in _live] if origin is not None else []
        self._made: tuple[list[Want], CodeType] = ([], self.original)

    def code_with(self, wants: list[Want]) -> CodeType:
        """The function's code with taps."""
        if wants != self._made[0]:
            function = self.function()
            assert function is not None  # the caller holds it
            code = weave_code(self.original, function.__qualname__, function.__globals__, wants)
            self._made = (list(wants), code)
        return self._made[1]

    def apply(self) -> None:
        """Make the function run with the taps that are wanted now. This may stand in the middle of the program: what goes wrong is told,
        and the function keeps the taps that it has."""
        try:
            self.install()
        except Exception as exc:
            if is_from_handler(exc):
                raise
            function = self.function()
            has = self._made[0] if function is not None and code_of(function) is self._made[1] else []
            if function is not None and any(want[1].is_awake and want not in has for want in self.wants):
                where = f"{function.__qualname__} ({self.original.co_filename}:{self.original.co_firstlineno})"
                why = exc if isinstance(exc, NoSource | Unobservable) else f"cannot be changed: {streams.describe(exc)}."
                streams.report(f"{where} {why}\n  Not all its probes are on.")

    def install(self) -> None:
        """As ``apply``. Raises NoSource, Unobservable: the taps cannot be had."""
        function = self.function()
        if function is None:
            return
        if code_of(function).co_flags & AWAITABLE & ~self.original.co_flags:  # types.coroutine has been called on it since
            self.original, self.before = (code.replace(co_flags=code.co_flags | AWAITABLE) for code in (self.original, self.before))
            self._made = ([], self.original)
        if not self.wants:
            set_code(function, self.before if _stays(self.before) else self.original)
            _patches.pop(id(function), None)
            return
        awake = [want for want in self.wants if want[1].is_awake]
        if self._has_few_more(awake, function):
            return
        set_code(function, self.code_with(awake) if awake else self.original.replace())

    def _has_few_more(self, awake: list[Want], function: FunctionType) -> bool:
        """Whether the code in place will do: of many taps a few are without use, which are not worth making all the others anew."""
        placed, code = self._made
        more = len(placed) - len(awake)
        return len(awake) >= MANY and 0 < more * MANY < len(awake) * 2 and code_of(function) is code and set(placed) >= set(awake)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Taps that a function is to get: whose, and where in it (in itself: an empty path)."""

    patch: Patch
    path: Path
    listener: Any


def prepare(function: FunctionType, path: Path, listener: Listener) -> Prepared:
    """Make a function's code with the taps of one more listener, without putting it in place. Raises NoSource, Unobservable: it cannot be
    made."""
    patch = _patches.get(id(function)) or Patch(function)
    patch.keep = function  # until it is attached
    wants = [(path, listener)]
    if _joined(patch.wants, wants[0]) == wants:
        patch.code_with(wants)
    else:  # not with those of the others, which is done once, by who puts it in place
        weave_code(patch.original, function.__qualname__, function.__globals__, wants)
    return Prepared(patch, path, listener)


def _joined(wants: list[Want], want: Want) -> list[Want]:
    return wants if want in wants else [*wants, want]  # it may have been compiled with them


def attach(prepared: Prepared) -> weakref.ref[FunctionType]:
    """Put taps into the function that they were made for; returns a reference to it. Raises NoSource: they cannot be had together with
    those of others."""
    patch = prepared.patch
    function = patch.keep or patch.function()
    assert function is not None  # kept since it was tried
    patch = _patches.setdefault(id(function), patch)
    patch.wants = _joined(patch.wants, (prepared.path, prepared.listener))
    _live.add(id(prepared.listener))
    patch.install()
    patch.keep = None
    if "torch" in sys.modules:
        compatibility.report_compiled_before(function)
    return patch.function


def adopt(function: FunctionType, listener: Listener) -> bool:
    """Take over a function that was compiled with taps; whether it was."""
    with lock:
        if not has_taps(function, listener):
            return False
        _live.add(id(listener))
        _patches.setdefault(id(function), Patch(function))
        return True


def has_taps(function: FunctionType, listener: Listener) -> bool:
    """Whether a function has a listener's taps, or will have when somebody listens."""
    known = _patches.get(id(function)) or origin_of(code_of(function))
    return known is not None and any(other is listener for path, other in known.wants if not path)


def original(function: FunctionType) -> CodeType:
    """A function's own code."""
    patch, origin = _patches.get(id(function)), origin_of(code_of(function))
    return patch.original if patch is not None else origin.old if origin is not None else code_of(function)


def is_probed(function: FunctionType) -> bool:
    """Whether a function has taps of anybody."""
    return id(function) in _patches or origin_of(code_of(function)) is not None


def expect(listener: Listener) -> None:
    """A listener's taps will be compiled into functions: they are to stay."""
    _live.add(id(listener))


def detach(function: FunctionType | None, listener: Listener) -> None:
    """Take a listener's taps out of a function, if that is still there."""
    with lock:
        _live.discard(id(listener))
        patch = _patches.get(id(function))
        if patch is not None:
            patch.wants = [want for want in patch.wants if want[1] is not listener]
            patch.apply()


def refresh(functions: Iterable[FunctionType | None]) -> None:
    """Look again at who listens."""
    with lock:
        for function in functions:
            patch = _patches.get(id(function))
            if patch is not None:
                patch.apply()


def functions_made_at(prepared: Prepared) -> Iterator[FunctionType]:
    """The live functions that a function has made where taps are wanted inside it, and that have none yet. Looks through all objects."""
    patch = prepared.patch
    host = patch.function()
    if host is None:
        return
    _, node = tree_of(patch.original, host.__qualname__, host.__globals__)
    nodes = definitions(node, prepared.path)
    own = [code for code in all_codes(patch.original) if any(is_code_of(code, n) for n in nodes)]
    runs = [*own, *(origin.code() for origin in origins() if any(origin.old is code for code in own))]
    for function in functions_running([code for code in runs if code is not None]):
        if not has_taps(function, prepared.listener):
            yield function


def restore_functions(listeners: Iterable[Listener]) -> None:
    """Give their own code to functions made with the taps of listeners that are gone. Looks through all objects."""
    gone = set(map(id, listeners))
    with lock:
        _live.difference_update(gone)
        for patch in list(_patches.values()):
            if any(id(listener) in gone for _, listener in patch.wants):
                patch.wants = [want for want in patch.wants if id(want[1]) not in gone]
                patch.apply()
        codes = (origin.code() for origin in origins() if not origin.everyone & _live)
        for function in functions_running([code for code in codes if code is not None]):
            if id(function) not in _patches:
                set_code(function, own_code(code_of(function)))


def is_frozen() -> bool:
    """Whether ``gc.freeze()`` has been called: looking through all objects then finds none that was there before."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def register_around(who: object) -> None:
    """Code that was made for somebody without a selector (``register_code``) comes back when the last probe on its function goes."""
    _live.add(id(who))
    _around.add(id(who))


def unregister_around(who: object) -> None:
    _live.discard(id(who))
    _around.discard(id(who))


def _stays(code: CodeType) -> bool:
    origin = origin_of(code)
    return origin is not None and bool(origin.everyone & _around & _live)


def functions_running(codes: Sequence[CodeType]) -> list[FunctionType]:
    """The live functions that run some codes: looks through all objects once, in 25 ms beside torch, 80 ms for many codes."""
    wanted = set(map(id, codes))
    among = gc.get_referrers(*codes) if len(codes) < FEW_CODES else gc.get_objects()
    # their type itself is asked for: an object of the program may run code when it is asked for its class
    return [found for found in among if type(found) is FunctionType and id(found.__code__) in wanted]


# whether two pieces of code are the same in all that the program could see: what they do, their constants, their places in the source


def is_same_code(one: CodeType, other: CodeType, same_start: bool = True) -> bool:
    """Whether they are; with ``same_start=False`` the line in which they begin may differ."""
    if same_start and one.co_firstlineno != other.co_firstlineno:
        return False
    if one.co_flags | AWAITABLE != other.co_flags | AWAITABLE:
        return False
    if any(getattr(one, part, None) != getattr(other, part, None) for part in _PARTS):
        return False
    if len(one.co_consts) != len(other.co_consts) or not all(map(_is_same_constant, one.co_consts, other.co_consts)):
        return False
    if same_start and one.co_linetable == other.co_linetable:
        return True
    return all(map(_is_same_place, *zip(*zip_longest(_places(one), _places(other), fillvalue=()), strict=True)))


def _places(code: CodeType) -> list[tuple[Any, ...]]:
    if hasattr(code, "co_positions"):
        return list(code.co_positions())
    return list(code.co_lines())


def _is_same_place(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """With python -X no_debug_ranges there are only lines."""
    if len(one) == len(other) == 4 and (one[1:] == (None,) * 3 or other[1:] == (None,) * 3):
        return bool(one[0] == other[0])
    return one == other


def _is_same_constant(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is CodeType:
        return is_same_code(one, other)
    if kind is tuple:
        return len(one) == len(other) and all(map(_is_same_constant, one, other))
    if kind is frozenset:
        return {(type(c), c) for c in one} == {(type(c), c) for c in other}
    if kind is slice:  # a constant since 3.14
        return all(map(_is_same_constant, (one.start, one.stop, one.step), (other.start, other.stop, other.step)))
    if kind in (float, complex):
        return repr(one) == repr(other)  # 0.0 and -0.0, nan
    if kind in (int, str, bytes):
        return bool(one == other)
    return one is other  # None, True, ...; or an object that a tool has put there
