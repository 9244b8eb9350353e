"""What installed packages add to voirkit: entry points of the groups ``voirkit.instruments`` and ``voirkit.aliases``.

Every run loads this module. A report asks it which instruments there are, each of which knows its own part (``voirkit.instrument``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from voirkit.instrument import Instrument, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Packages: TypeAlias = list[tuple[str, str]]

GROUP = "voirkit.instruments"

_installed: list[Instrument] | None = None


def installed_instruments() -> list[Instrument]:
    """The instruments of installed packages that say what they add to a run's record, in the order of reports.

    A package that cannot be loaded has none: the run that used it has said so.
    """
    global _installed
    if _installed is None:
        _installed = []
        for _, _, reference in entry_points(GROUP):
            try:
                value = resolve(reference)
            except Exception:
                continue
            _installed += [one for _, one in flat("", value) if isinstance(one, Instrument)]
    return _installed


def parts_of_summary() -> dict[str, type]:
    """The keys that instruments add to ``summary.json``, with the type of their value where it is not null."""
    return {key: kind for instrument in installed_instruments() for key, kind in instrument.parts.items()}


def flat(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(label, value) of each value in lists and mappings, however deep."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(f"{label}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from flat(f"{label}[{i}]", item)
    else:
        yield label, value


def entry_points(group: str, packages: Packages | None = None) -> list[tuple[str, str, str]]:
    """(distribution, name, reference) of each entry point of a group.

    Args:
        group: Such as ``voirkit.instruments``.
        packages: What ``installed_packages`` gives, if it has been read.
    """
    entries: dict[tuple[str, str], tuple[str, str, str]] = {}
    for distribution, text in installed_packages() if packages is None else packages:
        for name, reference in _section(text, group):
            entries.setdefault((distribution, name), (distribution, name, reference))
    return list(entries.values())


def installed_packages() -> Packages:
    """(distribution, its ``entry_points.txt``) of each installed package that names a group of voirkit's.

    Reads the files that the packaging standard prescribes (packaging.python.org, "Entry points specification") because
    importlib.metadata takes 46 ms to import and to look through an environment with torch, this 1 ms.
    """
    packages: Packages = []
    seen: set[str] = set()
    for folder in sys.path:
        try:
            names = [n for n in os.listdir(folder or ".") if n.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for distribution in sorted(names):
            package = distribution.split("-")[0].lower()
            if package in seen:
                continue  # the first on the path is the one that is imported
            seen.add(package)
            try:
                with open(os.path.join(folder, distribution, "entry_points.txt"), encoding="utf-8") as file:
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
