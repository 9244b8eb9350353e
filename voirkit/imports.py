"""Import hooks: call back when a module has been imported, or change its code before it runs.

The hooks import nothing themselves. wrapt has callbacks for imports too, but takes 85 ms of CPU
time to import (2.0 on Python 3.11): more than everything else that a plain run loads.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import _bootstrap, _bootstrap_external

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType, ModuleType
    from typing import Any


class PatchPoint:
    """A function of a library that voirkit replaces, or that calls voirkit.

    ``PATCH_POINTS`` of a module lists the functions that this module changes itself; all others are
    in a table of ``voirkit.intercept.Patches``.

    Attributes:
        module: Full name of the library's module that has the function.
        path: Name of the function in that module, such as ``Class.method``. Several names are
            separated by ``|``: each version of the library has one of them.
        checked: Versions of the library for which a check found the function and its parameters:
            ``torch 2.1 to 2.15``.
        parameters: Names of the parameters that the patch needs.
    """

    __slots__ = ("checked", "module", "parameters", "path")

    def __init__(
        self, module: str, path: str, checked: str, parameters: tuple[str, ...] = ()
    ) -> None:
        self.module = module
        self.path = path
        self.checked = checked
        self.parameters = parameters


class Watcher:
    """Base class of objects that watch the execution of a module.

    A subclass overrides the methods that it needs. They must not raise.
    """

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Return code to run in place of the loader's, or None to run the loader's."""
        return None

    def ran(self, module: ModuleType) -> None:
        """Handle a module that has just been executed: imported, or reloaded."""


# the function with which Python's own loaders execute code
_run: Any = _bootstrap._call_with_frames_removed  # type: ignore[attr-defined]
_watchers: dict[str, list[Watcher]] = {}
_below: dict[str, list[Watcher]] = {}  # watchers of whole packages, by top-level name


def watch(name: str, watcher: Watcher) -> None:
    """Call a watcher whenever a module is executed from now on.

    The call is made in the thread that imports the module, before the import statement returns.
    """
    _watchers.setdefault(name, []).append(watcher)
    _install()


def unwatch(name: str, watcher: Watcher) -> None:
    """Stop calling a watcher about a module."""
    remaining = [other for other in _watchers.get(name, ()) if other is not watcher]
    if remaining:
        _watchers[name] = remaining
    else:
        _watchers.pop(name, None)
    _remove_unused()


def watch_below(package: str, watcher: Watcher) -> None:
    """Call a watcher whenever a package, or a module inside it, is executed from now on."""
    _below.setdefault(package, []).append(watcher)
    _install()


def unwatch_below(package: str, watcher: Watcher) -> None:
    """Stop calling a watcher about a package and the modules inside it."""
    _below[package] = [other for other in _below.get(package, ()) if other is not watcher]
    if not _below[package]:
        del _below[package]
    _remove_unused()


def _install() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _remove_unused() -> None:
    if not _watchers and not _below and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _watchers_of(name: str) -> list[Watcher]:
    """Return the watchers of a module and of its top-level package."""
    watchers = list(_watchers.get(name, ()))
    if _below:
        watchers += _below.get(name.partition(".")[0], ())
    return watchers


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call the callback once with a module: after its import, or now if it is already imported.

    The callback must not raise.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None or getattr(spec, "_initializing", False):
        watch(name, _ImportCallback(callback))
    else:
        callback(module)


class _ImportCallback(Watcher):
    """Watcher that calls its callback once, after the import."""

    def __init__(self, callback: Callable[[ModuleType], None]) -> None:
        self._callback = callback

    def ran(self, module: ModuleType) -> None:
        unwatch(module.__name__, self)
        self._callback(module)


