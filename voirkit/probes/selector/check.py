"""Checks before a run that the functions, variables and loops named in selectors exist.

Errors are reported in the user's words, with the nearest correct name. References are followed
through imports and base classes in the sources; no code of the script is ever run.
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

LONGEST_LIST = 20  # maximum number of names in a message


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
    """Check that the functions and captures that a selector names exist.

    Args:
        script: Catalogue of the script; None if there is no script.
        script_name: The script's name for messages.
        scope: The values of plain names, builtins included; None leaves plain names unchecked.
        modules: Finds the catalogue of a module; None leaves other modules unchecked.
        probe_type: ``"immediate"``, ``"total"`` or None, as in ``Probe``.
        overridable: True if the probe may replace the value that the focus is set to.

    Returns:
        The place of the function that makes the events, ``main.py:12``; None if it cannot be known
        yet.

    Raises:
        SelectorError: A function, variable, loop or name does not exist, or cannot be observed.
    """
    site: str | None = None
    for named in parsed.functions:
        is_total = named.is_total
        if probe_type is not None:
            is_total = probe_type == "total" and named is parsed.functions[0]
        function = replace(named, is_total=is_total, is_replaced=overridable)
        place: str | None = None
        if function.module is not None:
            place = _check_absolute(function, script, script_name, modules)
        elif scope is not None:
            place = check_in_scope(function, scope, script, script_name)
        if named is parsed.focus:
            site = place
    if scope is not None:
        _check_scope_names(parsed, scope)
    return site


def _check_absolute(
    function: ParsedFunction, script: Catalogue | None, script_name: str, modules: Modules | None
) -> str | None:
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
    named = resolve(function.path, home, catalogue_of)
    if named is None:
        return None
    catalogue = named.catalogue
    name = script_name if catalogue is script else display_path(catalogue.filename)
    if not named.functions:
        raise _no_function(function, named, name)
    return _check_captures(
        function, named.functions, name, lambda variable: _elsewhere(variable, catalogue)
    )


def _home(
    function: ParsedFunction, modules: Modules, script: Catalogue | None, script_name: str
) -> Catalogue:
    """Return the catalogue of the module of an absolute reference."""
    assert function.module  # the caller has checked this
    path = "/".join(function.path)
    try:
        home = modules(function.module)
    except SelectorError as error:
        near = ""
        if script and script.find_class((function.module,)):
            near = _or([f"//{function.module}/{path}"])
        raise function.wrong(error.what, _lines(error.next, near)) from None
    except SyntaxError as error:
        raise function.wrong(
            f"the source of '{function.module}' cannot be read: {error}."
        ) from None
    if home is None:
        raise function.wrong(
            f"'{function.module}' has no Python source, so that nothing in it can be probed."
        )
    if script is not None and os.path.realpath(home.filename) == os.path.realpath(script.filename):
        problem = (
            f"'/{function.module}/' would import {script_name} a second time, beside the running"
            " script."
        )
        raise function.wrong(problem, f"Write '//{path}'.")
    return home


def _no_function(function: ParsedFunction, named: Named, name: str) -> SelectorError:
    """Return the error for a reference that leads to no function.

    It says what the reference leads to instead, and names similar functions.
    """
    catalogue = named.catalogue
    label = ".".join(named.path)
    prefix = f"/{catalogue.module}/"
    if named.sourceless:
        problem = (
            f"'{function.reference}' is imported from '{named.sourceless}', which has no Python"
            " source."
        )
        return function.wrong(problem, "Only functions written in Python can be probed.")
    if not named.path:
        return function.wrong(f"'{function.reference}' is a module, not a function.")
    if named.definition:
        problem = f"{label} ({name}:{named.definition.line}) is a class, not a function."
        return function.wrong(problem, _methods_of(named, prefix))
    if named.variable:
        problem = f"{label} ({name}:{named.variable.line}) is not a function."
        its_functions = "" if catalogue.module else _its(catalogue)
        return function.wrong(problem, _lines(its_functions, _near(function, catalogue, prefix)))
    owner = named.path[:-1]
    outer = catalogue.find(owner) or catalogue.find_class(owner)
    if outer:
        return _not_in_owner(function, named, f"{'.'.join(owner)} ({name}:{outer.line})")
    problem = f"{name} has no function '{'/'.join(function.path)}'."
    return function.wrong(problem, _lines(_its(catalogue), _near(function, catalogue, prefix)))


def _methods_of(named: Named, prefix: str) -> str:
    names = named.catalogue.inside(named.path)
    if not names:
        return "It has no methods of its own."
    methods = [prefix + "/".join([*named.path, name]) for name in names]
    return f"Name one of its methods: {_listed(methods)}."


def _not_in_owner(function: ParsedFunction, named: Named, label: str) -> SelectorError:
    """Return the error for a class or function that lacks the named method or inner function."""
    catalogue = named.catalogue
    prefix = f"/{catalogue.module}/"
    *owner, last = named.path
    kind = "method" if catalogue.find_class(tuple(owner)) else "inner function"
    names = catalogue.inside(tuple(owner))
    its = f"Its {kind}s: {_listed(names)}." if names else f"It has no {kind}s."
    near = _or(prefix + "/".join([*owner, name]) for name in nearest(last, names))
    if not near:
        near = _near(function, catalogue, prefix)
    return function.wrong(f"{label} has no {kind} '{last}'.", _lines(its, near))


def _near(function: ParsedFunction, catalogue: Catalogue, prefix: str) -> str:
    paths = ["/".join(defined.path) for defined in catalogue.functions]
    choices = [path for path in paths if path.endswith(f"/{function.path[-1]}")]
    if not choices:
        choices = nearest("/".join(function.path), paths)
    return _or(f"{prefix}{path}" for path in dict.fromkeys(choices))


def _elsewhere(variable: str, catalogue: Catalogue) -> str:
    """Return a hint that lists the functions of the file that have a variable; empty for none."""
    functions = [function for function in catalogue.functions if variable in function.own_names]
    paths = dict.fromkeys("/".join(function.path) for function in functions)
    selectors = [f"'/{catalogue.module}/{path} > {variable}'" for path in paths]
    return f"It is a variable of another function: {_listed(selectors)}." if selectors else ""


def _check_captures(
    function: ParsedFunction,
    definitions: Iterable[Function],
    name: str,
    elsewhere: Callable[[str], str],
) -> str:
    """Return the place of the first definition that has everything the selector captures.

    Raises:
        SelectorError: No definition has them; the error is the first fault of the last one.
    """
    problem = None
    for definition in definitions:
        site = f"{name}:{definition.line}"
        problem = _problem(function, definition, site, elsewhere)
        if problem is None:
            return site
    assert problem is not None  # there is at least one definition
    raise problem


def _problem(
    function: ParsedFunction, definition: Function, site: str, elsewhere: Callable[[str], str]
) -> SelectorError | None:
    file = site.rpartition(":")[0]
    label = f"the top level of {file}" if function.is_top else f"{definition.name} ({site})"
    for variable in function.variables:
        is_known = (
            variable in definition.attributes
            or definition.knows(variable)
            or variable in definition.comprehension_variables
        )
        if not is_known:
            return _no_variable(function, definition, variable, label, elsewhere)
    problem = _missing_loop(function, definition, file, label)
    if problem is not None:
        return problem
    if not definition.yields and ("#yield" in function.hashes or "#receive" in function.hashes):
        return function.wrong(f"{label} has no 'yield'.")
    return _unobservable(function, definition, label)


def _missing_loop(
    function: ParsedFunction, definition: Function, file: str, label: str
) -> SelectorError | None:
    loops = {name: loop.line for loop in definition.loops for name in loop.names}
    for name in function.loops:
        if name not in loops:
            listed = _listed(f"{loop} ({file}:{line})" for loop, line in loops.items())
            its = f"Its loops: {listed}." if loops else "It has no 'for' loops."
            near = _or(f"#loop_{loop}" for loop in nearest(name, loops))
            problem = f"{label} has no 'for' loop over '{name}'."
            return function.wrong(problem, _lines(its, near))
    return None


def _no_variable(
    function: ParsedFunction,
    definition: Function,
    variable: str,
    label: str,
    elsewhere: Callable[[str], str],
) -> SelectorError:
    if "." in variable:
        attributes = sorted(definition.attributes)
        its = f"It sets: {_listed(attributes)}." if attributes else "It sets no attributes."
        near = did_you_mean(variable, attributes)
        return function.wrong(f"{label} does not set '{variable}'.", _lines(its, near))
    names = sorted(definition.own_names)
    its = f"Its variables: {_listed(names)}." if names else "It has no variables."
    names += [
        name
        for name in (*definition.globals_read, *definition.free_read)
        if not hasattr(builtins, name)
    ]
    near = did_you_mean(variable, names) or elsewhere(variable)
    return function.wrong(f"{label} has no variable '{variable}'.", _lines(its, near))


def _unobservable(
    function: ParsedFunction, definition: Function, label: str
) -> SelectorError | None:
    """Return the error for captures that exist but cannot be probed; None without any."""
    try:
        visibility = visibility_of(definition.node)
    except RecursionError:
        # for instance an expression of a thousand terms, which Python can compile from source text,
        # but not from a syntax tree
        return function.wrong(f"{label} {TOO_DEEP}")
    captured = [capture.name for capture in function.captures if capture.name]
    focused = [capture.name for capture in function.captures if capture.focus]
    foci = [] if function.is_total else focused
    problem = visibility.instrumenter.why_unobservable(
        captured, foci, function.is_total, function.is_replaced
    )
    if problem:
        return function.wrong(f"{label} {problem}")
    for name in function.variables:
        if not visibility.is_assigned(name):
            return function.wrong(f"{label} {_why_unassigned(name, definition)}.")
    if function.is_replaced:
        for name in focused:
            if name and not visibility.is_replaceable(name):
                return function.wrong(f"{label} does not set what is to be replaced: {name}.")
    return None


def _why_unassigned(name: str, definition: Function) -> str:
    if name in definition.globals_read or name in definition.free_read:
        return f"only reads '{name}', and something in it has a variable of that name"
    return f"never sets '{name}'"


# Names in scope


def check_in_scope(
    function: ParsedFunction,
    scope: Mapping[str, Any],
    script: Catalogue | None = None,
    script_name: str = "",
) -> str:
    first, *attributes = function.path
    if first not in scope:
        raise _not_in_scope(function, scope, script, script_name)
    thing = scope[first]
    for index, part in enumerate(attributes):
        try:
            thing = getattr(thing, part)
        except Exception:  # a property of the user's object may raise anything
            holder = ".".join(function.path[: index + 1])
            raise function.wrong(
                f"'{holder}' has no '{part}'.", did_you_mean(part, dir(thing))
            ) from None
    return check_function(function, thing)


def check_function(function: ParsedFunction, thing: object) -> str:
    """Check that a live object is a function that can be probed, and has everything captured in it.

    Args:
        thing: The object that the selector's name refers to.

    Returns:
        The place of the function, ``main.py:12``.

    Raises:
        SelectorError: The object is not a Python function, or lacks something that is captured.
    """
    bare = innermost(thing)
    if not isinstance(bare, types.FunctionType):
        raise function.wrong(f"'{function.reference}' {_not_a_function(bare)}")
    file = display_path(bare.__code__.co_filename)
    definition = catalogue_of_function(bare)
    if definition is None:
        line = bare.__code__.co_firstlineno
        raise function.wrong(
            f"'{function.reference}' ({file}:{line}) cannot be probed: its source is not there to"
            " read."
        )
    hint = ""
    # the function has another name than the selector: its decorator does not use functools.wraps
    if bare is thing and definition.path[-1] != function.path[-1]:
        hint = f"'{function.reference}' stands for {definition.name}."
        hint += (
            f"  What it decorates has an absolute reference, '//{'/'.join(function.path)}' or"
            " '/MODULE/...'."
        )
    return _check_captures(function, [definition], file, lambda variable: hint)


def _not_in_scope(
    function: ParsedFunction, scope: Mapping[str, Any], script: Catalogue | None, script_name: str
) -> SelectorError:
    first = function.path[0]
    names = [defined.name for defined in script.functions] if script else []
    near = [name for name in names if name == function.reference]
    if not near:
        near = nearest(function.reference, names)
    references = [f"'//{name.replace('.', '/')}'" for name in dict.fromkeys(near)]
    if references:
        choices = [f"{choice} (a function of {script_name})" for choice in references]
        next = f"Did you mean {' or '.join(choices)}?"
    else:
        next = did_you_mean(first, [name for name in scope if callable(scope[name])])
    return function.wrong(f"there is no '{first}' in scope{_of_file(function.where)}.", next)


def _not_a_function(thing: object) -> str:
    """Return a description of an object that is not a function.

    Its repr is never used: it may be long, slow, or contain an address.
    """
    if isinstance(thing, type):
        methods = [
            name
            for name, value in vars(thing).items()
            if isinstance(innermost(value), types.FunctionType)
        ]
        if not methods:
            return "is a class."
        return f"is a class, not a function. Name one of its methods: {_listed(methods)}."
    if isinstance(thing, functools.partial):
        inner = getattr(thing.func, "__qualname__", type(thing.func).__name__)
        return f"is a functools.partial, not a function. Probe what it calls: {inner}."
    if isinstance(
        thing, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
    ):
        return "is written in C: only functions written in Python can be probed."
    if isinstance(thing, types.ModuleType):
        return "is a module, not a function."
    kind = type(thing).__name__
    call = getattr(type(thing), "__call__", None)  # noqa: B004 -- to see if it is Python code
    if isinstance(call, types.FunctionType):
        return f"is an object ({kind}), not a function. Probe its method: {kind}.__call__."
    return f"is an object ({kind}), not a function."


def _check_scope_names(parsed: Parsed, scope: Mapping[str, Any]) -> None:
    """Raise SelectorError if a name in a condition or tag is not in scope, or a tag is not one."""
    for name in (*parsed.names, *parsed.tags):
        first, *attributes = name.split(".")
        if first in scope or hasattr(builtins, first):
            continue
        if not attributes and hasattr(tools, first):
            continue
        problem = f"there is no '{first}' in scope{_of_file(parsed.where)}."
        raise wrong(parsed.selector, parsed.where, problem, did_you_mean(first, scope))
    for name in parsed.tags:
        first, *attributes = name.split(".")
        value = scope.get(first)
        for attribute in attributes:
            value = getattr(value, attribute, None)
        if not is_tag(value):
            problem = f"'{name}' is not a tag."
            raise wrong(parsed.selector, parsed.where, problem, "A tag is written ':@Name'.")


# Texts for messages


def _of_file(where: str) -> str:
    file = where.rpartition(":")[0] or where
    return f" of {file}" if file else ""


def display_path(filename: str) -> str:
    """Return a file's name for messages: relative if the file is in the current folder."""
    folder = os.getcwd() + os.sep
    return filename[len(folder) :] if filename.startswith(folder) else filename


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LONGEST_LIST} more" if len(names) > LONGEST_LIST else ""
    return ", ".join(names[:LONGEST_LIST]) + more


