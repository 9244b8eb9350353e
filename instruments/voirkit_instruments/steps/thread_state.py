"""What each thread is inside of, for functions that stand around others and act in the outermost alone."""

from __future__ import annotations

import threading


class Here(threading.local):
    """One for each purpose: what it says is of the calling thread."""

    inside = 0

    def __deepcopy__(self, memo: object) -> Here:
        return self  # torch.compile copies the constants of code, of which it is one
