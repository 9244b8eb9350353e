"""The engine behind probes: ptera 1.4.1, and nothing else of voirkit knows it.

What comes in: selectors, a scope and a function to call with each event. What goes out: an ``Engine`` that can be switched on and off.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ptera
from ptera import tag as tags
from ptera import tools
from ptera.utils import ABSENT, CodeNotFoundError

from voirkit.errors import SelectorError, did_you_mean
from voirkit.probes.scope import NotDefinedYet, follow


class Engine:
    """Watches the functions that selectors name.

    Args:
        selectors: One or more.
        scope: What the plain names in them stand for.
        emit: Called with each event, in the program.
        raw: Whether an event holds ptera's captures instead of values.
        probe_type: ``"immediate"``, ``"total"`` or None: by the selector.
        overridable: Whether ``value`` may be set while ``emit`` runs, to replace what the variable is set to.

    Attributes:
        value: What to set the focus variable to instead.

    Raises:
        NotDefinedYet: A function is not there yet.
        SelectorError: A name means nothing, or not a function.
    """

    def __init__(
        self,
        selectors: Sequence[str],
        scope: Mapping[str, Any],
        emit: Callable[[Any], None],
        *,
        raw: bool,
        probe_type: str | None,
        overridable: bool,
        where: str,
    ) -> None:
        self._where = where
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # looking for functions touches deprecated attributes (torch.distributed)
                self._probe = ptera.probing(
                    *selectors, raw=raw, probe_type=probe_type, overridable=overridable, env=_Resolver(scope, where)
                )
        except (NotDefinedYet, SelectorError):
            raise
        except Exception as exc:
            raise self._wrong(selectors, exc) from None
        self._probe._push = emit
        self._on = False
        self._selectors = selectors

    def set_value(self, value: Any) -> None:
        """Replace what the focus variable is being set to; only while ``emit`` runs, and if the probe is overridable."""
        self._probe._value = value

    def on(self) -> None:
        """Start watching.

        Raises:
            SelectorError: A function can not be watched, or has no such variable.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._probe.__enter__()
        except Exception as exc:
            try:
                self._probe._uninstall_tooling()  # ptera leaves the functions changed
            except Exception:  # what was not installed can not be taken out
                pass
            raise self._wrong(self._selectors, exc) from None
        self._on = True

    def off(self) -> None:
        """Stop watching."""
        if self._on:
            self._on = False
            try:
                self._probe.__exit__(None, None, None)
            except ValueError:  # left in another thread than it was entered in (ContextVar)
                self._probe._uninstall_tooling()

    def _wrong(self, selectors: Sequence[str], exc: Exception) -> SelectorError:
        text = str(exc).split(": ", 1)[-1] if isinstance(exc, ptera.SelectorError) else f"{exc}" or type(exc).__name__
        return SelectorError(f"selector {', '.join(map(repr, selectors))}: {text}.".replace("..", "."), where=self._where)


class _Resolver:
    """What ptera asks for the meaning of names in selectors."""

    def __init__(self, scope: Mapping[str, Any], where: str) -> None:
        self._scope, self._where = scope, where

    def __call__(self, name: str) -> Any:
        if name.startswith("/"):
            found = follow(name)
            code = getattr(found, "__code__", None)
            if code is None or code.co_name != name.rpartition("/")[2]:
                found = _by_code(name)  # inside a function, or behind a decorator that does not tell what it wraps
        elif name.startswith("@"):
            return getattr(tags, name[1:])
        else:
            first, *rest = name.split(".")
            if first in self._scope:
                found = self._scope[first]
            elif not rest and hasattr(tools, first):
                found = getattr(tools, first)  # every, between, lt ...: usable without an import
            else:
                raise SelectorError(f"there is no {first!r} in scope.", where=self._where, next=did_you_mean(first, self._scope))
            for part in rest:
                found = getattr(found, part)
        return getattr(found, "__ptera__", found)


def _by_code(reference: str) -> types.FunctionType:
    """The function whose code stands at a place, found through the code objects of all live functions."""
    import codefind

    _, module, *path = reference.split("/")
    try:
        code = codefind.find_code(*path, module=module or "__main__")
    except KeyError:
        raise NotDefinedYet(module) from None
    found = [f for f in codefind.get_functions(code) if isinstance(f, types.FunctionType) and not hasattr(f, "__ptera_discard__")]
    if not found:
        raise NotDefinedYet(module)
    return found[-1]


__all__ = ["ABSENT", "CodeNotFoundError", "Engine"]