class _Loader:
    """Wrapper of a module's own loader that also calls the module's watchers."""

    def __init__(self, loader: Any, spec: ModuleSpec) -> None:
        self._loader = loader
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]  # loader is Any

    def get_code(self, name: str) -> CodeType | None:
        """Return a module's code.

        runpy executes the code itself: it gets the code of a watcher, if there is any.
        """
        code: CodeType | None = None
        if sys._getframe(1).f_globals.get("__name__") == "runpy":
            self._spec.loader = self._loader
            code = self._code_of_watcher(name)
        return code if code is not None else self._loader.get_code(name)

    def _code_of_watcher(self, name: str) -> CodeType | None:
        for watcher in _watchers_of(name):
            code = watcher.code(self._loader, name)
            if code is not None:
                return code
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The module must not notice this wrapper: restore its own loader before its code runs.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        code = self._code_of_watcher(module.__name__)
        if code is None:
            self._loader.exec_module(module)
        else:
            _run(exec, code, module.__dict__)
        for watcher in _watchers_of(module.__name__):
            watcher.ran(module)


def as_importlib(code: CodeType) -> CodeType:
    """Return a copy of the code that looks like Python's own loader in tracebacks.

    Python leaves frames of its loader out of most tracebacks, and shows them in the others.
    """
    loader_basics: Any = _bootstrap_external._LoaderBasics  # type: ignore[attr-defined]
    python_own = loader_basics.exec_module.__code__
    line = max(line for _, _, line in python_own.co_lines() if line is not None)
    size = len(code.co_code)
    if sys.version_info >= (3, 11):
        # The table of line numbers has an entry for each 8 instructions: of kind "no columns" (13),
        # and with a line number that advances by 0.
        n_instructions = size // 2
        lengths = [min(8, n_instructions - start) for start in range(0, n_instructions, 8)]
        entries = [(0x80 | 13 << 3 | length - 1, 0) for length in lengths]
    else:
        # The table has an entry for each 254 bytes, with a line number that advances by 0.
        entries = [(min(254, size - start), 0) for start in range(0, size, 254)]
    table = b"".join(map(bytes, entries))
    return code.replace(co_filename=python_own.co_filename, co_firstlineno=line, co_linetable=table)


_Loader.exec_module.__code__ = as_importlib(_Loader.exec_module.__code__)


def _is_loading(name: str, frame: FrameType | None) -> bool:
    """True if Python looks up a module in order to import, reload or run it.

    Code that only looks up the module must get the module's own loader.
    """
    while frame is not None and frame.f_code.co_name != "_call_with_frames_removed":
        code = frame.f_code
        is_import = code.co_name in ("_find_and_load_unlocked", "reload")
        if is_import and "importlib" in code.co_filename:
            return bool(frame.f_locals.get("name") == name)
        is_run = code.co_name == "_get_module_details"
        if is_run and frame.f_globals.get("__name__") == "runpy":
            return bool(frame.f_locals.get("mod_name") == name)
        frame = frame.f_back
    return False


class _Finder:
    """First finder in ``sys.meta_path``, which wraps the loaders of watched modules.

    It finds no modules itself, but asks the other finders.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_watched = name in _watchers or (_below and name.partition(".")[0] in _below)
        if not is_watched or not _is_loading(name, sys._getframe(1)):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        loader: Any = _Loader(spec.loader, spec)  # Any: not a subclass of Loader
                        spec.loader = loader
                    return spec
        return None


_finder: Any = _Finder()


class quiet:
    """Context manager that suppresses the compiler's warnings about a file compiled again.

    ``warnings.catch_warnings`` would make Python forget which warnings it has already shown, so
    that the program's own warnings would be shown a second time.
    """

    def __init__(self, filename: str) -> None:
        import re

        stem = os.path.splitext(filename)[0]
        module = re.compile(re.escape(stem) + r"(\.\w+)?\Z")
        self._filter: Any = ("ignore", None, Warning, module, 0)

    def __enter__(self) -> None:
        filters: Any = warnings.filters
        self._filters = filters  # kept: another thread may replace warnings.filters meanwhile
        self._filters.insert(0, self._filter)

    def __exit__(self, *raised: object) -> None:
        self._filters.remove(self._filter)
