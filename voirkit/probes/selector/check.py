"""Selectors, checked before the script runs: do the functions, variables and loops that they name exist?

Reports what is wrong in the user's words, with the nearest right name. References are followed through imports and base classes in the
sources; nothing of the script is ever run.
"""

from __future__ import annotations

import builtins
import functools
import os
import types
from dataclasses import dataclass, replace

from voirkit.errors import SelectorError, did_you_mean, nearest
from voirkit.probes.instrumenter import visibility_of
from voirkit.probes.live_functions import innermost
from voirkit.probes.selector import Parsed, ParsedFunction, is_tag, tools, wrong
from voirkit.probes.selector.catalogue import catalogue_of_function, catalogue_of_module
from voirkit.probes.source import TOO_DEEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeAlias

    from voirkit.probes.selector.catalogue import Catalogue, ClassDefinition, Function, Variable

    Modules: TypeAlias = Callable[[str], Catalogue | None]

LONGEST_LIST = 20  # names in a message


def check_all(
    parsed: Parsed,
    script: Catalogue | None,
    script_name: str,
    scope: Mapping[str, Any] | None = None,
    modules: Modules | None = catalogue_of_module,
    *,
    probe_type: str | None = None,
    overridable: bool = False,
) -> str | None:
    """Make sure that a selector can match what it names.

    Args:
        script: Catalogue of the script; None if there is none.
        script_name: The script's name for messages.
        scope: What plain names stand for, builtins included; None leaves them unchecked.
        modules: Finds the catalogue of a module; None leaves other modules unchecked.
        probe_type: ``"immediate"``, ``"total"`` or None, as in ``Probe``.
        overridable: Whether the probe may replace what the focus is set to.

    Returns:
        ``main.py:12``, the place of the function that makes the events; None if that cannot be known yet.

    Raises:
        SelectorError: A function, variable, loop or name is not there, or cannot be observed.
    """
    site = None
    for named in parsed.functions:
        is_total = named.is_total if probe_type is None else probe_type == "total" and named is parsed.functions[0]
        function = replace(named, is_total=is_total, is_replaced=overridable)
        if function.module is not None:
            found = _check_absolute(function, script, script_name, modules)
        elif scope is not None:
            found = check_in_scope(function, scope, script, script_name)
        else:
            found = None
        if named is parsed.focus:
            site = found
    if scope is not None:
        _check_scope_names(parsed, scope)
    return site


def _check_absolute(function: ParsedFunction, script: Catalogue | None, script_name: str, modules: Modules | None) -> str | None:
    cache: dict[str, Catalogue | None] = {}

    def catalogue_of(name: str) -> Catalogue | None:
        if modules is None:
            raise SelectorError("modules are not looked at")
        if name not in cache:
            cache[name] = modules(name)
        return cache[name]

    if function.module and modules is not None:
        home = _home(function, catalogue_of, script, script_name)
    elif function.module or script is None:
        return None
    else:
        home = script
    found = resolve(function.path, home, catalogue_of)
    if found is None:
        return None
    name = script_name if found.catalogue is script else display_path(found.catalogue.filename)
    if not found.functions:
        raise _no_function(function, found, name)
    return _check_captures(function, found.functions, name, lambda variable: _elsewhere(variable, found.catalogue))


def _home(function: ParsedFunction, modules: Modules, script: Catalogue | None, script_name: str) -> Catalogue:
    """The catalogue of the module of an absolute reference."""
    assert function.module  # the caller has seen to it
    rest = "/".join(function.path)
    try:
        home = modules(function.module)
    except SelectorError as error:
        near = [f"//{function.module}/{rest}"] if script and script.find_class((function.module,)) else []
        raise function.wrong(error.what, _lines(error.next, _or(near))) from None
    except SyntaxError as error:
        raise function.wrong(f"the source of '{function.module}' cannot be read: {error}.") from None
    if home is None:
        raise function.wrong(f"'{function.module}' has no Python source, so that nothing in it can be probed.")
    if script is not None and os.path.realpath(home.filename) == os.path.realpath(script.filename):
        what = f"'/{function.module}/' would import {script_name} a second time, beside the running script."
        raise function.wrong(what, f"Write '//{rest}'.")
    return home