def _its(catalogue: Catalogue) -> str:
    paths = dict.fromkeys("/".join(function.path) for function in catalogue.functions)
    return f"Its functions: {_listed(paths)}." if paths else "It has no functions."


def _or(choices: Iterable[str]) -> str:
    first_three = [repr(choice) for choice in choices][:3]
    return f"Did you mean {' or '.join(first_three)}?" if first_three else ""


def _lines(*parts: str) -> str:
    return "  ".join(part for part in parts if part)


LONGEST_CHAIN = 20  # maximum number of imports and bases followed; imports can be circular


@dataclass(frozen=True, slots=True)
class Named:
    """The target of a reference: functions, a class, a variable, a module without source, or
    nothing."""

    catalogue: Catalogue  # catalogue of the file that has the target
    # path of the target in the file, empty for a module; without a target, the path up to the first
    # name that does not exist
    path: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()  # the definitions that may be the live one
    definition: ClassDefinition | None = None  # the target, if it is a class
    variable: Variable | None = None  # the target, if it is neither a function nor a class
    sourceless: str = ""  # name of the module, if it has no Python source

    @property
    def is_there(self) -> bool:
        """True if the reference leads to something."""
        if not self.path or self.functions or self.sourceless:
            return True
        return self.definition is not None or self.variable is not None


