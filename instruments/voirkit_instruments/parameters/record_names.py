"""What parameters are called: as ``named_parameters`` of the outermost module that was called and holds them has it.

Modules are kept weakly; their tables are looked at, no method of theirs is called.
"""

from __future__ import annotations

import weakref

from voirkit_instruments.loader_numbers import forgetting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Modules that stand around a model; what they call it is left out of names.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
_LEFT_OUT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Name:
    """What a parameter is called.

    Attributes:
        full: Its name.
        model: The class of its model; None if none is known.
        alias: Another name of it in that model: it is tied.
    """

    __slots__ = ("alias", "full", "model")

    def __init__(self, full: str, model: str | None, alias: str | None) -> None:
        self.full, self.model, self.alias = full, model, alias


class Models:
    """The outermost modules that were called.

    Attributes:
        changes: How many have come so far.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._prefixes: dict[int, str] = {}
        self._taken: dict[str, int] = {}  # by name: the identity of the model that has it
        self.changes = 0

    def called(self, module: Any) -> None:
        """A module was called, not from inside of another."""
        key = id(module)
        if key not in self._known:
            self._known[key] = (weakref.ref(module, forgetting(self._known, key)), self.changes)
            self.changes += 1

    def __iter__(self) -> Iterator[Any]:
        """Those that live and are in no other, in the order in which they were called first."""
        alive = [(module, number) for known, number in list(self._known.values()) if (module := known()) is not None]
        inside = [{id(inner) for inner, _ in _modules(module)} - {id(module)} for module, _ in alive]
        for module, _ in sorted(alive, key=lambda pair: pair[1]):
            if not any(id(module) in inner for inner in inside):
                yield module

    def parameters(self) -> list[Any]:
        """All of theirs, each once."""
        return list({id(tensor): tensor for module in self for _, tensor in tensors(module, "_parameters")}.values())

    def buffers(self) -> list[tuple[str, Any]]:
        """Their buffers with their names, each once; of the second model on the class goes before the name."""
        found: dict[int, tuple[str, Any]] = {}
        for number, module in enumerate(self):
            prefix = f"{type(_bare(module)).__name__}." if number else ""
            for name, tensor in tensors(module, "_buffers"):
                found.setdefault(id(tensor), (prefix + name, tensor))
        return list(found.values())

    def names(self) -> dict[int, Name]:
        """The names of all parameters of all models, by identity."""
        found: dict[int, Name] = {}
        for module in self:
            own: dict[int, list[str]] = {}
            for path, tensor in tensors(module, "_parameters"):
                own.setdefault(id(tensor), []).append(path)
            prefix = self._prefix(module, [path for paths in own.values() for path in paths])
            kind = type(_bare(module)).__name__
            for key, paths in own.items():
                if key not in found:
                    found[key] = Name(prefix + paths[0], kind, prefix + paths[1] if len(paths) > 1 else None)
        return found

    def _prefix(self, module: Any, paths: list[str]) -> str:
        """What goes before the names of a model's parameters, so that none is another model's name."""
        key = id(module)
        known = self._prefixes.get(key)
        if known is not None and all(self._taken.get(known + path, key) == key for path in paths):
            return known
        kind = type(_bare(module)).__name__
        for prefix in ("", f"{kind}.", *(f"{kind}{n}." for n in range(2, 1000))):
            if all(self._taken.get(prefix + path, key) == key for path in paths):
                break
        self._prefixes[key] = prefix
        self._taken.update((prefix + path, key) for path in paths)
        return prefix


def tensors(module: Any, table: str) -> Iterator[tuple[str, Any]]:
    """Names and tensors of one of a module's tables, and those of the modules in it; under all names that a tensor has."""
    for inner, path in _modules(module, again=True):
        for name, tensor in list(getattr(inner, table).items()):
            if tensor is not None:
                yield f"{path}{name}", tensor


def _modules(module: Any, again: bool = False) -> Iterator[tuple[Any, str]]:
    """A module and those in it with what their names begin with, in the order of ``named_modules``; none in itself."""
    seen: set[int] = set()
    stack: list[tuple[Any, str, frozenset[int]]] = [(module, "", frozenset())]
    while stack:
        at, path, above = stack.pop()
        if id(at) in above or (not again and id(at) in seen):
            continue
        seen.add(id(at))
        yield at, path
        wraps = type(at).__name__ in _WRAPPERS
        inner = [(name, one) for name, one in list(at._modules.items()) if one is not None]
        for name, one in reversed(inner):
            dropped = name in _LEFT_OUT or (wraps and name == "module")
            stack.append((one, path if dropped else f"{path}{name}.", above | {id(at)}))


def _bare(module: Any) -> Any:
    """The model itself, without what stands around it."""
    for _ in range(8):
        inner = [one for name, one in module._modules.items() if name in _LEFT_OUT or name == "module"]
        if len(module._modules) != 1 or not inner or inner[0] is None or module._parameters:
            break
        if type(module).__name__ not in _WRAPPERS and "module" in module._modules:
            break
        module = inner[0]
    return module
