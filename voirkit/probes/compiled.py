"""Functions with taps under torch.compile: run as they are, uncompiled, with the right events and results.

torch.compile's tracer (dynamo) takes every constant of a function's code for a literal, and fails with an assertion where it meets a tap.
Here it is told to leave that function alone, and what taps call; with ``fullgraph=True``, where it must not, the taps are left out of the
compiled code, and that is told. Never imports torch: the tracer is patched when it has been imported. Checked with torch 2.15.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from voirkit.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType

_watching = _leaving_out = False


def watch() -> None:
    """From now on dynamo, when it is imported, leaves functions with taps alone."""
    global _watching
    leave_out()
    if not _watching:
        _watching = True
        when_imported("torch._dynamo.variables.constant", _patch)


def leave_out() -> None:
    """From now on dynamo, when it is imported, does not compile what taps call."""
    global _leaving_out
    if not _leaving_out:
        _leaving_out = True
        when_imported("torch._dynamo.trace_rules", _add_rules)
        when_imported("torch._dynamo.skipfiles", _add_rules)  # until torch 2.2


def _add_rules(rules: ModuleType) -> None:
    add = getattr(rules, "add", None)
    if add is not None:
        for name in ("voirkit", "voirkit_instruments", "giving", "reactivex"):
            add(name)


def _must_compile() -> bool:
    """Whether what is being compiled has to be compiled whole (``fullgraph=True``): then the taps are left out of it."""
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    try:
        return bool(translator.current_tx().one_graph)  # type: ignore[union-attr]
    except AttributeError:
        return False


_told = False


def _tell() -> None:
    global _told
    if not _told:
        _told = True
        from voirkit import streams

        streams.report("a function with probes is compiled with fullgraph=True: its probes see nothing in the compiled code.")


# Of no file, since dynamo refuses to look into those of voirkit.
_names: dict[str, Any] = {"__name__": "voirkit.nothing"}
exec(compile("def nothing(*values):\n    return values[0] if values else None\n", "<nothing>", "exec"), _names)
_nothing = _names["nothing"]


def _patch(constant: ModuleType) -> None:
    skip = getattr(sys.modules.get("torch._dynamo.exc"), "SkipFrame", None)
    create = getattr(getattr(constant, "ConstantVariable", None), "create", None)
    if skip is None or create is None:
        return  # another dynamo than those that were checked

    def create_constant(value: Any, **kwargs: Any) -> Any:
        try:
            return create(value, **kwargs)
        except AssertionError:
            if not callable(value):
                raise
            if _must_compile():
                _tell()
                functions = sys.modules["torch._dynamo.variables.functions"]
                return functions.UserFunctionVariable(_nothing)
            raise skip("the function has taps of a probe") from None

    constant.ConstantVariable.create = staticmethod(create_constant)
