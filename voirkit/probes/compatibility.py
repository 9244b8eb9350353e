"""Patches of torch.compile, torch.jit.script and picklers, so that the taps of probes do no harm.

Taps are the calls that probes insert into a function: constants of its code object, which refer to
objects of this process. These libraries read code objects, and should get the program's own code.
Each library is patched after it has been imported, and never imported here. Checked with torch 2.1,
2.5 and 2.15, cloudpickle 3.1, joblib 1.4 and 1.6, dill 0.4.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakSet

from voirkit import streams
from voirkit.imports import PatchPoint, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


PATCH_POINTS = (
    PatchPoint(
        "torch._dynamo.variables.constant",
        "ConstantVariable.create",
        "torch 2.2 to 2.15",
        ("value",),
    ),
    PatchPoint(
        "torch._dynamo.symbolic_convert",
        "InstructionTranslatorBase.LOAD_CONST",
        "torch 2.1",
        ("self", "inst"),
    ),
    PatchPoint("torch._dynamo.exc", "SkipFrame", "torch 2.1 to 2.15"),
    PatchPoint("torch._dynamo.trace_rules", "add", "torch 2.2 to 2.15", ("import_name",)),
    PatchPoint("torch._dynamo.skipfiles", "add", "torch 2.1", ("import_name",)),
    PatchPoint(
        "torch._dynamo.bytecode_transformation",
        "_cached_cleaned_instructions|cleaned_instructions",
        "torch 2.1 to 2.15",
        ("code",),
    ),
    PatchPoint("torch.jit.frontend", "parse_def", "torch 2.1 to 2.15", ("fn",)),
    PatchPoint("cloudpickle.cloudpickle", "Pickler.dispatch_table", "cloudpickle 3.1"),
    PatchPoint("cloudpickle.cloudpickle", "_extract_code_globals", "cloudpickle 3.1", ("co",)),
    PatchPoint(
        "cloudpickle.cloudpickle",
        "_find_imported_submodules",
        "cloudpickle 3.1",
        ("code", "top_level_dependencies"),
    ),
    # joblib 1.6 imports the package cloudpickle instead of its own copy
    PatchPoint(
        "joblib.externals.cloudpickle.cloudpickle", "Pickler.dispatch_table", "joblib 1.4 to 1.5"
    ),
    PatchPoint("dill._dill", "Pickler.dispatch", "dill 0.4"),
)
FOLDER = os.path.dirname(__file__)
# With taps, ``self.x += y`` becomes a call of one of these functions. Compiled code may leave out
# the calls of taps, but not this call, which computes the program's own value.
AUGMENTED = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "MatMult": operator.imatmul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
    "BitAnd": operator.iand,
    "BitXor": operator.ixor,
    "BitOr": operator.ior,
}

# compared by id, since the program's constants may define their own ``==``
_AUGMENTED = frozenset(map(id, AUGMENTED.values()))

_reported: set[str] = set()


@functools.cache
def watch_all(
    own_code: Callable[[CodeType], CodeType], has_taps: Callable[[FunctionType], bool]
) -> None:
    """Patch torch.compile, torch.jit.script and picklers, each after it has been imported.

    Taps are the calls that probes insert into a function. Picklers then get the code that the
    function has without taps. torch.compile leaves functions with taps alone, or, if it must
    compile them (``fullgraph=True``), leaves out the taps. A function with taps that
    torch.jit.script compiles is reported.

    Args:
        own_code: Returns a code object without taps, for one with taps.
        has_taps: True if a function has taps.
    """
    watch_torch_compile()
    _watch_torch_jit(has_taps)
    watch_picklers(own_code)


@functools.cache
def watch_torch_compile() -> None:
    """Make dynamo, when it is imported, leave functions with taps alone."""
    exclude_from_torch_compile()
    when_imported("torch._dynamo.variables.constant", _patch_dynamo)
    when_imported("torch._dynamo.symbolic_convert", _patch_dynamo_before_2_2)


@functools.cache
def exclude_from_torch_compile() -> None:
    """Make dynamo, when it is imported, skip the functions that taps call."""
    when_imported("torch._dynamo.trace_rules", _add_rules)
    when_imported("torch._dynamo.skipfiles", _add_rules)  # name of trace_rules before torch 2.2


def report_compiled_before(function: FunctionType) -> None:
    """Report that code compiled before a function got taps continues without them."""
    functions = getattr(sys.modules.get("torch.jit._state"), "_jit_caching_layer", ())
    store = getattr(sys.modules.get("torch.jit._recursive"), "concrete_type_store", None)
    classes = list(getattr(store, "type_store", ()))
    methods = [value for kind in classes for value in vars(kind).values()]
    if function in functions or any(method is function for method in methods):
        _report_scripted(function)
    # Before torch 2.2, dynamo inlines a called function into the compiled code of its caller, and
    # does not look at the function again. So taps that the function gets now may have no effect
    # there, which is reported.
    builder = getattr(sys.modules.get("torch._dynamo.guards"), "GuardBuilder", None)
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    is_before_2_2 = builder is not None and not hasattr(builder, "CLOSURE_MATCH")
    if is_before_2_2 and counters and counters["frames"]["ok"]:
        _report_once(
            "something was compiled by torch.compile before a probe was on: if it calls the probed"
            " function, that is not seen there."
        )


def _report_once(text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        streams.report(text)


def _add_rules(rules: ModuleType) -> None:
    add = getattr(rules, "add", None)
    if add is not None:
        # packages of instruments too, whose names begin with "voirkit"
        packages = {name for name in sys.modules if "." not in name}
        names = {name for name in packages if name.startswith("voirkit")}
        for name in sorted(names | {"giving", "reactivex"}):
            add(name)


def _is_tap(value: Any) -> bool:
    """True if a constant of a code object belongs to a tap.

    Python's own compiler never makes a function a constant.
    """
    if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(FOLDER):
        return True
    return id(value) in _AUGMENTED


def _dynamo_value(value: Any, must_compile: bool) -> Any:
    """Return the value that dynamo uses in place of a tap. Raises SkipFrame if dynamo is to leave
    the function alone."""
    if not must_compile:
        raise sys.modules["torch._dynamo.exc"].SkipFrame("the function has taps of a probe")
    if id(value) in _AUGMENTED:
        return sys.modules["torch._dynamo.variables.builtin"].BuiltinVariable(value)
    _report_once(
        "a function with probes is compiled with fullgraph=True: its probes see nothing in the"
        " compiled code."
    )
    return sys.modules["torch._dynamo.variables.functions"].UserFunctionVariable(_nothing)


def _must_compile() -> bool:
    """True if the function has to be compiled as a whole (``fullgraph=True``).

    The taps are then left out of the compiled code.
    """
    translator = getattr(
        sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None
    )
    try:
        return bool(translator.current_tx().one_graph)  # type: ignore[union-attr]
    except AttributeError:
        return False


# ``_nothing`` is compiled without a file, since dynamo refuses to trace functions in voirkit's
# files.
_nothing_names: dict[str, Any] = {"__name__": "voirkit.nothing"}
exec(
    compile(
        "def nothing(*values):\n    return values[0] if values else None\n", "<nothing>", "exec"
    ),
    _nothing_names,
)
_nothing = _nothing_names["nothing"]


def _patch_dynamo(constant: ModuleType) -> None:
    create = getattr(getattr(constant, "ConstantVariable", None), "create", None)
    if create is None or not hasattr(sys.modules.get("torch._dynamo.exc"), "SkipFrame"):
        return  # a version of dynamo that was not checked

    def create_constant(value: Any, **kwargs: Any) -> Any:
        if _is_tap(value):
            return _dynamo_value(value, _must_compile())
        try:
            return create(value, **kwargs)
        except AssertionError:
            if not callable(value):
                raise
            return _dynamo_value(value, _must_compile())

    constant.ConstantVariable.create = staticmethod(create_constant)


def _patch_dynamo_before_2_2(convert: ModuleType) -> None:
    constant = getattr(
        sys.modules.get("torch._dynamo.variables.constant"), "ConstantVariable", None
    )
    base = getattr(convert, "InstructionTranslatorBase", None)
    if constant is None or hasattr(constant, "create") or base is None:
        return
    load = base.LOAD_CONST

    def load_constant(self: Any, instruction: Any) -> Any:
        value = instruction.argval
        if not callable(value):
            return load(self, instruction)
        return self.push(_dynamo_value(value, bool(self.output.root_tx.one_graph)))

    base.LOAD_CONST = load_constant


# possible names of dynamo's function that reads a code object's instructions; the first that
# exists is patched
_DYNAMO_READERS = ("_cached_cleaned_instructions", "cleaned_instructions")


@functools.cache
def watch_dynamo_reader(code_to_read: Callable[[CodeType], CodeType]) -> None:
    """Make dynamo call ``code_to_read`` with each code object, and read the code it returns."""

    def patch(module: ModuleType) -> None:
        name = next((name for name in _DYNAMO_READERS if hasattr(module, name)), None)
        if name is None:
            return  # a version of dynamo that was not checked
        read = getattr(module, name)

        def instructions(code: CodeType, *args: Any, **kwargs: Any) -> Any:
            return read(code_to_read(code), *args, **kwargs)

        setattr(module, name, instructions)

    when_imported("torch._dynamo.bytecode_transformation", patch)


_reported_functions: WeakSet[FunctionType] = WeakSet()


def _watch_torch_jit(has_taps: Callable[[FunctionType], bool]) -> None:
    """Report, from now on, each function with taps that torch.jit.script compiles."""

    def patch(frontend: ModuleType) -> None:
        parse_def = getattr(frontend, "parse_def", None)
        if parse_def is None:
            return  # a version of torch that was not checked

        @functools.wraps(parse_def)
        def parse_and_report(function: Any, *args: Any, **kwargs: Any) -> Any:
            plain = getattr(function, "__func__", function)
            if isinstance(plain, FunctionType) and has_taps(plain):
                _report_scripted(plain)
            return parse_def(function, *args, **kwargs)

        frontend.parse_def = parse_and_report  # type: ignore[attr-defined]

    when_imported("torch.jit.frontend", patch)


def _report_scripted(function: FunctionType) -> None:
    if function not in _reported_functions:
        _reported_functions.add(function)
        code = function.__code__
        place = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
        streams.report(
            f"{place} has probes and is compiled by torch.jit.script: they see nothing in the"
            " compiled code."
        )


CLOUDPICKLES = (
    "cloudpickle.cloudpickle",
    "joblib.externals.cloudpickle.cloudpickle",
    "ray.cloudpickle.cloudpickle",
    "pyspark.cloudpickle.cloudpickle",
)


@functools.cache
def watch_picklers(own_code: Callable[[CodeType], CodeType]) -> None:
    """Make picklers pickle the program's own code, which ``own_code`` returns."""

    def patch_cloudpickle(module: ModuleType) -> None:
        table: Any = getattr(getattr(module, "Pickler", None), "dispatch_table", None)
        if table is None:
            table = getattr(getattr(module, "CloudPickler", None), "dispatch_table", None)
        maps: Any = getattr(table, "maps", None)
        reduce = maps[0].get(CodeType) if maps else None
        if reduce is not None:  # None in a version of cloudpickle that was not checked
            maps[0][CodeType] = lambda code: reduce(own_code(code))
            # These functions look for the names that code uses. They get the program's own code,
            # since code with taps may use other names.
            for name in ("_extract_code_globals", "_find_imported_submodules"):
                function = getattr(module, name, None)
                if function is not None:
                    setattr(module, name, _with_own_code(function, own_code))

    def patch_dill(module: ModuleType) -> None:
        table: Any = getattr(getattr(module, "Pickler", None), "dispatch", {})
        save = table.get(CodeType)
        if save is not None:
            table[CodeType] = lambda pickler, code: save(pickler, own_code(code))

    for name in CLOUDPICKLES:
        when_imported(name, patch_cloudpickle)
    when_imported("dill._dill", patch_dill)


def _with_own_code(
    function: Callable[..., Any], own_code: Callable[[CodeType], CodeType]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(value: Any, *args: Any) -> Any:
        if type(value) is CodeType:
            value = own_code(value)
        return function(value, *args)

    return call
