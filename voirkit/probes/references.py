"""What an absolute reference names, followed through imports and base classes in the sources, without running anything.

Where the sources can not tell (a base class made by a call, a module that is not on the path yet) it says so.
"""

from __future__ import annotations

import builtins
import os
from dataclasses import dataclass

from voirkit.errors import SelectorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from voirkit.probes.catalogue import Catalogue, ClassDefinition, Function, Variable

    Modules: TypeAlias = Callable[[str], Catalogue | None]

LONGEST_CHAIN = 20  # of imports and bases; they can run in circles


@dataclass(frozen=True, slots=True)
class Named:
    """What a reference leads to: one of functions, class, variable, module without source; or nothing.

    Attributes:
        catalogue: Of the file that it stands in.
        path: Its path there; empty for a module. For nothing: the path up to the part that is not there.
        functions: The definitions that can be the live one.
        definition: The class.
        variable: Any other name.
        sourceless: The module that has no Python source.
    """

    catalogue: Catalogue
    path: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    definition: ClassDefinition | None = None
    variable: Variable | None = None
    sourceless: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the reference leads to something."""
        return bool(not self.path or self.functions or self.definition or self.variable or self.sourceless)


def resolve(path: tuple[str, ...], catalogue: Catalogue, modules: Modules, depth: int = 0) -> Named | None:
    """What a path names in a file.

    Args:
        path: ``("Trainer", "run")``.
        catalogue: Of that file.
        modules: The catalogue of a module by name; None if it has no source, SelectorError if there is none.
        depth: How many imports and bases led here.

    Returns:
        None if it can not be known without running.
    """
    found: Named | None = Named(catalogue)
    for part in path:
        if found is None or found.variable or found.sourceless or not found.is_there:
            return found
        found = _step(found, part, modules, depth)
    return found


def _step(at: Named, part: str, modules: Modules, depth: int) -> Named | None:
    catalogue, path = at.catalogue, (*at.path, part)
    if functions := catalogue.candidates(path):
        return Named(catalogue, path, functions=tuple(functions))
    if definition := catalogue.find_class(path):
        return Named(catalogue, path, definition=definition)
    if depth > LONGEST_CHAIN:
        return None
    if at.definition:
        return _inherited(at, at.definition, part, modules, depth)
    if at.functions:
        return Named(catalogue, path)
    return _in_module(catalogue, part, modules, depth)


def _in_module(catalogue: Catalogue, part: str, modules: Modules, depth: int) -> Named | None:
    variable = catalogue.names.get(part)
    if variable is not None:
        if variable.origin is None:
            return Named(catalogue, (part,), variable=variable)
        module, name = variable.origin
        module = _absolute(module, catalogue)
        if name and module == catalogue.module:  # a package that imports from itself means its submodules
            module, name = f"{module}.{name}", ""
        home = _module(module, catalogue, modules)
        return resolve((name,), home.catalogue, modules, depth + 1) if name and home and not home.sourceless else home
    certain = True
    for star in catalogue.star_imports:
        home = _module(_absolute(star, catalogue), catalogue, modules)
        if home is None or home.sourceless:
            certain = certain and home is not None
            continue
        found = resolve((part,), home.catalogue, modules, depth + 1)
        if found is not None and found.is_there:
            return found
        certain = certain and found is not None
    if catalogue.module and os.path.basename(catalogue.filename) == "__init__.py":
        submodule = _module(f"{catalogue.module}.{part}", catalogue, modules)
        if submodule is not None:
            return submodule
    return Named(catalogue, (part,)) if certain else None


def _inherited(at: Named, definition: ClassDefinition, part: str, modules: Modules, depth: int) -> Named | None:
    if part in definition.names:
        return Named(at.catalogue, (*at.path, part), variable=definition.names[part])
    certain = True
    for base in definition.bases:
        parent = resolve(tuple(base.split(".")), at.catalogue, modules, depth + 1) if base else None
        if parent is not None and parent.definition:
            found = _step(parent, part, modules, depth + 1)
            if found is not None and found.is_there:
                return found
            certain = certain and found is not None
        elif parent is None or not (parent.sourceless or hasattr(builtins, base)):  # those hold no Python function
            certain = False
    return Named(at.catalogue, (*at.path, part)) if certain else None


def _absolute(module: str, catalogue: Catalogue) -> str:
    """The full name of a module that may be written with leading dots; ``""`` if its package is not known."""
    name = module.lstrip(".")
    up = len(module) - len(name)
    if not up:
        return name
    package = catalogue.module.split(".") if catalogue.module else []
    up -= os.path.basename(catalogue.filename) == "__init__.py"
    package = package[: len(package) - up]
    return ".".join([*package, name] if name else package) if package else ""


def _module(name: str, catalogue: Catalogue, modules: Modules) -> Named | None:
    if not name:
        return None
    try:
        found = modules(name)
    except (SelectorError, SyntaxError, OSError):
        return None
    return Named(found) if found is not None else Named(catalogue, sourceless=name)
