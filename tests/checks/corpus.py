"""The corpus: training scripts as different people write them, healthy ones, ones with a planted bug and ones that show too little, and what
is to be said of each.

A planted script begins with ``# planted: NAME``, the check that finds it; the guilty line ends in ``# here`` where there is one;
``# step: N`` where the step is certain. ``# cannot tell: NAMES``: the checks to which the script shows too little. ``# ranks: N`` means that it is started once for each of N ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Script:
    """One script of the corpus.

    Attributes:
        planted: The check that must find its bug; None: it is healthy.
        line: The guilty line, as ``main.py:12`` is written; None: any will do.
        step: The step that must be named; None: any will do.
        ranks: How many processes it is.
        unclear: The checks that cannot tell.
    """

    path: Path
    planted: str | None
    line: str | None
    step: int | None
    ranks: int
    unclear: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As it is called in the tests."""
        return self.path.stem


def _read(path: Path) -> Script:
    text = path.read_text()
    said = dict(re.findall(r"^# (planted|step|ranks): (\S+)$", text, re.MULTILINE))
    here = [
        f"{path.name}:{n}" for n, line in enumerate(text.splitlines(), 1) if line.endswith("# here")
    ]
    step = said.get("step")
    unclear = re.findall(r"^# cannot tell: (.+)$", text, re.MULTILINE)
    names = tuple(unclear[0].split()) if unclear else ()
    return Script(
        path,
        said.get("planted"),
        here[0] if here else None,
        None if step is None else int(step),
        int(said.get("ranks", 1)),
        names,
    )


HEALTHY = [_read(path) for path in sorted(SCRIPTS.glob("healthy/*.py"))]
UNCLEAR = [_read(path) for path in sorted(SCRIPTS.glob("cannot_tell/*.py"))]
PLANTED = [_read(path) for path in sorted(SCRIPTS.glob("planted/*.py"))]
