"""Gives live functions code with taps, and their own back: the tree gets the taps, is compiled, and
each marker becomes its tap.

Remembers of all such code the program's own code, and whose taps it has. When the last tap goes a
function gets its own code back, the very object.
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
FAR = 10**6  # a line that no file has
Path = tuple[str, ...]
Want = tuple[Path, Listener]  # where in the function (itself: an empty path), and who
Placed = tuple[FunctionNode, Path, Listener]  # a function, where in it, and who
FROZEN_BY_PYTHON = 1000  # 3.12 begins with 375
FEW_CODES = 64  # up to which it is quicker to ask who refers to them than to look at all objects
MANY = 8  # probes on a function
lock = threading.RLock()  # held while functions get and lose taps
# by identity of the function: the layer over its code, whatever that is (python 3.11)
overlays: dict[int, Layer] = {}
_patches: dict[int, Patch] = {}
_live: set[int] = set()  # identities of the listeners that are on
_around: set[int] = set()  # identities of those who stand around whole functions (``around.py``)
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


# Set by ``types.coroutine`` on the code of a generator function that is there already; no source
# says so.
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

    def __init__(
        self, code: CodeType, old: CodeType, wants: list[Want], everyone: frozenset[int]
    ) -> None:
        self.code = weakref.ref(code, forgetter(_origins, id(code)))  # a reference to it
        self.old = old
        self.wants = wants
        self.everyone = everyone


_origins: dict[int, Origin] = {}  # by identity of the new code
# of generators, by the taps in them
_by_tap: weakref.WeakKeyDictionary[FunctionType, Origin] = weakref.WeakKeyDictionary()


def forgetter(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """A function that drops an entry when its object is gone; holds the table itself, since a
    module's names are gone when python ends."""
    return lambda _: table.pop(key, None)


def origin_of(code: CodeType) -> Origin | None:
    """The origin of some code, if it has taps."""
    origin = _origins.get(id(code))
    if origin is None and code.co_flags & AWAITABLE:  # types.coroutine has copied it
        copied = _origin_of_copied(code)
        if copied is not None:
            old = _as_awaitable(copied.old)
            origin = Origin(code, old, copied.wants, copied.everyone)
            _origins[id(code)] = origin
    return origin


def _origin_of_copied(code: CodeType) -> Origin | None:
    """The origin of the code that some code is a copy of, by a tap in it."""
    for const in code.co_consts:
        if isinstance(const, FunctionType) and const in _by_tap:
            return _by_tap[const]
    return None


def own_code(code: CodeType) -> CodeType:
    """The program's own code, if some code has taps; otherwise that code."""
    origin = origin_of(code)
    return origin.old if origin is not None else code


def register_code(code: CodeType, old: CodeType, listeners: frozenset[int]) -> None:
    """Remember that new code without taps stands for the program's own, as long as there is such
    code. ``old``: the code that it was made from; ``listeners``: identities of those for whom it
    was made."""
    _origins[id(code)] = Origin(code, own_code(old), [], listeners)


def register_overlay(code: CodeType, below: CodeType, listeners: frozenset[int]) -> None:
    """As ``register_code``, of code that may stand over code with taps; and it is pickled as the
    program's own."""
    origin = _origins.get(id(below))
    if origin is None:
        _origins[id(code)] = Origin(code, below, [], listeners)
    else:
        everyone = origin.everyone | listeners
        _origins[id(code)] = Origin(code, origin.old, origin.wants, everyone)
    compatibility.watch_picklers(own_code)


def origins() -> list[Origin]:
    """The origins of all code that there is."""
    return list(_origins.values())


def weave_code(
    code: CodeType, qualname: str, names: dict[str, Any], wants: Sequence[Want]
) -> CodeType:
    """New code for a function. Raises NoSource: it cannot be made."""
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
    # Of lambdas in a line the innermost that all the marks are in.
    new = max(codes, key=lambda candidate: (_count_marks(candidate), codes.index(candidate)))
    return replace_markers(new, code, table, where)


