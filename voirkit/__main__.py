"""``python -m voirkit`` is the command ``voirkit``."""

import sys

# python puts the current folder first; a module there must not hide one that voirkit imports.
_here = (
    sys.path[:0] if getattr(sys.flags, "safe_path", False) or sys.flags.isolated else sys.path[:1]
)
sys.path[: len(_here)] = []

from voirkit.cli import main  # noqa: E402  # after the folder is out of the way
from voirkit.commands import run as _run  # noqa: E402, F401  # with all that a run imports

sys.path[:0] = _here
sys.exit(main())
