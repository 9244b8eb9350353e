"""The owner of a source file, and the line of the program for a stack frame.

A file belongs to the program unless it is a file of Python, torch or voirkit, or was installed. It
was installed if its folder says so (``site-packages``), or if the metadata of a distribution lies
beside its package (``pip install --target``, found through a ``.pth`` or PYTHONPATH). An editable
install belongs to the program.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from types import CodeType, FrameType

_MOST_FRAMES, _MOST_KNOWN = 200, 4096
_SITE = re.compile(
    r"(?P<root>.*[/\\](?:site-packages|dist-packages))[/\\](?P<top>[^/\\]+)(?P<rest>.*)", re.DOTALL
)
_EGG = re.compile(r"[/\\][^/\\]+\.egg[/\\]")
_PYTHON = re.compile(r"(?:^|[/\\])lib[/\\](?:python3\.\d+t?|python3\d+\.zip)[/\\]")
_ARCHIVE = re.compile(r"(?P<archive>.*?\.(?:zip|whl|pyz))[/\\]", re.DOTALL)
_TORCH = ("torch", "functorch")


class Owner(Enum):
    """The kinds of owners of a source file."""

    PROGRAM = "the program"
    TORCH = "torch"
    PACKAGE = "another package"
    # an archive that does not hold the script; most often it holds packages, but its path need not
    # show that
    ARCHIVE = "an archive"
    PYTHON = "Python"
    VOIRKIT = "voirkit"


@lru_cache(maxsize=_MOST_KNOWN)
def file_owner(path: str) -> Owner:
    """Return the owner of a source file.

    Args:
        path: The path as in ``co_filename``. A path that is relative, or from another machine, is
            judged only by the names of its folders.
    """
    if path.startswith("<"):
        return Owner.PYTHON
    if path.startswith(_voirkit_folders()):
        return Owner.VOIRKIT
    if path.startswith(_torch_folder()):
        return Owner.TORCH
    site = _SITE.fullmatch(f"/{path}")
    if site:
        return _owner_in_site(site)
    if _EGG.search(path):
        return Owner.PACKAGE
    if path.startswith(_python_folders()) or _PYTHON.search(path):
        return Owner.PYTHON
    for root, top in _import_roots(path):
        if top in _installed_in(root):
            return _owner_of_package(top)
    return Owner.ARCHIVE if _is_in_archive(path) else Owner.PROGRAM


def _owner_in_site(site: re.Match[str]) -> Owner:
    """Return the owner of a file in a folder of installed packages. A package there may be a
    symbolic link to a folder elsewhere, which then decides."""
    package = os.path.join(site["root"], site["top"])[1:]
    if os.path.islink(package):
        target = os.path.realpath(package)
        if target != package:
            return file_owner(target + site["rest"])
    return _owner_of_package(site["top"])


def _owner_of_package(name: str) -> Owner:
    return Owner.TORCH if name in _TORCH else Owner.PACKAGE


@lru_cache(maxsize=1)
def _voirkit_folders() -> tuple[str, ...]:
    import voirkit
    import voirkit_instruments

    modules = (voirkit, voirkit_instruments)
    return tuple(
        os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in modules
    )


def _torch_folder() -> tuple[str, ...]:
    """Return the folder of the imported torch, which is needed for a torch that was built in its
    source folder; empty if torch is not imported."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return (os.path.dirname(os.path.abspath(file)) + os.sep,) if type(file) is str else ()


@lru_cache(maxsize=1)
def _python_folders() -> tuple[str, ...]:
    return tuple(
        os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
    )


def _import_roots(path: str) -> Iterator[tuple[str, str]]:
    """Yield the folders from which a file may have been imported, each with the name of the file's
    package or module in it (``six.py``)."""
    folders = [
        entry
        for entry in sys.path
        if type(entry) is str and entry and path.startswith(os.path.join(entry, ""))
    ]
    outermost = os.path.dirname(path)
    while os.path.exists(os.path.join(outermost, "__init__.py")) and outermost != os.path.dirname(
        outermost
    ):
        outermost = os.path.dirname(outermost)
    for folder in dict.fromkeys([*folders, outermost]):
        if os.path.isabs(folder):
            yield folder, re.split(r"[/\\]", path[len(os.path.join(folder, "")) :])[0]


@lru_cache(maxsize=_MOST_KNOWN)
def _installed_in(folder: str) -> frozenset[str]:
    """Return the packages and modules of a folder that belong to installed distributions, whose
    metadata lies in the same folder."""
    names: set[str] = set()
    try:
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                names.update(_names_of_distribution(os.path.join(folder, name)))
    except OSError:
        return frozenset()
    return frozenset(names)


def _names_of_distribution(metadata: str) -> set[str]:
    """Return the packages and modules of a distribution; empty for an editable install."""
    try:
        origin = json.loads(file_text(os.path.join(metadata, "direct_url.json")) or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return set()
    except (ValueError, AttributeError):
        pass  # in an unknown form: not taken for an editable install
    lines = file_text(os.path.join(metadata, "RECORD")).splitlines()
    if lines:
        return {line.partition(",")[0].partition("/")[0] for line in lines}
    packages = file_text(os.path.join(metadata, "top_level.txt")).split()
    if not packages:
        packages = [os.path.basename(metadata).partition("-")[0]]
    return {*packages, *(f"{package}.py" for package in packages)}


def file_text(path: str) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _is_in_archive(path: str) -> bool:
    """True if a file lies in an archive that does not hold the script."""
    match = _ARCHIVE.match(path)
    if match is None or not os.path.isfile(match["archive"]):
        return False
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return type(script) is not str or not script.startswith(match["archive"])


class Places:
    """Finds the line of the program that a stack frame stems from, with caches."""

    def __init__(self) -> None:
        self._known: dict[int, Owner] = {}  # the owner of each code object, by identity
        self._kept: list[CodeType] = []  # keeps the code objects, so that ids are not reused
        self._texts: dict[tuple[int, int], str] = {}

    def of(self, frame: FrameType | None) -> str | None:
        """Return the line of the innermost frame, from ``frame`` outwards, that runs the program's
        own code; if there is none, code of a package other than torch. None if there is neither."""
        package, remaining = None, _MOST_FRAMES
        cache = self._known
        while frame is not None and remaining:
            code = frame.f_code
            owner = cache.get(id(code))
            if owner is None:
                owner = self._owner(code)
            if owner is Owner.PROGRAM:
                return self._texts.get((id(code), frame.f_lasti)) or self._text(frame, code)
            if package is None and owner in (Owner.PACKAGE, Owner.ARCHIVE):
                package = frame
            frame, remaining = frame.f_back, remaining - 1
        return None if package is None else self._text(package, package.f_code)

    def _owner(self, code: CodeType) -> Owner:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._texts.clear()
            self._kept.clear()
        path = code.co_filename
        owner = file_owner(path if path.startswith("<") else os.path.abspath(path))
        self._known[id(code)] = owner
        self._kept.append(code)
        return owner

    def _text(self, frame: FrameType, code: CodeType) -> str:
        text = self._texts[id(code), frame.f_lasti] = (
            f"{_display_path(code.co_filename)}:{frame.f_lineno}"
        )
        return text


def _display_path(path: str) -> str:
    """Return a path as the user knows it: relative to the folder of the script or to the current
    folder, if the file lies in one of them; otherwise the file's name."""
    path = os.path.abspath(path)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for folder in (os.path.dirname(os.path.abspath(script)) if script else None, os.getcwd()):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.basename(path)