def compile_with_taps(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree that has taps under the name and ``__future__`` imports of some code. Raises
    NoSource: it cannot be compiled."""
    try:
        return compile_like(tree, code)
    except SyntaxError as exc:  # such as too many blocks in blocks
        raise NoSource(
            f"cannot be probed: with its taps it does not compile ({exc.msg})."
        ) from None
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None


def tree_of(
    code: CodeType, qualname: str, names: dict[str, Any]
) -> tuple[ast.Module, FunctionNode]:
    """A module to compile, and in it the function that some code was compiled from. Raises
    NoSource: there is none that compiles to the same."""
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
    # In python 3.10 nothing distinguishes the code of two lambdas in a line; so this one gets a
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
    """Put the taps of listeners into a tree.

    Args:
        node: A function in it.
        names: The module's names, if it has run.
        table: Gets each marker's function.
        old: Code that the function's own stands in, or is; None: unknown.

    Raises:
        Unobservable: They would not see all that they capture.
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
    """The functions at a path inside a function, class or module; the thing itself for an empty
    path."""
    if not path:
        return [node] if isinstance(node, FunctionNode) else []
    functions: list[FunctionNode] = []
    body = getattr(node, "body", None)
    stack: list[ast.AST] = list(body)[::-1] if isinstance(body, list) else []
    while stack:
        inner = stack.pop()
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if inner.name == path[0] and not _is_setter(inner):  # of a property the getter is meant
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
    """The lambda that an assignment gives the name of that path; none if it does not."""
    if not isinstance(node.value, ast.Lambda):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return [node.value] if len(path) == 1 and path[0] in names else []


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    attributes = [part.attr for part in node.decorator_list if isinstance(part, ast.Attribute)]
    return "setter" in attributes or "deleter" in attributes


def placed(root: ast.AST, wants: Sequence[Want]) -> list[Placed]:
    """The functions at the paths, and those around them, with the taps that come into each."""
    places: list[Placed] = []
    for path, listener in wants:
        for length in range(len(path) + 1):
            for node in definitions(root, path[:length]):
                places.append((node, path[length:], listener))
    return places


def _codes_in(module: CodeType, code: CodeType) -> list[CodeType]:
    """The code in a module's that stands where some code stood; several for lambdas in a line."""
    start = (code.co_name, code.co_firstlineno)
    return [inner for inner in all_codes(module) if (inner.co_name, inner.co_firstlineno) == start]


def _count_marks(code: CodeType) -> int:
    """The number of marks in some code."""
    consts = [const for inner in all_codes(code) for const in inner.co_consts]
    return sum(isinstance(const, str) and const.startswith(MARK) for const in consts)


def matches(plain: CodeType, old: CodeType) -> list[CodeType]:
    """The codes, in a module's, of the functions and classes of a few statements of it. Raises
    NoSource: the module's code does not come from these statements."""
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
    """A module's old code, in which the functions and classes that also stand in the new code have
    its taps.

    Args:
        new: Code of some of the module's statements, with taps.
        places: The codes that they have in it.
        table: Each marker's function.
        where: The functions that taps come into.
    """
    codes = inner_codes(new)
    if len(codes) != len(places):  # python 3.10 makes one of two equal lambdas of a line
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
    """Code with the markers replaced; any code in it without one is the old code, the very
    object."""
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
    """The old code of each code directly in the new, by its identity; none if there are more or
    fewer of them."""
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
    if code.co_flags & CO_GENERATOR:  # of which types.coroutine may make a copy
        for const in code.co_consts:
            if isinstance(const, FunctionType):
                _by_tap[const] = origin


# live functions that have such code


def code_of(function: FunctionType) -> CodeType:
    """The code of a function, without any layer over it."""
    layer = overlays.get(id(function))
    return function.__code__ if layer is None else layer.under(function)


def set_code(function: FunctionType, code: CodeType) -> None:
    """Give a function other code, under any layer over it."""
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
        # it may be compiled, or made by a function, with taps
        origin = origin_of(code_of(function))
        self.original = origin.old if origin is not None else code_of(function)
        self.before = code_of(function)
        self.wants: list[Want] = []
        if origin is not None:
            self.wants = [want for want in origin.wants if id(want[1]) in _live]
        # the code with taps that was made last, and whose taps it has
        self._woven: tuple[list[Want], CodeType] = ([], self.original)

    def code_with(self, wants: list[Want]) -> CodeType:
        """The function's code with taps."""
        if wants != self._woven[0]:
            function = self.function()
            assert function is not None  # the caller holds it
            code = weave_code(self.original, function.__qualname__, function.__globals__, wants)
            self._woven = (list(wants), code)
        return self._woven[1]

    def apply(self) -> None:
        """Make the function run with the taps of all who listen now. This may stand in the middle
        of the program: errors are reported, and the function keeps the taps that it has."""
        try:
            self.install()
        except Exception as exc:  # in the middle of the program, which must not see it
            if is_from_handler(exc):
                raise
            if not self._lacks_taps():
                return
            function = self.function()
            assert function is not None  # it lacks taps
            code = self.original
            place = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
            why: object = exc
            if not isinstance(exc, NoSource | Unobservable):
                why = f"cannot be changed: {streams.describe(exc)}."
            streams.report(f"{place} {why}\n  Not all its probes are on.")

    def _lacks_taps(self) -> bool:
        """True if the code in place has not all the taps of those who listen."""
        function = self.function()
        if function is None:
            return False
        wants, code = self._woven
        if code_of(function) is not code:
            wants = []
        return any(want[1].is_awake and want not in wants for want in self.wants)

    def install(self) -> None:
        """As ``apply``. Raises NoSource, Unobservable: the taps cannot be had."""
        function = self.function()
        if function is None:
            return
        # types.coroutine has been called on it since
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
        """True if the code in place will do: of many taps a few are without use, which are not
        worth making all the others again."""
        wants, code = self._woven
        surplus = len(wants) - len(awake)
        if len(awake) < MANY or not 0 < surplus * MANY < len(awake) * 2:
            return False
        return code_of(function) is code and set(wants) >= set(awake)


def _as_awaitable(code: CodeType) -> CodeType:
    return code.replace(co_flags=code.co_flags | AWAITABLE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Taps that a function is to get: whose, and where in it (in itself: an empty path)."""

    patch: Patch
    path: Path
    listener: Any


def prepare(function: FunctionType, path: Path, listener: Listener) -> Prepared:
    """Make a function's code with the taps of one more listener, without putting it in place.
    Raises NoSource, Unobservable: it cannot be made."""
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
    """Put taps into the function that they were made for; returns a reference to it. Raises
    NoSource: they cannot be had together with those of others."""
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
    """Take over a function that was compiled with taps; False if it was not."""
    with lock:
        if not has_taps(function, listener):
            return False
        _live.add(id(listener))
        _patches.setdefault(id(function), Patch(function))
        return True


def has_taps(function: FunctionType, listener: Listener) -> bool:
    """True if a function has a listener's taps, or will have when somebody listens."""
    tapped = _patches.get(id(function)) or origin_of(code_of(function))
    if tapped is None:
        return False
    return any(other is listener for path, other in tapped.wants if not path)


def original(function: FunctionType) -> CodeType:
    """A function's own code."""
    patch = _patches.get(id(function))
    return own_code(code_of(function)) if patch is None else patch.original


def is_probed(function: FunctionType) -> bool:
    """True if a function has taps of anybody."""
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
    """Put in and take out taps, when listeners have come or gone."""
    with lock:
        for function in functions:
            patch = _patches.get(id(function))
            if patch is not None:
                patch.apply()


def functions_made_at(prepared: Prepared) -> Iterator[FunctionType]:
    """The live functions that a function has made where taps are wanted inside it, and that have
    none yet. Looks through all objects."""
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
    """Give their own code to functions made with the taps of listeners that are gone. Looks through
    all objects."""
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
    """True if ``gc.freeze()`` has been called: looking through all objects then finds none that was
    there before."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def register_around(around: object) -> None:
    """Code that was made for somebody without a selector (``register_code``) comes back when the
    last probe on its function goes."""
    _live.add(id(around))
    _around.add(id(around))


def unregister_around(around: object) -> None:
    _live.discard(id(around))
    _around.discard(id(around))


def _stays(code: CodeType) -> bool:
    origin = origin_of(code)
    return origin is not None and bool(origin.everyone & _around & _live)


def functions_running(codes: Sequence[CodeType]) -> list[FunctionType]:
    """The live functions that run some codes: looks through all objects once, in 25 ms beside
    torch, 80 ms for many codes."""
    identities = set(map(id, codes))
    objects = gc.get_referrers(*codes) if len(codes) < FEW_CODES else gc.get_objects()
    # their type itself is asked for: an object of the program may run code when it is asked for its
    # class
    return [
        item for item in objects if type(item) is FunctionType and id(item.__code__) in identities
    ]


# comparing two pieces of code in all that the program could see: what they do, their constants,
# their places in the source


def is_same_code(first: CodeType, second: CodeType, same_start: bool = True) -> bool:
    """True if they are the same; with ``same_start=False`` the line in which they begin may
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
    """With python -X no_debug_ranges there are only lines."""
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
    if kind is slice:  # a constant since 3.14
        first_parts = (first.start, first.stop, first.step)
        second_parts = (second.start, second.stop, second.step)
        return all(map(_is_same_constant, first_parts, second_parts))
    if kind in (float, complex):
        return repr(first) == repr(second)  # 0.0 and -0.0, nan
    if kind in (int, str, bytes):
        return bool(first == second)
    return first is second  # None, True, ...; or an object that a tool has put there


def _with_types(constants: frozenset[Any]) -> set[tuple[type, Any]]:
    return {(type(constant), constant) for constant in constants}
