"""Extensions of voirkit by installed packages: instruments, and aliases of modules.

They are entry points of the groups ``voirkit.instruments`` and ``voirkit.aliases``.

An alias lets scripts run that were written for a package that is not installed: ``import dftracer``
and ``import voir`` then import voirkit's names. A package adds aliases by an entry point, with the
name of the missing package and ``module:table``. The table maps each module of that package to the
``homes`` of ``_TableLoader``.

Every run imports this module. Reports get the installed instruments from it; each instrument knows
its own part of a report (``voirkit.instrument``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

from voirkit.instrument import Instrument, resolve
from voirkit.processes import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, TypeAlias

    Packages: TypeAlias = list[tuple[str, str]]

GROUP = "voirkit.instruments"


@cache
def installed_instruments() -> list[Instrument]:
    """Return the ``Instrument`` objects of installed packages, in the order of reports. A package
    that cannot be imported is left out: the run has already reported it."""
    instruments: list[Instrument] = []
    for _, _, reference in entry_points(GROUP):
        try:
            value = resolve(reference)
        except Exception:  # a package may raise anything; the run reports it
            continue
        instruments += [item for _, item in flat("", value) if isinstance(item, Instrument)]
    return instruments


def parts_of_summary() -> dict[str, type]:
    """Return the keys that instruments add to ``summary.json``, each with the type of its value if
    the value is not null."""
    return {
        key: kind
        for instrument in installed_instruments()
        for key, kind in instrument.parts.items()
    }


def flat(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (label, value) for each value in nested lists and mappings. The label is ``label`` and
    the keys and indices that lead to the value, such as ``['a'][0]``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(f"{label}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from flat(f"{label}[{i}]", item)
    else:
        yield label, value


def entry_points(group: str, packages: Packages | None = None) -> list[tuple[str, str, str]]:
    """Return (distribution, name, reference) of each entry point of a group. ``packages``: the
    result of ``installed_packages``; None to call it."""
    entries: dict[tuple[str, str], tuple[str, str, str]] = {}
    for distribution, text in installed_packages() if packages is None else packages:
        for name, reference in _section(text, group):
            entries.setdefault((distribution, name), (distribution, name, reference))
    return list(entries.values())


def installed_packages() -> Packages:
    """Return (distribution, text of its ``entry_points.txt``) for each installed package with entry
    points for voirkit.

    This function reads the files that the packaging standard prescribes (packaging.python.org,
    "Entry points specification"), which takes 1 ms. importlib.metadata takes 46 ms to import and to
    search an environment with torch.
    """
    packages: Packages = []
    seen: set[str] = set()
    for folder in sys.path:
        try:
            names = [
                n for n in os.listdir(folder or ".") if n.endswith((".dist-info", ".egg-info"))
            ]
        except OSError:
            continue
        for distribution in sorted(names):
            package = distribution.split("-")[0].lower()
            if package in seen:
                continue  # Python imports the package that is first on the path
            seen.add(package)
            try:
                with open(
                    os.path.join(folder, distribution, "entry_points.txt"), encoding="utf-8"
                ) as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if "[voirkit." in text:
                packages.append((package, text))
    return packages


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line and not line.startswith(("#", ";")):
            name, _, reference = line.partition("=")
            yield name.strip(), reference.split("[")[0].strip()


# Aliases: voirkit's modules under the names of packages that are not installed. The finders are
# last in ``sys.meta_path`` and find only the listed modules, so that a module which Python finds
# elsewhere takes precedence.

ALIASES = "voirkit.aliases"
VERSION = "2.2.0"  # the version of DFTracer that has the names in ``voirkit.dftracer``
_OFFER = "voirkit.plugins:install_aliases"
_DFTRACER = "voirkit.dftracer"
# The modules of DFTracer 2.x, and of 1.0.x, where `dftracer.logger` was a package.
_DFTRACER_MODULES = (
    "dftracer.dftracer",
    "dftracer.logger",
    "dftracer.python",
    "dftracer.python.ai",
    "dftracer.python.ai_common",
    "dftracer.python.ai_init",
    "dftracer.python.common",
    "dftracer.python.env",
    "dftracer.python.logger",
    "dftracer.python.dbg",
    "dftracer.python.dbg.ai",
    "dftracer.python.dbg.logger",
    "dftracer.dbg",
    "dftracer.dbg.logger",
    "dftracer.logger.ai",
    "dftracer.logger.logger",
)


class _DFTracerLoader:
    """Loader that fills a module of DFTracer with all names of ``voirkit.dftracer``."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name == "dftracer":
            module.__dict__["__version__"] = VERSION
            inherit.state.main_needs_offers = True
            return
        # Submodules are imported before the names are set: Python sets each submodule as an
        # attribute of its package, so that the submodule `ai` would replace voirkit's name `ai`.
        for below in sorted(_DFTRACER_MODULES):
            if below.rpartition(".")[0] == name:
                import_module(below)
        names = import_module(_DFTRACER)
        for word in names.__all__:
            module.__dict__[word] = getattr(names, word)
        module.__dict__.update(
            __all__=list(names.__all__), __getattr__=names.__getattr__, __doc__=names.__doc__
        )


