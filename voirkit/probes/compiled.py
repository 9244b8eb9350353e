"""Functions with taps under torch.compile: run as they are, uncompiled, with the right events and results.

torch.compile's tracer (dynamo) takes every constant of a function's code for a literal, and fails where it meets a tap.  Here it is told
to leave that function alone, and what taps call; with ``fullgraph=True``, where it must not, the taps are left out of the compiled code,
and that is told.  Never imports torch: the tracer is patched when it has been imported.  Checked with torch 2.1, 2.5 and 2.15.
"""

from __future__ import annotations

import operator
import os
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from voirkit import streams
from voirkit.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = os.path.dirname(__file__)
# What ``self.x += y`` becomes a call of; not to be left out, since the program's own value comes of it.
AUGMENTED = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "MatMult": operator.imatmul, "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv, "Mod": operator.imod, "Pow": operator.ipow, "LShift": operator.ilshift,
    "RShift": operator.irshift, "BitAnd": operator.iand, "BitXor": operator.ixor, "BitOr": operator.ior,
}  # fmt: skip

_AUGMENTED = frozenset(map(id, AUGMENTED.values()))  # by identity: the program's constants may have an == of their own

_watching = _leaving_out = False
_told: set[str] = set()


def watch() -> None:
    """From now on dynamo, when it is imported, leaves functions with taps alone."""
    global _watching
    leave_out()
    if not _watching:
        _watching = True
        when_imported("torch._dynamo.variables.constant", _patch)
        when_imported("torch._dynamo.symbolic_convert", _patch_before_2_2)


def leave_out() -> None:
    """From now on dynamo, when it is imported, does not compile what taps call."""
    global _leaving_out
    if not _leaving_out:
        _leaving_out = True
        when_imported("torch._dynamo.trace_rules", _add_rules)
        when_imported("torch._dynamo.skipfiles", _add_rules)  # its name before torch 2.2


def look() -> None:
    """Tell, when a function gets taps, if code that is compiled already may go on without them.

    Before torch 2.2 dynamo takes a function that another calls into the other's code, and does not look again.
    """
    builder = getattr(sys.modules.get("torch._dynamo.guards"), "GuardBuilder", None)
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if builder is not None and counters and not hasattr(builder, "CLOSURE_MATCH") and counters["frames"]["ok"]:
        _tell("something was compiled by torch.compile before a probe was on: if it calls the probed function, that is not seen there.")


def _tell(what: str) -> None:
    if what not in _told:
        _told.add(what)
        streams.report(what)


def _add_rules(rules: ModuleType) -> None:
    add = getattr(rules, "add", None)
    if add is not None:
        for name in ("voirkit", "voirkit_instruments", "giving", "reactivex"):
            add(name)


def _is_tap(value: Any) -> bool:
    """Whether a constant is one that taps have put there; no compiler of python's makes a function a constant."""
    return (isinstance(value, FunctionType) and value.__code__.co_filename.startswith(FOLDER)) or id(value) in _AUGMENTED


def _instead(value: Any, must_compile: bool) -> Any:
    """What dynamo is to take a tap for; raises what makes it leave the function alone."""
    if not must_compile:
        raise sys.modules["torch._dynamo.exc"].SkipFrame("the function has taps of a probe")
    if id(value) in _AUGMENTED:
        return sys.modules["torch._dynamo.variables.builtin"].BuiltinVariable(value)
    _tell("a function with probes is compiled with fullgraph=True: its probes see nothing in the compiled code.")
    return sys.modules["torch._dynamo.variables.functions"].UserFunctionVariable(_nothing)


def _must_compile() -> bool:
    """Whether what is being compiled has to be compiled whole (``fullgraph=True``): then the taps are left out of it."""
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    try:
        return bool(translator.current_tx().one_graph)  # type: ignore[union-attr]
    except AttributeError:
        return False


# Of no file, since dynamo refuses to look into those of voirkit.
_names: dict[str, Any] = {"__name__": "voirkit.nothing"}
exec(compile("def nothing(*values):\n    return values[0] if values else None\n", "<nothing>", "exec"), _names)
_nothing = _names["nothing"]


def _patch(constant: ModuleType) -> None:
    create = getattr(getattr(constant, "ConstantVariable", None), "create", None)
    if create is None or not hasattr(sys.modules.get("torch._dynamo.exc"), "SkipFrame"):
        return  # another dynamo than those that were checked

    def create_constant(value: Any, **kwargs: Any) -> Any:
        if _is_tap(value):
            return _instead(value, _must_compile())
        try:
            return create(value, **kwargs)
        except AssertionError:
            if not callable(value):
                raise
            return _instead(value, _must_compile())

    constant.ConstantVariable.create = staticmethod(create_constant)


def _patch_before_2_2(convert: ModuleType) -> None:
    constant = getattr(sys.modules.get("torch._dynamo.variables.constant"), "ConstantVariable", None)
    base = getattr(convert, "InstructionTranslatorBase", None)
    if constant is None or hasattr(constant, "create") or base is None:
        return
    load = base.LOAD_CONST

    def load_constant(self: Any, instruction: Any) -> Any:
        value = instruction.argval
        if not callable(value):
            return load(self, instruction)
        return self.push(_instead(value, bool(self.output.root_tx.one_graph)))

    base.LOAD_CONST = load_constant
