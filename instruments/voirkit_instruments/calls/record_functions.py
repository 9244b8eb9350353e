"""Finds the functions that ``--calls`` names, and checks before the run that their top-level
modules exist.

The functions are public functions, and the special methods that Python calls for ``X()``, ``x()``,
``with x`` and ``for y in x``. Only the dictionaries of modules and classes are read; no attribute
of the program's objects is accessed, and nothing is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType

from voirkit.errors import CommandLineError, did_you_mean
from voirkit_instruments.calls.record_values import is_of, type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


METHOD, MODULE = 1, 2  # kinds of functions; _calls.c has the same numbers

# Special methods that count as public: those called by `X()`, `x()`, `with x` and `for y in x`.
_SPECIAL = ("__init__", "__call__", "__enter__", "__exit__", "__iter__", "__next__")
_OPERATORS = frozenset(
    f"__{before}{name}__"
    for before in ("", "r", "i")
    for name in (
        "add",
        "sub",
        "mul",
        "matmul",
        "truediv",
        "floordiv",
        "div",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
) | {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert")}
# Parts of torch that trace, translate or store programs: calls in them are not the program's own.
MACHINERY = (
    "torch.fx",
    "torch.jit",
    "torch.export",
    "torch.compiler",
    "torch.onnx",
    "torch.package",
    "torch.library",
    "torch.overrides",
    "torch.testing",
    "torch.utils.cpp_extension",
    "torch.utils.bundled_inputs",
    "torch.utils.benchmark",
    "torch.ops",
    "torch.classes",
)
# Private modules whose helpers are imported into public modules of torch. The helpers do not count
# as functions of the public modules.
_HELPERS = (
    "torch._jit_internal",
    "torch._dynamo",
    "torch._overrides",
    "torch._classes",
    "torch._ops",
    "torch._compile",
)
# Functions that other instruments call at each step: their calls could not be distinguished from
# the program's.
ASKED_BY_OTHERS = (
    "torch.is_grad_enabled",
    "torch.cuda.is_initialized",
    "torch.utils.data.get_worker_info",
)
# Private functions that are recorded along with a public target: the program uses the loader
# through its private iterator.
_WITH = {
    "torch.utils.data.DataLoader": ("torch.utils.data.dataloader._BaseDataLoaderIter.__next__",)
}


class Function:
    """A function to record. ``name`` is its qualified name in module ``category``, under which it
    is shown; ``kind`` holds flags: ``METHOD``, ``MODULE``."""

    def __init__(self, function: Any, category: str, name: str, kind: int) -> None:
        self.function, self.category, self.name, self.kind = function, category, name, kind


def is_private(module: str) -> bool:
    """True if some part of a module's name begins with an underscore (``__main__`` does not
    count)."""
    return module != "__main__" and any(part.startswith("_") for part in module.split("."))


def is_machinery(module: str) -> bool:
    """True if a module belongs to the parts of torch that ``--calls torch`` leaves out."""
    return any(module == part or module.startswith(f"{part}.") for part in MACHINERY)


def is_shown(module: str, target: str) -> bool:
    """True if ``--calls TARGET`` records ``module``, which is below ``target``. Left out are
    modules with a private part below ``target``, and modules in ``MACHINERY`` unless ``target``
    itself is in it."""
    if is_private(module.removeprefix(target)[1:]):
        return False
    return is_machinery(target) or not is_machinery(module)


def functions_named(target: str) -> Iterator[Function]:
    """Yield the functions that a name stands for, from modules that are already imported."""
    for name in (target, *_WITH.get(target, ())):
        module, path = _split(name)
        if module is None:
            continue
        if path:
            yield from _of_path(module, path)
            continue
        # a function that several modules contain belongs to the outermost one
        for below in sorted(sys.modules, key=lambda each: (each.count("."), each)):
            if below == name or (below.startswith(f"{name}.") and is_shown(below, name)):
                value = sys.modules[below]
                if is_of(value, ModuleType):
                    yield from of_module(value, below)


def is_public(name: object, operators: bool = False) -> bool:
    if type(name) is not str:
        return False
    return name[:1] != "_" or name in _SPECIAL or (operators and name in _OPERATORS)


def of_module(module: ModuleType, called: str) -> Iterator[Function]:
    """Yield the public functions of one module, and the methods of its public classes."""
    root = called.partition(".")[0]
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        kind = type(value)
        if kind is FunctionType:
            if _belongs(value.__module__, called, root):
                yield _of_function(value, called, name)
        elif kind is BuiltinFunctionType:
            # leave out has_torch_function and similar functions, which only query
            if _is_of(value, root) and "torch_function" not in name:
                yield Function(value, called, name, 0)
        elif is_of(value, type) and _belongs(_module_of(value), called, root):
            yield from of_class(value, called)


def of_class(kind: type, called: str, wholly: bool = False) -> Iterator[Function]:
    """Yield the methods that a class itself defines.

    ``called`` is the module in which the class was found. ``wholly`` is True if the class was
    requested by name: then operators are included, and C methods of its base classes.
    """
    path = str(type.__dict__["__qualname__"].__get__(kind))
    for name, value in list(type.__dict__["__dict__"].__get__(kind).items()):
        if not is_public(name, wholly):
            continue
        method = _of_method(value, called, f"{path}.{name}", name)
        if method is not None:
            yield method
    if not wholly:
        return
    for above in type.__dict__["__mro__"].__get__(kind)[1:]:
        if above is object:
            continue
        for name, value in list(type.__dict__["__dict__"].__get__(above).items()):
            if type(value) is MethodDescriptorType and is_public(name, wholly):
                yield Function(value, called, f"{path}.{name}", METHOD)


def _of_function(function: FunctionType, called: str, name: str) -> Function:
    module, path = function.__module__, function.__qualname__
    if is_private(module or "") or "<" in path:
        module, path = called, name
    return Function(function, module, path, 0)


def _of_method(value: Any, called: str, path: str, name: str) -> Function | None:
    if type(value) is FunctionType:
        is_module_call = name == "__call__" and path == "Module.__call__"
        return Function(value, called, path, METHOD | MODULE if is_module_call else METHOD)
    if type(value) in (staticmethod, classmethod):
        function = value.__func__
        if type(function) is FunctionType:
            return Function(function, called, path, METHOD if type(value) is classmethod else 0)
    return None


def _of_path(module: ModuleType, path: list[str]) -> Iterator[Function]:
    """Yield the functions for the part of a name after the module: a class, function or method."""
    owner: Any = module
    for name in path[:-1]:
        owner = vars(owner).get(name)
        if not is_of(owner, type):
            return
    value = _in(owner, path[-1])
    called = _module_of(owner) if is_of(owner, type) else module.__name__
    if is_of(value, type):
        yield from of_class(value, _module_of(value), wholly=True)
    elif is_of(owner, type):
        full = f"{type.__dict__['__qualname__'].__get__(owner)}.{path[-1]}"
        method = _of_method(value, called, full, path[-1])
        if method is not None:
            yield method
        elif type(value) is MethodDescriptorType:
            yield Function(value, called, full, METHOD)
    elif type(value) is FunctionType:
        yield _of_function(value, called, path[-1])
    elif type(value) is BuiltinFunctionType:
        yield Function(value, called, path[-1], 0)


def _in(owner: Any, name: str) -> Any:
    if not is_of(owner, type):
        return vars(owner).get(name)
    for above in type.__dict__["__mro__"].__get__(owner):
        if name in vars(above):
            return vars(above)[name]
    return None


def _split(name: str) -> tuple[ModuleType | None, list[str]]:
    """Return the longest part of a name that is an imported module, and the parts after it."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:n]))
        if is_of(module, ModuleType):
            return module, parts[n:]
    return None, parts