class _TableLoader:
    """Loader of an alias: another name for an existing module, or a package whose names are looked
    up when they are first used.

    Args:
        homes: Name of the existing module; or for each name in the package, the module that has the
            name, or ``module:name``.
    """

    def __init__(self, homes: str | Mapping[str, str]) -> None:
        self._homes = homes

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        inherit.state.main_needs_offers = True
        homes = self._homes
        if isinstance(homes, str):
            # the import system returns the entry of sys.modules, not the module passed to this
            # method
            sys.modules[module.__name__] = import_module(homes)
            return

        def __getattr__(name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            home, _, attribute = homes[name].partition(":")
            value = getattr(import_module(home), attribute or name)
            module.__dict__[name] = value
            return value

        module.__dict__.update(__all__=list(homes), __getattr__=__getattr__)


class _Finder:
    """Finder of the alias modules of one package; last in ``sys.meta_path``.

    Args:
        table: ``module:name`` of the package's table, imported when the package is; empty for
            DFTracer, which needs no table.
    """

    def __init__(self, package: str, table: str = "") -> None:
        self.package, self.table = package, table

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        package = sys.modules.get(self.package)
        if package is not None and not isinstance(
            getattr(package.__spec__, "loader", None), (_DFTracerLoader, _TableLoader)
        ):
            return None  # the real package is installed
        loader = self._loader(name)
        if loader is None:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, loader, origin="voirkit", is_package=True)

    def _loader(self, name: str) -> Any:
        if not self.table:
            return _DFTracerLoader() if name == "dftracer" or name in _DFTRACER_MODULES else None
        module, _, attribute = self.table.partition(":")
        homes = getattr(import_module(module), attribute).get(name)
        return None if homes is None else _TableLoader(homes)


_finders: dict[str, Any] = {}


def install_aliases(tables: Iterable[tuple[str, str]] = ()) -> None:
    """Install the aliases in this process, and in processes that multiprocessing spawns.
    ``tables``: (package, ``module:name``) of each alias besides DFTracer's."""
    for package, table in (("dftracer", ""), *tables):
        if package not in _finders:
            _finders[package] = _Finder(package, table)
            sys.meta_path.append(_finders[package])
    inherit.watch(_OFFER, aliases_for_children, before_main=True)


def remove_aliases() -> None:
    """Remove the aliases; modules that have been imported stay."""
    for finder in _finders.values():
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    _finders.clear()
    inherit.unwatch(_OFFER)


def aliases_for_children() -> list[tuple[str, str]] | None:
    """Return the aliases that are installed in this process, for a child process; None without
    aliases."""
    return [(finder.package, finder.table) for finder in _finders.values()] or None
