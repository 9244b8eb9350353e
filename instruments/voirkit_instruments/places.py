"""Lines of the program by frame: the user's own code, not that of libraries, torch, python or voirkit."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType

_MOST_FRAMES, _MOST_KNOWN = 200, 4096
_PROGRAM, _LIBRARY, _OWN = 0, 1, 2  # whose code it is: the user's; some library's; torch's, python's or voirkit's own


class Places:
    """Lines of the program by frame."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # whose code it is, by identity
        self._kept: list[CodeType] = []  # so that identities stay their own
        self._texts: dict[tuple[int, int], str] = {}
        self._roots = tuple(_roots())

    def of(self, frame: FrameType | None) -> str | None:
        """The first line of the user's own code from a frame outwards; else of a library that is not torch; None without any."""
        library, left = None, _MOST_FRAMES
        known = self._known
        while frame is not None and left:
            code = frame.f_code
            whose = known.get(id(code))
            if whose is None:
                whose = self._whose(code)
            if whose == _PROGRAM:
                return self._texts.get((id(code), frame.f_lasti)) or self._text(frame, code)
            if whose == _LIBRARY and library is None:
                library = frame
            frame, left = frame.f_back, left - 1
        return None if library is None else self._text(library, library.f_code)

    def _whose(self, code: CodeType) -> int:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._texts.clear()
            self._kept.clear()
        path = os.path.abspath(code.co_filename)
        if code.co_filename.startswith("<"):
            whose = _OWN
        else:
            whose = next((whose for root, whose in self._roots if path.startswith(root)), _PROGRAM)
        self._known[id(code)] = whose
        self._kept.append(code)
        return whose

    def _text(self, frame: FrameType, code: CodeType) -> str:
        found = self._texts[id(code), frame.f_lasti] = f"{_display_path(code.co_filename)}:{frame.f_lineno}"
        return found


def _roots() -> list[tuple[str, int]]:
    """Folders and whose code lies in them, inner ones first."""
    import voirkit
    import voirkit_instruments

    own = [os.path.dirname(os.path.abspath(str(module.__file__))) for module in (voirkit, voirkit_instruments)]
    paths = sysconfig.get_paths()
    libraries = list(dict.fromkeys(os.path.abspath(paths[key]) for key in ("purelib", "platlib")))
    torch = [os.path.join(path, name) for path in libraries for name in ("torch", "functorch")]
    loaded = getattr(sys.modules.get("torch"), "__file__", None)
    if loaded:
        torch.append(os.path.dirname(os.path.abspath(loaded)))
    python = [os.path.abspath(paths[key]) for key in ("stdlib", "platstdlib")]
    found = [(path, _OWN) for path in (*own, *torch)] + [(path, _LIBRARY) for path in libraries] + [(path, _OWN) for path in python]
    return [(path + os.sep, whose) for path, whose in dict.fromkeys(found)]


def _display_path(path: str) -> str:
    """A path as the user knows it: from the folder of the script, or the current one, if it lies there; else the file's name."""
    path = os.path.abspath(path)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for folder in (os.path.dirname(os.path.abspath(script)) if script else None, os.getcwd()):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.basename(path)