def _module_of(kind: type) -> str:
    full_name, name = type_name(kind), str(type.__dict__["__qualname__"].__get__(kind))
    if full_name in ("torch.nn.Parameter", "torch.nn.Buffer"):
        return "torch.nn.parameter"
    return full_name[: -len(name) - 1]


def _belongs(defined: Any, called: str, root: str) -> bool:
    """True if an object in module ``called`` was defined there, or in a private module of the same
    package. ``defined`` is the object's ``__module__``."""
    if defined == called:
        return True
    if type(defined) is not str or defined.partition(".")[0] != root:
        return False
    return is_private(defined) and not defined.startswith(_HELPERS)


def _is_of(function: Any, root: str) -> bool:
    """True if a C function belongs to package ``root``, which may also import Python's own."""
    module = function.__module__
    if type(module) is str:
        return module.partition(".")[0] == root
    owner = function.__self__
    return is_of(owner, type) and _module_of(owner).partition(".")[0] == root


# Default targets, the calls of a typical training: the functions of layers, optimizers and
# schedulers, modules, the backward pass, and the data loader.
DEFAULT = (
    "torch.nn.functional",
    "torch.optim",
    "torch.nn.Module.__call__",
    "torch.Tensor.backward",
    "torch.utils.data.DataLoader",
)
# Short names, as after `from torch import nn` and `import torch.nn.functional as F`.
SHORT = {
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "optim": "torch.optim",
    "Tensor": "torch.Tensor",
    "DataLoader": DEFAULT[-1],
}