def _no_function(function: ParsedFunction, named: Named, name: str) -> SelectorError:
    """What a reference leads to is no function: the error with what it is instead, and what is near."""
    catalogue, path, prefix = named.catalogue, named.path, f"/{named.catalogue.module}/"
    label = ".".join(path)
    if named.sourceless:
        what = f"'{function.reference}' is imported from '{named.sourceless}', which has no Python source."
        return function.wrong(what, "Only functions written in Python can be probed.")
    if not path:
        return function.wrong(f"'{function.reference}' is a module, not a function.")
    if named.definition:
        methods = [f"{prefix}{'/'.join([*path, m])}" for m in catalogue.inside(path)]
        next = f"Name one of its methods: {_listed(methods)}." if methods else "It has no methods of its own."
        return function.wrong(f"{label} ({name}:{named.definition.line}) is a class, not a function.", next)
    if named.variable:
        what = f"{label} ({name}:{named.variable.line}) is not a function."
        its = "" if catalogue.module else _its(catalogue)
        return function.wrong(what, _lines(its, _near(function, catalogue, prefix)))
    owner, last = path[:-1], path[-1]
    outer = catalogue.find(owner) or catalogue.find_class(owner)
    if outer:
        kind = "method" if catalogue.find_class(owner) else "inner function"
        names = catalogue.inside(owner)
        its = f"Its {kind}s: {_listed(names)}." if names else f"It has no {kind}s."
        near = [f"{prefix}{'/'.join([*owner, n])}" for n in nearest(last, names)]
        what = f"{'.'.join(owner)} ({name}:{outer.line}) has no {kind} '{last}'."
        return function.wrong(what, _lines(its, _or(near) or _near(function, catalogue, prefix)))
    what = f"{name} has no function '{'/'.join(function.path)}'."
    return function.wrong(what, _lines(_its(catalogue), _near(function, catalogue, prefix)))


def _near(function: ParsedFunction, catalogue: Catalogue, prefix: str) -> str:
    paths = ["/".join(f.path) for f in catalogue.functions]
    exact = [p for p in paths if p.endswith(f"/{function.path[-1]}")]
    return _or(f"{prefix}{p}" for p in dict.fromkeys(exact or nearest("/".join(function.path), paths)))


def _elsewhere(variable: str, catalogue: Catalogue) -> str:
    """Which other functions of the file have a variable."""
    found = dict.fromkeys("/".join(f.path) for f in catalogue.functions if variable in f.own_names)
    shown = [f"'/{catalogue.module}/{path} > {variable}'" for path in found]
    return f"It is a variable of another function: {_listed(shown)}." if shown else ""


def _check_captures(function: ParsedFunction, definitions: Iterable[Function], name: str, elsewhere: Callable[[str], str]) -> str:
    """One of the definitions has all that is captured, or the last one's first fault is raised. Returns its place."""
    problem = None
    for definition in definitions:
        site = f"{name}:{definition.line}"
        problem = _problem(function, definition, site, elsewhere)
        if problem is None:
            return site
    assert problem is not None  # there is at least one definition
    raise problem


