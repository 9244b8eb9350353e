"""The script that the tests of selectors check against, and what is said about selectors for it."""

from __future__ import annotations

import pytest

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.check import check_all

MAIN = '''"""A script."""
LIMIT = 3


class Trainer:
    rate = 1

    def run(self, x):
        self.x = total = x + LIMIT
        return total


def train_epoch(batch):
    settings = {"rate": 1}
    for step in range(LIMIT):
        loss = batch * settings["rate"] / (step + 1)
    return loss


def silent(n):
    seen = [k for k in n]


def outer(n):
    def inner(m):
        deep = m
        return deep
    return inner(n)


async def later(n):
    got = n


short = lambda n: n + 1
'''
SCRIPT = catalogue(MAIN, "main.py")
WHERE = "voirfile.py:7"


def message(selector: str, scope: dict[str, object] | None = None) -> str:
    """What is said about a selector for MAIN."""
    with pytest.raises(SelectorError) as caught:
        check_all(parse(selector, WHERE), SCRIPT, "main.py", scope)
    return str(caught.value)
