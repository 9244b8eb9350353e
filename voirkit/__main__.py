"""``python -m voirkit`` is the command ``voirkit``."""

import sys

from voirkit.cli import main

sys.exit(main())