def _problem(function: ParsedFunction, definition: Function, site: str, elsewhere: Callable[[str], str]) -> SelectorError | None:
    label = f"the top level of {site.rpartition(':')[0]}" if function.is_top else f"{definition.name} ({site})"
    for variable in function.variables:
        if variable in definition.attributes:
            continue
        if not definition.knows(variable) and variable not in definition.comprehension_variables:
            own = sorted(definition.own_names)
            its = f"Its variables: {_listed(own)}." if own else "It has no variables."
            read = [n for n in (*definition.globals_read, *definition.free_read) if not hasattr(builtins, n)]
            if "." in variable:
                own = sorted(definition.attributes)
                its = f"It sets: {_listed(own)}." if own else "It sets no attributes."
                what = f"{label} does not set '{variable}'."
                return function.wrong(what, _lines(its, did_you_mean(variable, own)))
            near = did_you_mean(variable, [*own, *read]) or elsewhere(variable)
            return function.wrong(f"{label} has no variable '{variable}'.", _lines(its, near))
    loops = {name: loop.line for loop in definition.loops for name in loop.names}
    for name in function.loops:
        if name not in loops:
            file = site.rpartition(":")[0]
            its = f"Its loops: {_listed(f'{n} ({file}:{line})' for n, line in loops.items())}."
            near = _or(f"#loop_{n}" for n in nearest(name, loops))
            what = f"{label} has no 'for' loop over '{name}'."
            return function.wrong(what, _lines(its if loops else "It has no 'for' loops.", near))
    if not definition.yields and ("#yield" in function.hashes or "#receive" in function.hashes):
        return function.wrong(f"{label} has no 'yield'.")
    return _unseen(function, definition, label)


def _unseen(function: ParsedFunction, definition: Function, label: str) -> SelectorError | None:
    """What is there, and cannot be probed."""
    try:
        visibility = visibility_of(definition.node)
    except RecursionError:  # an expression of a thousand terms, which python compiles from its text, and not from a tree
        return function.wrong(f"{label} {TOO_DEEP}")
    wanted = [capture.name for capture in function.captures if capture.name]
    foci = [] if function.is_total else [capture.name for capture in function.captures if capture.focus]
    problem = visibility.instrumenter.why_unobservable(wanted, foci, function.is_total, function.is_replaced)
    if problem:
        return function.wrong(f"{label} {problem}")
    for name in function.variables:
        if not visibility.is_assigned(name):
            inner = name in definition.globals_read or name in definition.free_read
            what = f"only reads '{name}', and something in it has a variable of that name" if inner else f"never sets '{name}'"
            return function.wrong(f"{label} {what}.")
    replaced = [c.name for c in function.captures if c.focus and c.name] if function.is_replaced else []
    for name in replaced:
        if not visibility.is_replaceable(name):
            return function.wrong(f"{label} does not set what is to be replaced: {name}.")
    return None


# In scope


def check_in_scope(function: ParsedFunction, scope: Mapping[str, Any], script: Catalogue | None = None, script_name: str = "") -> str:
    first, *rest = function.path
    if first not in scope:
        raise _not_in_scope(function, scope, script, script_name)
    thing = scope[first]
    for n, part in enumerate(rest):
        try:
            thing = getattr(thing, part)
        except Exception:  # a property of the user's object may raise anything
            holder = ".".join(function.path[: n + 1])
            raise function.wrong(f"'{holder}' has no '{part}'.", did_you_mean(part, dir(thing))) from None
    return check_function(function, thing)


def check_function(function: ParsedFunction, thing: object) -> str:
    """Make sure that a live object is a function that can be probed, and has what is captured in it.

    Args:
        thing: What its name stands for.

    Returns:
        ``main.py:12``, the place of the function.

    Raises:
        SelectorError: It is no Python function, or has no such variable.
    """
    bare = innermost(thing)
    if not isinstance(bare, types.FunctionType):
        raise function.wrong(f"'{function.reference}' {_not_a_function(bare)}")
    file, line = display_path(bare.__code__.co_filename), bare.__code__.co_firstlineno
    found = catalogue_of_function(bare)
    if found is None:
        raise function.wrong(f"'{function.reference}' ({file}:{line}) cannot be probed: its source is not there to read.")
    hint = ""
    if bare is thing and found.path[-1] != function.path[-1]:  # decorated, without functools.wraps
        hint = f"'{function.reference}' stands for {found.name}."
        hint += f"  What it decorates has an absolute reference, '//{'/'.join(function.path)}' or '/MODULE/...'."
    return _check_captures(function, [found], file, lambda variable: hint)


