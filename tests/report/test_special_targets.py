"""``voirkit export`` leaves alone what is no file, also with ``--force``."""

import os

import pytest
from conftest import Place


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("real.csv", path)], ids=["fifo", "link"])
def test_a_device_or_a_link_is_not_replaced(place: Place, make) -> None:
    place.write({"real.csv": "keep"}, main="from voirkit import ai\nwith ai.compute.forward:\n    pass\n")
    place.voirkit("main.py")
    target = place.folder / "target.csv"
    make(str(target))
    before = os.lstat(target)
    ended = place.python("-m", "voirkit", "export", "run", "--format", "csv", "-o", "target.csv", "--force")
    assert ended.code == 2
    assert "left as it is" in ended.err
    assert os.lstat(target).st_mode == before.st_mode
    assert (place.folder / "real.csv").read_text() == "keep"
