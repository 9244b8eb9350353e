"""``python -m voirkit``: the same as the command ``voirkit``."""

import sys

# Python puts the current folder first in sys.path, unless it runs in safe-path or isolated mode. A
# module in that folder must not hide a module that voirkit imports.
_here = (
    sys.path[:0] if getattr(sys.flags, "safe_path", False) or sys.flags.isolated else sys.path[:1]
)
sys.path[: len(_here)] = []

from voirkit.cli import main  # noqa: E402  # after the folder was removed from sys.path
from voirkit.commands import run as _run  # noqa: E402, F401  # all modules a run needs

sys.path[:0] = _here
sys.exit(main())