def _not_in_scope(function: ParsedFunction, scope: Mapping[str, Any], script: Catalogue | None, script_name: str) -> SelectorError:
    first = function.path[0]
    dotted = [f.name for f in script.functions] if script else []
    near = [name for name in dotted if name == function.reference] or nearest(function.reference, dotted)
    found = [f"'//{name.replace('.', '/')}' (a function of {script_name})" for name in dict.fromkeys(near)]
    callables = [name for name in scope if callable(scope[name])]
    next = f"Did you mean {' or '.join(found)}?" if found else did_you_mean(first, callables)
    return function.wrong(f"there is no '{first}' in scope{_of_file(function.where)}.", next)


def _not_a_function(thing: object) -> str:
    """What a thing is instead, never by its repr: that may be long, slow, or hold an address."""
    if isinstance(thing, type):
        methods = [name for name, value in vars(thing).items() if isinstance(innermost(value), types.FunctionType)]
        return f"is a class, not a function. Name one of its methods: {_listed(methods)}." if methods else "is a class."
    if isinstance(thing, functools.partial):
        inner = getattr(thing.func, "__qualname__", type(thing.func).__name__)
        return f"is a functools.partial, not a function. Probe what it calls: {inner}."
    if isinstance(thing, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        return "is written in C: only functions written in Python can be probed."
    if isinstance(thing, types.ModuleType):
        return "is a module, not a function."
    kind = type(thing).__name__
    if isinstance(getattr(type(thing), "__call__", None), types.FunctionType):  # noqa: B004 -- whether it is Python code
        return f"is an object ({kind}), not a function. Probe its method: {kind}.__call__."
    return f"is an object ({kind}), not a function."


def _check_scope_names(parsed: Parsed, scope: Mapping[str, Any]) -> None:
    """The names that conditions and tags use are in scope."""
    for name in (*parsed.names, *parsed.tags):
        first, *rest = name.split(".")
        if first in scope or hasattr(builtins, first) or (not rest and hasattr(tools, first)):
            continue
        what = f"there is no '{first}' in scope{_of_file(parsed.where)}."
        raise wrong(parsed.selector, parsed.where, what, did_you_mean(first, scope))
    for name in parsed.tags:
        first, *rest = name.split(".")
        value = scope.get(first)
        for part in rest:
            value = getattr(value, part, None)
        if not is_tag(value):
            raise wrong(parsed.selector, parsed.where, f"'{name}' is not a tag.", "A tag is written ':@Name'.")


# Words


def _of_file(where: str) -> str:
    file = where.rpartition(":")[0] or where
    return f" of {file}" if file else ""


def display_path(filename: str) -> str:
    """A file's name for messages: relative if it is in the current folder."""
    folder = os.getcwd() + os.sep
    return filename[len(folder) :] if filename.startswith(folder) else filename


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LONGEST_LIST} more" if len(names) > LONGEST_LIST else ""
    return ", ".join(names[:LONGEST_LIST]) + more


def _its(catalogue: Catalogue) -> str:
    paths = dict.fromkeys("/".join(f.path) for f in catalogue.functions)
    return f"Its functions: {_listed(paths)}." if paths else "It has no functions."


def _or(choices: Iterable[str]) -> str:
    shown = [repr(choice) for choice in choices][:3]
    return f"Did you mean {' or '.join(shown)}?" if shown else ""


def _lines(*parts: str) -> str:
    return "  ".join(part for part in parts if part)


LONGEST_CHAIN = 20  # of imports and bases; they can run in circles


@dataclass(frozen=True, slots=True)
class Named:
    """What a reference leads to: one of functions, class, variable, module without source; or nothing."""

    catalogue: Catalogue  # of the file that it stands in
    path: tuple[str, ...] = ()  # its path there; empty for a module. For nothing: the path up to the part that is not there.
    functions: tuple[Function, ...] = ()  # the definitions that can be the live one
    definition: ClassDefinition | None = None  # the class
    variable: Variable | None = None  # any other name
    sourceless: str = ""  # the module that has no Python source

    @property
    def is_there(self) -> bool:
        """Whether the reference leads to something."""
        return bool(not self.path or self.functions or self.definition or self.variable or self.sourceless)


