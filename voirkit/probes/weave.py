"""Gives live functions code with taps, and later their own code back.

The taps are put into the function's syntax tree, the tree is compiled, and each marker in the code
is replaced by its tap. For all such code this module remembers the program's own code and whose
taps it has. When its last tap is removed, a function gets back its original code object.
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
from voirkit.probes.source import (
    FunctionNode,
    NoSource,
    all_codes,
    compile_like,
    inner_codes,
    is_code_of,
)
from voirkit.probes.tap_emitter import MARK, Listener, Unobservable
from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from voirkit.probes.call_hooks import Layer

CO_GENERATOR = 0x20
FAR = 10**6  # a line number that no file reaches
Path = tuple[str, ...]
# Taps that a function is to have: the path of the inner function that gets them (empty for the
# function itself), and their listener.
Want = tuple[Path, Listener]
Placed = tuple[FunctionNode, Path, Listener]  # a function, and a ``Want`` relative to it
# More frozen objects than this were frozen by the program: Python 3.12 itself freezes 375.
FROZEN_BY_PYTHON = 1000
FEW_CODES = 64  # for fewer codes, gc.get_referrers is faster than a search of all objects
MANY = 8  # a function with this many probes keeps a few unused taps, instead of being recompiled
lock = threading.RLock()  # held while taps are put into functions or removed
# by id of the function: the layer over its code (``call_hooks``, on Python 3.11)
overlays: dict[int, Layer] = {}
_patches: dict[int, Patch] = {}
_live: set[int] = set()  # ids of the listeners that are switched on
_around: set[int] = set()  # ids of objects that wrap whole functions (``around.py``)
_PARTS = (
    "co_name",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_freevars",
    "co_cellvars",
    "co_names",
    "co_varnames",
    "co_code",
    "co_exceptiontable",
)


# A flag that ``types.coroutine`` sets on the code of an existing generator function. Code compiled
# from source never has it.
AWAITABLE = 0x100  # inspect.CO_ITERABLE_COROUTINE


# Making and recognizing code with taps


class Origin:
    """The origin of code with taps: the program's own code, and the taps that were put into it.

    Attributes:
        code: A weak reference to the code with taps.
        old: The program's own code.
        wants: The taps in the code: their paths and listeners.
        everyone: The ids of all listeners whose taps were compiled together with these.
    """

    __slots__ = ("code", "everyone", "old", "wants")

    def __init__(
        self, code: CodeType, old: CodeType, wants: list[Want], everyone: frozenset[int]
    ) -> None:
        self.code = weakref.ref(code, forgetter(_origins, id(code)))
        self.old = old
        self.wants = wants
        self.everyone = everyone


_origins: dict[int, Origin] = {}  # by id of the code with taps
# origins of the code of generators, by the functions of the taps in that code
_by_tap: weakref.WeakKeyDictionary[FunctionType, Origin] = weakref.WeakKeyDictionary()


def forgetter(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Return a weak reference callback that removes an entry of a table. It holds the table itself,
    since module globals are gone when Python exits."""
    return lambda _: table.pop(key, None)


def origin_of(code: CodeType) -> Origin | None:
    """Return the origin of a code object; None if it has no taps."""
    origin = _origins.get(id(code))
    if origin is None and code.co_flags & AWAITABLE:  # a copy made by types.coroutine
        copied = _origin_of_copied(code)
        if copied is not None:
            old = _as_awaitable(copied.old)
            origin = Origin(code, old, copied.wants, copied.everyone)
            _origins[id(code)] = origin
    return origin


def _origin_of_copied(code: CodeType) -> Origin | None:
    """Return the origin of the code that this code is a copy of, found by a tap among its
    constants."""
    for const in code.co_consts:
        if isinstance(const, FunctionType) and const in _by_tap:
            return _by_tap[const]
    return None


def own_code(code: CodeType) -> CodeType:
    """Return the program's own code for code with taps, and any other code unchanged."""
    origin = origin_of(code)
    return origin.old if origin is not None else code


def register_code(code: CodeType, old: CodeType, listeners: frozenset[int]) -> None:
    """Remember, while ``code`` exists, that it replaces the program's own code without having taps.

    Args:
        code: The new code.
        old: The code from which it was made.
        listeners: The ids of the objects for which it was made.
    """
    _origins[id(code)] = Origin(code, own_code(old), [], listeners)