def resolve(
    path: tuple[str, ...], catalogue: Catalogue, modules: Modules, depth: int = 0
) -> Named | None:
    """Find the target of a path in a file.

    Args:
        path: ``("Trainer", "run")``.
        modules: Returns the catalogue of a module by name, or None if the module has no source.
            Raises SelectorError if there is no such module.
        depth: Number of imports and bases followed so far.

    Returns:
        The target; None if it cannot be known without running the code.
    """
    named: Named | None = Named(catalogue)
    for part in path:
        if named is None or named.variable or named.sourceless or not named.is_there:
            return named
        named = _step(named, part, modules, depth)
    return named


def _step(owner: Named, part: str, modules: Modules, depth: int) -> Named | None:
    catalogue = owner.catalogue
    path = (*owner.path, part)
    functions = catalogue.candidates(path)
    if functions:
        return Named(catalogue, path, functions=tuple(functions))
    definition = catalogue.find_class(path)
    if definition:
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
    if variable is None:
        return _star_imported(catalogue, part, modules, depth)
    if variable.origin is None:
        return Named(catalogue, (part,), variable=variable)
    module, name = variable.origin
    module = _absolute_module(module, catalogue)
    # a package that imports a name from itself imports its submodule of that name
    if name and module == catalogue.module:
        module = f"{module}.{name}"
        name = ""
    home = _named_module(module, catalogue, modules)
    if not name or home is None or home.sourceless:
        return home
    return resolve((name,), home.catalogue, modules, depth + 1)