def is_script(word: str, following: Sequence[str]) -> bool:
    """True if the word after ``--calls`` is SCRIPT rather than a list of names: a file, or a word
    that ends in ``.py``. A folder that can be run is SCRIPT too, unless another script follows."""
    if os.path.isfile(word) or word.endswith(".py"):
        return True
    if not os.path.isfile(os.path.join(word, "__main__.py")):
        return False
    return not (following and (following[0] in ("-m", "--") or is_script(following[0], ())))


def names(text: str | bool | None) -> list[str]:
    """Return the full names of the functions to record; the default list if ``text`` is None or
    True (the flag without a value). Raises CommandLineError: not a list of names, or an empty
    one."""
    if not isinstance(text, str):
        return list(DEFAULT)
    targets: list[str] = []
    for word in text.replace(" ", ",").split(","):
        if not word:
            continue
        first, dot, path = word.partition(".")
        name = SHORT.get(first, first) + dot + path
        if not all(part.isidentifier() for part in name.split(".")):
            raise CommandLineError(
                f"{word!r} is no name of a module, class or function.", where=f"--calls={text}"
            )
        if name not in targets:
            targets.append(name)
    if not targets:
        raise CommandLineError(
            "it names nothing to record.",
            where=f"--calls={text}",
            next=(
                "Name modules, --calls=torch.optim,mine, or none at all for what a training calls:"
                " voirkit --calls SCRIPT"
            ),
        )
    return targets


def check(targets: Sequence[str], folder: str) -> None:
    """Check before the script starts that the top-level module of each target exists. Raises
    CommandLineError: one does not."""
    path = [folder, *(entry for entry in sys.path if entry)]
    for name in targets:
        first = name.partition(".")[0]
        if (
            first in sys.modules
            or first in sys.builtin_module_names
            or PathFinder.find_spec(first, path) is not None
        ):
            continue
        # do not suggest the missing module itself, which may be torch
        candidates = [other for other in (*SHORT, "torch", "torchvision") if other != first]
        hint = did_you_mean(first, candidates)
        search = f"Looked in {folder} and in python's own path; name other folders in PYTHONPATH."
        raise CommandLineError(
            f"there is no module {first!r}.",
            where=f"--calls {name}",
            next=f"{hint}\n{search}".strip(),
        )