def register_overlay(code: CodeType, below: CodeType, listeners: frozenset[int]) -> None:
    """Remember, like ``register_code``, that ``code`` replaces the program's own code, where the
    code ``below`` it may have taps. The new code is pickled as the program's own."""
    origin = _origins.get(id(below))
    if origin is None:
        _origins[id(code)] = Origin(code, below, [], listeners)
    else:
        everyone = origin.everyone | listeners
        _origins[id(code)] = Origin(code, origin.old, origin.wants, everyone)
    compatibility.watch_picklers(own_code)


def origins() -> list[Origin]:
    """Return the origins of all existing code that replaces the program's own."""
    return list(_origins.values())


def weave_code(
    code: CodeType, qualname: str, names: dict[str, Any], wants: Sequence[Want]
) -> CodeType:
    """Compile a function's code with taps.

    Args:
        code: The function's own code.
        names: The function's globals.
        wants: The taps that it gets.

    Raises:
        NoSource: The source is unknown, or does not compile with the taps.
        Unobservable: A listener would miss something that it captures.
    """
    tree, function = tree_of(code, qualname, names)
    table: dict[str, Any] = {}
    where = placed(function, wants)
    listeners_by_path: dict[Path, list[Listener]] = {}
    for path, listener in wants:
        listeners_by_path.setdefault(path, []).append(listener)
    for path, listeners in listeners_by_path.items():
        for inner in definitions(function, path):
            instrument_tree(inner, listeners, names, table, code)
    codes = _codes_in(compile_with_taps(tree, code), code)
    # Of several lambdas in one line, choose the innermost that contains all markers.
    new = max(codes, key=lambda candidate: (_count_marks(candidate), codes.index(candidate)))
    return replace_markers(new, code, table, where)


