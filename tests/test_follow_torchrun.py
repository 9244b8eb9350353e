"""``voirkit --follow`` and launchers: the processes that they start run under voirkit."""

from __future__ import annotations

import sys

import pytest
from conftest import Place
from following import FOLLOWED, NEEDED, follow, runs, with_pythons

pytestmark = NEEDED


@pytest.mark.parametrize("line", ["torchrun", "python -m torch.distributed.run"])
def test_ranks_of_torchrun_share_a_run(place: Place, line: str) -> None:
    pytest.importorskip("torch")
    here = with_pythons(place)
    (here.folder / "bin" / "torchrun").write_text(
        f"#!{sys.executable}\nfrom torch.distributed.run import main\nmain()\n"
    )
    (here.folder / "bin" / "torchrun").chmod(0o755)
    ended = follow(
        here, f"{line} --standalone --nproc_per_node 2 main.py $1\npython main.py", "a", timeout=250
    )
    assert sorted(ended.out.splitlines()) == [f"['a'] {FOLLOWED}"] * 2 + [f"[] {FOLLOWED}"], (
        ended.err
    )
    assert runs(here) == [["main.py"], ["main.py", "a"]]
    assert "main.py a (2 ranks)" in ended.err
