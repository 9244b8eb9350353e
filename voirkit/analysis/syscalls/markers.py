"""Markers: calls that fail on purpose and tell, in a tracer's log, where a phase begins and ends.

A marker is ``access("/vk!forward+", mode)``: ``+`` begins a phase, ``-`` ends it, and a name alone tells what a process is
(``/vk!worker 3``). The kernel's own events hold numbers only, so the mode tells it too: ``MODE + number of the text``. No file has such a
mode, so that the kernel refuses it before it looks for the file.
"""

from __future__ import annotations

import re

PREFIX = "/vk!"
MODE = 0x766B0000
OWN = "voirkit"  # a phase in which voirkit works for itself: nothing of it is the program's

_TEXT = re.compile(r'"/vk!([^"]*)"')


def marker(args: str) -> str | None:
    """What a marker says (``forward+``), from the arguments of an ``access`` as strace prints them; None if it is a call of the program."""
    found = _TEXT.search(args)
    return found[1] if found is not None else None