def compile_with_taps(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree with taps, with the file name and ``__future__`` imports of ``code``. Raises
    NoSource if that fails."""
    try:
        return compile_like(tree, code)
    except SyntaxError as exc:  # for example too many nested blocks
        raise NoSource(
            f"cannot be probed: with its taps it does not compile ({exc.msg})."
        ) from None
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None


def tree_of(
    code: CodeType, qualname: str, names: dict[str, Any]
) -> tuple[ast.Module, FunctionNode]:
    """Return the syntax tree of a module, and the function in it from which ``code`` was compiled.
    Raises NoSource if no known source compiles to the same code."""
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
        codes = _codes_in(compile_like(tree, code), code)
        return any(is_same_code(candidate, code) for candidate in codes)
    # In Python 3.10 the codes of two lambdas in one line look alike; so this lambda is moved to a
    # line of its own.
    line = function.lineno
    function.lineno = FAR
    try:
        codes = [
            candidate
            for candidate in all_codes(compile_like(tree, code))
            if candidate.co_firstlineno == FAR
        ]
        return any(is_same_code(candidate, code, same_start=False) for candidate in codes)
    finally:
        function.lineno = line


def instrument_tree(
    node: FunctionNode,
    listeners: Sequence[Listener],
    names: dict[str, Any] | None,
    table: dict[str, Any],
    old: CodeType | None,
) -> None:
    """Put the taps of listeners into the syntax tree of a function.

    Args:
        node: The function; it is changed in place.
        names: The module's globals; None if the module has not run.
        table: Filled with the object of each marker.
        old: The function's code, or code that contains it; None if unknown.

    Raises:
        Unobservable: A listener would miss something that it captures.
    """
    names_captured = dict.fromkeys(name for listener in listeners for name in listener.names)
    outside: list[str] = []
    if names_captured:
        outer_names = instrumenter.outer_names(node)
        outside = [name for name in names_captured if name in outer_names]
    code = None if old is None else _code_of_definition(old, node)
    tree_instrumenter = instrumenter_of(node, listeners, outside, names, table, code)
    tree_instrumenter.instrument()
    tree_instrumenter.check()


def _code_of_definition(old: CodeType, node: FunctionNode) -> CodeType | None:
    for code in all_codes(old):
        if is_code_of(code, node):
            return code
    return None


def definitions(node: ast.AST, path: Path) -> list[FunctionNode]:
    """Return the functions at a path inside a function, class or module. For an empty path that is
    ``node`` itself, if it is a function."""
    if not path:
        return [node] if isinstance(node, FunctionNode) else []
    functions: list[FunctionNode] = []
    body = getattr(node, "body", None)
    stack: list[ast.AST] = list(body)[::-1] if isinstance(body, list) else []
    while stack:
        inner = stack.pop()
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if inner.name == path[0] and not _is_setter(inner):  # for a property, the getter only
                functions += definitions(inner, path[1:])
        elif isinstance(inner, ast.Assign | ast.AnnAssign):
            functions += _lambdas_at(inner, path)
        elif isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            children = [
                child for child in ast.iter_child_nodes(inner) if not isinstance(child, ast.expr)
            ]
            stack += children[::-1]
    return functions


def _lambdas_at(node: ast.Assign | ast.AnnAssign, path: Path) -> list[ast.Lambda]:
    """Return the lambda that an assignment binds to the name ``path``; otherwise an empty list."""
    if not isinstance(node.value, ast.Lambda):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return [node.value] if len(path) == 1 and path[0] in names else []


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    attributes = [part.attr for part in node.decorator_list if isinstance(part, ast.Attribute)]
    return "setter" in attributes or "deleter" in attributes


def placed(root: ast.AST, wants: Sequence[Want]) -> list[Placed]:
    """Return the functions at each wanted path and those around them, from ``root`` on, each with
    the rest of the path and the listener."""
    places: list[Placed] = []
    for path, listener in wants:
        for length in range(len(path) + 1):
            for node in definitions(root, path[:length]):
                places.append((node, path[length:], listener))
    return places


def _codes_in(module: CodeType, code: CodeType) -> list[CodeType]:
    """Return the codes in a module that have the name and first line of ``code``; several for
    lambdas in one line."""
    start = (code.co_name, code.co_firstlineno)
    return [inner for inner in all_codes(module) if (inner.co_name, inner.co_firstlineno) == start]


def _count_marks(code: CodeType) -> int:
    """Return the number of markers in a code object, inner code included."""
    consts = [const for inner in all_codes(code) for const in inner.co_consts]
    return sum(isinstance(const, str) and const.startswith(MARK) for const in consts)


def matches(plain: CodeType, old: CodeType) -> list[CodeType]:
    """Return the codes, in a module's code, of the functions and classes that some of its
    statements define.

    Args:
        plain: The statements, compiled by themselves without taps.
        old: The module's code.

    Raises:
        NoSource: The module's code was not compiled from these statements.
    """
    by_start: dict[tuple[str, int], list[CodeType]] = {}
    for code in inner_codes(old):
        by_start.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    codes = []
    for code in inner_codes(plain):
        candidates = by_start.get((code.co_name, code.co_firstlineno))
        if not candidates or not is_same_code(candidates[0], code):
            raise NoSource(source.CHANGED)
        codes.append(candidates.pop(0))
    return codes


def graft_functions(
    new: CodeType,
    old: CodeType,
    places: Sequence[CodeType],
    table: dict[str, Any],
    where: Sequence[Placed],
) -> CodeType:
    """Return a module's code in which some functions and classes are replaced by those with taps.

    Args:
        new: Code of some of the module's statements, with taps.
        old: The module's code.
        places: The codes in ``old`` of the functions and classes in ``new``, in the same order.
        table: The object of each marker.
        where: The functions that get taps.

    Raises:
        NoSource: ``new`` and ``places`` do not match.
    """
    codes = inner_codes(new)
    if len(codes) != len(places):  # Python 3.10 merges equal lambdas of one line
        raise NoSource(source.CHANGED)
    replacements = {
        id(place): replace_markers(code, place, table, where)
        for code, place in zip(codes, places, strict=True)
    }
    consts = tuple(replacements.get(id(const), const) for const in old.co_consts)
    if all(map(operator.is_, consts, old.co_consts)):
        return old
    return old.replace(co_consts=consts)


def replace_markers(
    new: CodeType, old: CodeType | None, table: dict[str, Any], where: Sequence[Placed]
) -> CodeType:
    """Return code with the markers replaced by their objects. Inner code without a marker is
    replaced by the old code object."""
    old_by_new = _pair_inner_codes(new, old)
    consts: list[Any] = []
    is_changed = False
    for const in new.co_consts:
        replacement = const
        if isinstance(const, str) and const.startswith(MARK):
            replacement = table[const]
            is_changed = True
        elif isinstance(const, CodeType):
            before = old_by_new.get(id(const))
            replacement = replace_markers(const, before, table, where)
            is_changed = is_changed or replacement is not before
        consts.append(replacement)
    if not is_changed and old is not None:
        return old
    flags = new.co_flags
    if old is not None:
        flags |= old.co_flags & AWAITABLE
    code = new.replace(co_consts=tuple(consts), co_flags=flags)
    compatibility.watch_all(own_code, is_probed)
    if old is not None:
        _remember_origin(code, old, where)
    return code


def _pair_inner_codes(new: CodeType, old: CodeType | None) -> dict[int, CodeType]:
    """Return a dict from the id of each code object directly inside the new one to the
    corresponding old code object; empty if their numbers differ."""
    if old is None:
        return {}
    new_codes = inner_codes(new)
    old_codes = inner_codes(old)
    if len(new_codes) != len(old_codes):
        return {}
    return dict(zip(map(id, new_codes), old_codes, strict=True))


def _remember_origin(code: CodeType, old: CodeType, where: Sequence[Placed]) -> None:
    wants = [(path, listener) for node, path, listener in where if is_code_of(old, node)]
    everyone = frozenset(id(listener) for _, _, listener in where)
    origin = Origin(code, old, wants, everyone)
    _origins[id(code)] = origin
    if code.co_flags & CO_GENERATOR:  # types.coroutine may copy the code
        for const in code.co_consts:
            if isinstance(const, FunctionType):
                _by_tap[const] = origin


# Live functions that have code with taps


def code_of(function: FunctionType) -> CodeType:
    """Return the code of a function below any layer of ``overlays``."""
    layer = overlays.get(id(function))
    return function.__code__ if layer is None else layer.under(function)


def set_code(function: FunctionType, code: CodeType) -> None:
    """Replace the code of a function, below any layer of ``overlays``."""
    layer = overlays.get(id(function))
    if layer is None:
        function.__code__ = code
    else:
        layer.put_under(function, code)


class Patch:
    """A function that has taps, or gets them as soon as their probe has a subscriber."""

    def __init__(self, function: FunctionType) -> None:
        key = id(function)
        self.function = weakref.ref(function, forgetter(_patches, key))
        self.keep: FunctionType | None = None
        # the function may have been compiled with taps, or be created by a function that was
        origin = origin_of(code_of(function))
        self.original = origin.old if origin is not None else code_of(function)
        self.before = code_of(function)
        self.wants: list[Want] = []
        if origin is not None:
            self.wants = [want for want in origin.wants if id(want[1]) in _live]
        # the code with taps that was compiled last, and the taps in it
        self._woven: tuple[list[Want], CodeType] = ([], self.original)

    def code_with(self, wants: list[Want]) -> CodeType:
        """Return the function's code with these taps, compiled anew unless it is the last one."""
        if wants != self._woven[0]:
            function = self.function()
            assert function is not None  # the caller keeps the function alive
            code = weave_code(self.original, function.__qualname__, function.__globals__, wants)
            self._woven = (list(wants), code)
        return self._woven[1]

    def apply(self) -> None:
        """Make the function run with the taps of all listeners that are awake now: their probe has
        a subscriber.

        This may be called in the middle of the program. So errors are reported instead of raised,
        and the function then keeps the taps that it has.
        """
        try:
            self.install()
        except Exception as exc:  # the running program must not see an error of voirkit
            if is_from_handler(exc):
                raise
            if not self._lacks_taps():
                return
            function = self.function()
            assert function is not None  # ``_lacks_taps`` is False for a function that is gone
            code = self.original
            place = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
            why: object = exc
            if not isinstance(exc, NoSource | Unobservable):
                why = f"cannot be changed: {streams.describe(exc)}."
            streams.report(f"{place} {why}\n  Not all its probes are on.")

    def _lacks_taps(self) -> bool:
        """True if the function's present code lacks a tap of a listener that is awake."""
        function = self.function()
        if function is None:
            return False
        wants, code = self._woven
        if code_of(function) is not code:
            wants = []
        return any(want[1].is_awake and want not in wants for want in self.wants)

    def install(self) -> None:
        """Make the function run with the taps of all listeners that are awake now, like ``apply``.

        Raises:
            NoSource: The function cannot be compiled with the taps.
            Unobservable: A listener would miss something that it captures.
        """
        function = self.function()
        if function is None:
            return
        # the program has applied types.coroutine to the function since this object was created
        if code_of(function).co_flags & AWAITABLE & ~self.original.co_flags:
            self.original = _as_awaitable(self.original)
            self.before = _as_awaitable(self.before)
            self._woven = ([], self.original)
        if not self.wants:
            set_code(function, self.before if _stays(self.before) else self.original)
            _patches.pop(id(function), None)
            return
        awake = [want for want in self.wants if want[1].is_awake]
        if self._has_few_more(awake, function):
            return
        set_code(function, self.code_with(awake) if awake else self.original.replace())

    def _has_few_more(self, awake: list[Want], function: FunctionType) -> bool:
        """True if the present code has all taps that are needed, and so few others that a new
        compilation is not worth it."""
        wants, code = self._woven
        surplus = len(wants) - len(awake)
        if len(awake) < MANY or not 0 < surplus * MANY < len(awake) * 2:
            return False
        return code_of(function) is code and set(wants) >= set(awake)


def _as_awaitable(code: CodeType) -> CodeType:
    return code.replace(co_flags=code.co_flags | AWAITABLE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Taps that a function is about to get: the function, the path of the inner function (empty for
    the function itself), and their listener."""

    patch: Patch
    path: Path
    listener: Any


def prepare(function: FunctionType, path: Path, listener: Listener) -> Prepared:
    """Compile a function with the taps of one more listener, without changing the function yet.

    Raises:
        NoSource: The function cannot be compiled with the taps.
        Unobservable: The listener would miss something that it captures.
    """
    patch = _patches.get(id(function)) or Patch(function)
    patch.keep = function  # keeps the function alive until ``attach``
    wants = [(path, listener)]
    if _joined(patch.wants, wants[0]) == wants:
        patch.code_with(wants)
    else:  # compiled only to check that it can be: ``attach`` compiles all taps together
        weave_code(patch.original, function.__qualname__, function.__globals__, wants)
    return Prepared(patch, path, listener)


def _joined(wants: list[Want], want: Want) -> list[Want]:
    # a function that was compiled with the wanted taps has them already
    return wants if want in wants else [*wants, want]


def attach(prepared: Prepared) -> weakref.ref[FunctionType]:
    """Put prepared taps into their function, and return a weak reference to the function. Raises
    NoSource if they cannot be combined with the taps of other listeners."""
    patch = prepared.patch
    function = patch.keep or patch.function()
    assert function is not None  # ``prepare`` keeps the function alive
    patch = _patches.setdefault(id(function), patch)
    patch.wants = _joined(patch.wants, (prepared.path, prepared.listener))
    _live.add(id(prepared.listener))
    patch.install()
    patch.keep = None
    if "torch" in sys.modules:
        compatibility.report_compiled_before(function)
    return patch.function


def adopt(function: FunctionType, listener: Listener) -> bool:
    """Take over a function that was compiled with a listener's taps; False if it was not."""
    with lock:
        if not has_taps(function, listener):
            return False
        _live.add(id(listener))
        _patches.setdefault(id(function), Patch(function))
        return True


def has_taps(function: FunctionType, listener: Listener) -> bool:
    """True if a function has a listener's taps, or gets them as soon as the listener is awake."""
    tapped = _patches.get(id(function)) or origin_of(code_of(function))
    if tapped is None:
        return False
    return any(other is listener for path, other in tapped.wants if not path)


def original(function: FunctionType) -> CodeType:
    """Return a function's own code, without taps."""
    patch = _patches.get(id(function))
    return own_code(code_of(function)) if patch is None else patch.original


def is_probed(function: FunctionType) -> bool:
    """True if a function has taps of any listener, or is about to get some."""
    return id(function) in _patches or origin_of(code_of(function)) is not None


def expect(listener: Listener) -> None:
    """Note that a listener is on before its taps are compiled into functions, so that these keep
    the taps."""
    _live.add(id(listener))


def detach(function: FunctionType | None, listener: Listener) -> None:
    """Remove a listener's taps from a function, if the function still exists."""
    with lock:
        _live.discard(id(listener))
        patch = _patches.get(id(function))
        if patch is not None:
            patch.wants = [want for want in patch.wants if want[1] is not listener]
            patch.apply()


def refresh(functions: Iterable[FunctionType | None]) -> None:
    """Bring the taps of functions up to date after listeners have woken up or gone to sleep."""
    with lock:
        for function in functions:
            patch = _patches.get(id(function))
            if patch is not None:
                patch.apply()


def functions_made_at(prepared: Prepared) -> Iterator[FunctionType]:
    """Yield the live functions that were made inside a function, at the path where it wants taps,
    and do not have these taps. Searches all objects of the process."""
    patch = prepared.patch
    host = patch.function()
    if host is None:
        return
    _, node = tree_of(patch.original, host.__qualname__, host.__globals__)
    nodes = definitions(node, prepared.path)
    codes: list[CodeType | None] = [
        code
        for code in all_codes(patch.original)
        if any(is_code_of(code, inner) for inner in nodes)
    ]
    identities = set(map(id, codes))
    codes += [origin.code() for origin in origins() if id(origin.old) in identities]
    for function in functions_running([code for code in codes if code is not None]):
        if not has_taps(function, prepared.listener):
            yield function


def restore_functions(listeners: Iterable[Listener]) -> None:
    """Switch listeners off, and give functions that were made with their taps their own code back.
    Searches all objects of the process."""
    identities = set(map(id, listeners))
    with lock:
        _live.difference_update(identities)
        for patch in list(_patches.values()):
            wants = [want for want in patch.wants if id(want[1]) not in identities]
            if len(wants) < len(patch.wants):
                patch.wants = wants
                patch.apply()
        codes = (origin.code() for origin in origins() if not origin.everyone & _live)
        for function in functions_running([code for code in codes if code is not None]):
            if id(function) not in _patches:
                set_code(function, own_code(code_of(function)))


def is_frozen() -> bool:
    """True if the program has called ``gc.freeze()``. A search of all objects then does not find
    those made before the call."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def register_around(around: object) -> None:
    """Note an object that wraps whole functions, for which ``register_code`` was called. A function
    gets this code back when its last probe is removed."""
    _live.add(id(around))
    _around.add(id(around))


def unregister_around(around: object) -> None:
    _live.discard(id(around))
    _around.discard(id(around))


def _stays(code: CodeType) -> bool:
    origin = origin_of(code)
    return origin is not None and bool(origin.everyone & _around & _live)


def functions_running(codes: Sequence[CodeType]) -> list[FunctionType]:
    """Return the live functions that have one of these codes. Searches all objects once, which
    takes 25 ms in a process with torch, 80 ms for many codes."""
    identities = set(map(id, codes))
    objects = gc.get_referrers(*codes) if len(codes) < FEW_CODES else gc.get_objects()
    # ``type(item)`` rather than ``isinstance``: the latter reads ``__class__``, which may run the
    # program's code
    return [
        item for item in objects if type(item) is FunctionType and id(item.__code__) in identities
    ]


# Comparison of two code objects in all that the program could see: instructions, constants, and
# positions in the source


def is_same_code(first: CodeType, second: CodeType, same_start: bool = True) -> bool:
    """True if two code objects are equal; with ``same_start=False`` their first lines may
    differ."""
    if same_start and first.co_firstlineno != second.co_firstlineno:
        return False
    if first.co_flags | AWAITABLE != second.co_flags | AWAITABLE:
        return False
    if any(getattr(first, part, None) != getattr(second, part, None) for part in _PARTS):
        return False
    if len(first.co_consts) != len(second.co_consts):
        return False
    if not all(map(_is_same_constant, first.co_consts, second.co_consts)):
        return False
    if same_start and first.co_linetable == second.co_linetable:
        return True
    places = zip_longest(_places(first), _places(second), fillvalue=())
    return all(_is_same_place(*pair) for pair in places)


def _places(code: CodeType) -> list[tuple[Any, ...]]:
    if hasattr(code, "co_positions"):
        return list(code.co_positions())
    return list(code.co_lines())


def _is_same_place(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """True if two source positions are equal. If one has no columns (``python -X
    no_debug_ranges``), only the lines are compared."""
    unknown = (None, None, None)
    if len(first) == len(second) == 4 and unknown in (first[1:], second[1:]):
        return bool(first[0] == second[0])
    return first == second


def _is_same_constant(first: Any, second: Any) -> bool:
    kind = type(first)
    if kind is not type(second):
        return False
    if kind is CodeType:
        return is_same_code(first, second)
    if kind is tuple:
        return len(first) == len(second) and all(map(_is_same_constant, first, second))
    if kind is frozenset:
        return _with_types(first) == _with_types(second)
    if kind is slice:  # slices can be constants since Python 3.14
        first_parts = (first.start, first.stop, first.step)
        second_parts = (second.start, second.stop, second.step)
        return all(map(_is_same_constant, first_parts, second_parts))
    if kind in (float, complex):
        return repr(first) == repr(second)  # unlike ``==``: 0.0 differs from -0.0, nan equals nan
    if kind in (int, str, bytes):
        return bool(first == second)
    return first is second  # None, True, ...; or an object that another tool has inserted


def _with_types(constants: frozenset[Any]) -> set[tuple[type, Any]]:
    return {(type(constant), constant) for constant in constants}