def _star_imported(catalogue: Catalogue, part: str, modules: Modules, depth: int) -> Named | None:
    """Return the target of a name that may come from ``from module import *`` or be a submodule;
    None if it cannot be known."""
    is_certain = True
    for star in catalogue.star_imports:
        home = _named_module(_absolute_module(star, catalogue), catalogue, modules)
        if home is None:
            is_certain = False
        elif not home.sourceless:
            named = resolve((part,), home.catalogue, modules, depth + 1)
            if named is None:
                is_certain = False
            elif named.is_there:
                return named
    if catalogue.module and os.path.basename(catalogue.filename) == "__init__.py":
        submodule = _named_module(f"{catalogue.module}.{part}", catalogue, modules)
        if submodule is not None:
            return submodule
    return Named(catalogue, (part,)) if is_certain else None


def _inherited(
    owner: Named, definition: ClassDefinition, part: str, modules: Modules, depth: int
) -> Named | None:
    if part in definition.names:
        return Named(owner.catalogue, (*owner.path, part), variable=definition.names[part])
    is_certain = True
    for base in definition.bases:
        parent = None
        if base:
            parent = resolve(tuple(base.split(".")), owner.catalogue, modules, depth + 1)
        if parent is None:
            is_certain = False
        elif parent.definition:
            named = _step(parent, part, modules, depth + 1)
            if named is None:
                is_certain = False
            elif named.is_there:
                return named
        elif not parent.sourceless and not hasattr(builtins, base):
            is_certain = False  # sourceless modules and builtins have no Python functions
    return Named(owner.catalogue, (*owner.path, part)) if is_certain else None


def _absolute_module(module: str, catalogue: Catalogue) -> str:
    """Return the full name of a module that may be written with leading dots; ``""`` if its package
    is not known."""
    name = module.lstrip(".")
    levels = len(module) - len(name)
    if not levels:
        return name
    if os.path.basename(catalogue.filename) == "__init__.py":
        levels -= 1
    package = catalogue.module.split(".") if catalogue.module else []
    package = package[: len(package) - levels]
    if not package:
        return ""
    return ".".join([*package, name] if name else package)


def _named_module(name: str, catalogue: Catalogue, modules: Modules) -> Named | None:
    if not name:
        return None
    try:
        home = modules(name)
    except (SelectorError, SyntaxError, OSError):
        return None
    return Named(home) if home is not None else Named(catalogue, sourceless=name)
