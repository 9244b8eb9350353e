"""Names and values as TrainCheck spells them (0.2.0): functions, types, and what is kept of arguments and results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

INIT, TRAINING, EVALUATION = "init", "training", "evaluation"  # stages of a run
# Functions of Python that call themselves `torch`'s; all others in that module are C functions, which TrainCheck finds in a class.
_PYTHON = {
    "compile", "cond", "get_default_device", "get_device_module", "is_deterministic_algorithms_warn_only_enabled", "is_storage",
    "is_tensor", "is_warn_always_enabled", "set_default_device", "set_default_dtype", "set_default_tensor_type",
    "set_deterministic_debug_mode", "set_float32_matmul_precision", "set_warn_always", "typename", "use_deterministic_algorithms",
    "while_loop",
}  # fmt: skip
# The prefixes of tensors' types by dtype, as Tensor.type() has them.
_TENSORS = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "uint8": "Byte", "int8": "Char", "int16": "Short",
    "int32": "Int", "int64": "Long", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip
# Functions that no relation of TrainCheck looks at; parts of their names.
_NOT_LOOKED_AT = (
    "torch._VariableFunctionsClass",
    "torch.nn.functional",
    "torch._tensor.Tensor.backward",
    "torch.autograd",
    "._",
    "<locals>",
)


class Spelled(NamedTuple):
    """What the lines of calls with the same function, arguments and result have in common."""

    head: str  # fields that name the function
    leaf: str  # the last part of its name
    is_bound: bool  # whether it is called on an object: so all its calls are marked, or none
    type: str  # of the first argument
    begins: str  # fields of the line at the entry, from ``args`` on, without braces
    ends: str  # fields of the line at the exit
    is_error: bool  # whether that line says that it raised


class Spelling:
    """How the calls of a run are spelled.

    Args:
        calls: Each (category, name, arguments as JSON or None) of its calls.
    """

    def __init__(self, calls: Iterable[tuple[str, str, str | None]]) -> None:
        self._spelled: dict[tuple[str, str, str | None], Spelled] = {}
        functions: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for category, name, text in calls:
            functions.setdefault((category, name), []).append(_read(text))
        self._is_bound = {which: all(one.get("bound") is True for one in sets) for which, sets in functions.items()}
        self._names = {which: _function(*which, functions) for which in functions}
        # The reader ends with an AssertionError where a function that gives tensors has raised as well.
        self._gives_tensors = {
            which for which, sets in functions.items() if _is_looked_at(self._names[which]) and any(map(_returns_tensor, sets))
        }

    def of(self, category: str, name: str, arguments: str | None) -> Spelled:
        """The spelling of a call."""
        key = category, name, arguments
        found = self._spelled.get(key)
        if found is None:
            found = self._spelled[key] = self._spell(category, name, _read(arguments))
        return found

    def _spell(self, category: str, name: str, arguments: Mapping[str, Any]) -> Spelled:
        which = category, name
        args = [_typed(one) for one in arguments.get("args", ())]
        kwargs = {key: _typed(one) for key, one in arguments.get("kwargs", {}).items()}
        begins = f'"args":{_dumps(dict(zip(map(str, range(len(args))), args, strict=True)))},"kwargs":{_dumps(kwargs)}'
        error = arguments.get("error")
        if error is None:
            ends = f'"return_values":{_dumps(_returned(arguments.get("returns")))}'
        else:
            ends = f'"exception":{_dumps(str(error))},"exception_msg":""'
        first = next(iter(args[0])) if args else ""
        is_error = error is not None and which not in self._gives_tensors
        is_bound = self._is_bound[which]
        return Spelled(head_of(self._names[which], is_bound), name.rpartition(".")[2], is_bound, first, begins, ends, is_error)


def head_of(function: str, is_bound: bool) -> str:
    """The fields that name a function."""
    return f'"function":{_dumps(function)},"is_bound_method":{_dumps(is_bound)}'


def _read(arguments: str | None) -> Mapping[str, Any]:
    found = json.loads(arguments) if arguments else {}
    return found if isinstance(found, dict) else {}


def _function(category: str, name: str, functions: Mapping[tuple[str, str], object]) -> str:
    """A function's full name; a module's call is one of its ``forward``, which it leads to."""
    owner, _, leaf = name.rpartition(".")
    if leaf == "__call__" and owner and (category, f"{owner}.forward") not in functions:
        return f"{category}.{owner}.forward"
    if category == "torch":
        if name.startswith("Tensor."):
            return f"torch._tensor.{name}"
        if "." not in name and name not in _PYTHON:
            return f"torch._VariableFunctionsClass.{name}"
    return f"{category}.{name}" if category else name


def _is_looked_at(function: str) -> bool:
    return not any(part in function for part in _NOT_LOOKED_AT)


def _returns_tensor(arguments: Mapping[str, Any]) -> bool:
    returned = _returned(arguments.get("returns")) if "error" not in arguments else []
    types = [next(iter(one)) for one in (returned if isinstance(returned, list) else [returned])]
    return any((one.startswith("torch.") and "Tensor" in one) or "Parameter" in one for one in types)


def _returned(value: Any) -> dict[str, Any] | list[dict[str, Any]]:
    """A result; that of several values as a list of them."""
    if isinstance(value, dict) and value.get("type") == "tuple" and len(items := value.get("items", ())) == value.get("n"):
        return [_typed(one) for one in items]
    return _typed(value)


def _typed(value: Any) -> dict[str, Any]:
    """A summary of a value (docs/calls.md) as TrainCheck has it: the name of its type with the value, or with attributes of it."""
    if not isinstance(value, dict):
        return {type(value).__name__: value}
    if "tensor" in value:
        return _tensor(value)
    kind = str(value.get("type", "object")).removeprefix("builtins.")
    items = value.get("items")
    if items is not None:
        plain = _plain(items, value.get("n"))
        return {kind: {"n": value.get("n")} if plain is None else plain}
    return {kind: {"n": value["n"]} if "n" in value else {}}


def _plain(items: Any, n: object) -> Any:
    """A container's items, if all of them are there and none is more than a number or a text; else None."""
    values = items.values() if isinstance(items, dict) else items
    return items if len(items) == n and not any(isinstance(one, dict | list) for one in values) else None


def _tensor(value: Mapping[str, Any]) -> dict[str, Any]:
    """A tensor without its id: those are used again and again, and a run whose tensors lie elsewhere would differ from this one."""
    dtype, device, shape = str(value.get("dtype", "")), str(value.get("device", "cpu")).partition(":")[0], value.get("shape", [])
    kind = str(value["tensor"])
    if "Parameter" in kind:
        kind = "torch.nn.Parameter"
    elif kind == "torch.Tensor":
        kind = f"torch.{'' if device == 'cpu' else f'{device}.'}{_TENSORS.get(dtype, '')}Tensor"
    attributes = {
        "dtype": f"torch.{dtype}", "is_cpu": device == "cpu", "is_cuda": device == "cuda", "ndim": len(shape),
        "requires_grad": bool(value.get("grad")), "shape": shape,
    }  # fmt: skip
    return {kind: attributes}


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