def resolve(path: tuple[str, ...], catalogue: Catalogue, modules: Modules, depth: int = 0) -> Named | None:
    """What a path names in a file.

    Args:
        path: ``("Trainer", "run")``.
        modules: The catalogue of a module by name; None if it has no source, SelectorError if there is none.
        depth: How many imports and bases led here.

    Returns:
        None if it cannot be known without running.
    """
    found: Named | None = Named(catalogue)
    for part in path:
        if found is None or found.variable or found.sourceless or not found.is_there:
            return found
        found = _step(found, part, modules, depth)
    return found


def _step(owner: Named, part: str, modules: Modules, depth: int) -> Named | None:
    catalogue, path = owner.catalogue, (*owner.path, part)
    if functions := catalogue.candidates(path):
        return Named(catalogue, path, functions=tuple(functions))
    if definition := catalogue.find_class(path):
        return Named(catalogue, path, definition=definition)
    if depth > LONGEST_CHAIN:
        return None
    if owner.definition:
        return _inherited(owner, owner.definition, part, modules, depth)
    if owner.functions:
        return Named(catalogue, path)
    return _in_module(catalogue, part, modules, depth)


def _in_module(catalogue: Catalogue, part: str, modules: Modules, depth: int) -> Named | None:
    variable = catalogue.names.get(part)
    if variable is not None:
        if variable.origin is None:
            return Named(catalogue, (part,), variable=variable)
        module, name = variable.origin
        module = _absolute_module(module, catalogue)
        if name and module == catalogue.module:  # a package that imports from itself means its submodules
            module, name = f"{module}.{name}", ""
        home = _named_module(module, catalogue, modules)
        return resolve((name,), home.catalogue, modules, depth + 1) if name and home and not home.sourceless else home
    certain = True
    for star in catalogue.star_imports:
        home = _named_module(_absolute_module(star, catalogue), catalogue, modules)
        if home is None or home.sourceless:
            certain = certain and home is not None
            continue
        found = resolve((part,), home.catalogue, modules, depth + 1)
        if found is not None and found.is_there:
            return found
        certain = certain and found is not None
    if catalogue.module and os.path.basename(catalogue.filename) == "__init__.py":
        submodule = _named_module(f"{catalogue.module}.{part}", catalogue, modules)
        if submodule is not None:
            return submodule
    return Named(catalogue, (part,)) if certain else None


def _inherited(owner: Named, definition: ClassDefinition, part: str, modules: Modules, depth: int) -> Named | None:
    if part in definition.names:
        return Named(owner.catalogue, (*owner.path, part), variable=definition.names[part])
    certain = True
    for base in definition.bases:
        parent = resolve(tuple(base.split(".")), owner.catalogue, modules, depth + 1) if base else None
        if parent is not None and parent.definition:
            found = _step(parent, part, modules, depth + 1)
            if found is not None and found.is_there:
                return found
            certain = certain and found is not None
        elif parent is None or not (parent.sourceless or hasattr(builtins, base)):  # those hold no Python function
            certain = False
    return Named(owner.catalogue, (*owner.path, part)) if certain else None


def _absolute_module(module: str, catalogue: Catalogue) -> str:
    """The full name of a module that may be written with leading dots; ``""`` if its package is not known."""
    name = module.lstrip(".")
    up = len(module) - len(name)
    if not up:
        return name
    package = catalogue.module.split(".") if catalogue.module else []
    up -= os.path.basename(catalogue.filename) == "__init__.py"
    package = package[: len(package) - up]
    return ".".join([*package, name] if name else package) if package else ""


def _named_module(name: str, catalogue: Catalogue, modules: Modules) -> Named | None:
    if not name:
        return None
    try:
        found = modules(name)
    except (SelectorError, SyntaxError, OSError):
        return None
    return Named(found) if found is not None else Named(catalogue, sourceless=name)
