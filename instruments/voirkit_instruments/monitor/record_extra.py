"""What needs a package of the extra ``monitor``."""

from __future__ import annotations

from typing import Any

from voirkit.errors import CommandLineError

EXTRA = "voirkit[monitor]"


def needed(module: str, option: str) -> Any:
    """A module of the extra.

    Raises:
        CommandLineError: It is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as exc:
        what = f"it needs {exc.name or module}, which is not installed."
        raise CommandLineError(what, where=option, next=f"Install it with: pip install '{EXTRA}'") from None
