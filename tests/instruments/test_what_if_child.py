"""One run of ``--what-if``: the script as it is, with a change or without, for some steps, and what is kept of it to compare."""

from __future__ import annotations

from typing import Any
from zipfile import ZipFile

import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch")

SAVES = """
    import os, sys, torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    {before}

    def main():
        net = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
        for epoch in range(3):
            for x, y in DataLoader(data, 8):
                loss = ((net(x) - y) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            torch.save({{"net": net.state_dict(), "epoch": epoch}}, "part.pt")
            os.replace("part.pt", "net.pt")
            print("epoch", epoch)
        {after}

    if __name__ == "__main__":
        main()
"""


def ran(
    place: Place, setting: str, *words: str, before: str = "", after: str = ""
) -> tuple[Ended, dict[str, Any]]:
    """A run with a setting, and what it has told."""
    ended = place.write(main=SAVES.format(before=before, after=after)).voirkit(
        "--quiet", "--what-if-setting", setting, *words, "main.py"
    )
    return ended, ended.summary["what_if_run"]


def test_a_plain_run_keeps_losses_and_files_and_times_the_work(place: Place) -> None:
    ended, told = ran(
        place,
        "plain",
        after="print('crc', getattr(torch.serialization, 'get_crc32_options', lambda: True)())",
    )
    assert ended.code == 0, ended.err
    assert ended.out == "epoch 0\nepoch 1\nepoch 2\ncrc True\n"
    assert ended.err == ""
    assert (told["steps"], told["saves"], told["stopped"]) == (12, 3, False)
    assert told["losses"]["n"] == len(told["losses"]["kept"]) == 12
    assert [file["path"] for file in told["files"]] == [str(place.folder / "part.pt")]
    found = (place.folder / "net.pt").stat()
    assert told["files"][0]["file"] == [found.st_dev, found.st_ino], (
        "of the last file, which has another name by now"
    )
    assert 0 < told["saving_s"] < told["work_s"]
    assert told["set_up_s"] > 0, "imports and what the script sets up are none of the work"
    assert "facts" not in told


def test_a_run_without_checksums_ends_after_its_steps_with_the_saving_that_follows_them(
    place: Place,
) -> None:
    ended, told = ran(place, "checkpoint-no-crc", "--stop", "8", after="print('not reached')")
    assert ended.code == 0, ended.err
    assert ended.out == "epoch 0\nepoch 1\n"
    assert (told["steps"], told["saves"], told["stopped"]) == (8, 2, True)
    assert told["facts"]["touched"] == hasattr(torch.serialization, "set_crc32_options")
    with ZipFile(place.folder / "net.pt") as file:
        assert (file.testzip() is not None) == hasattr(torch.serialization, "set_crc32_options"), (
            "a strict reader sees the checksums"
        )
    assert torch.load(place.folder / "net.pt", weights_only=True)["epoch"] == 1


def test_a_program_that_raises_still_tells_what_it_did(place: Place) -> None:
    ended, told = ran(place, "num-threads=3", after="raise ValueError(torch.get_num_threads())")
    assert ended.code == 1
    assert ended.err.endswith("ValueError: 3\n")
    assert (told["steps"], told["threads"], told["facts"]) == (12, 3, {"touched": 1})


PINS = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loaders = [DataLoader(TensorDataset(torch.ones(4)), 2), DataLoader(TensorDataset(torch.ones(4)), 2, pin_memory=True)]
    print([loader.pin_memory for loader in loaders])
    try:
        DataLoader()
    except TypeError as exc:
        print(str(exc).partition(":")[0].partition(".")[2])
"""


def test_loaders_pin_their_batches(place: Place) -> None:
    ended = place.write(main=PINS).voirkit("--quiet", "--what-if-setting", "pin-memory", "main.py")
    assert ended.out == "[True, True]\n__init__() missing 1 required positional argument\n"
    assert ended.summary["what_if_run"]["facts"] == {"touched": 1}


# Without an optimizer of torch, which imports the compiler: 3 s of each of eleven runs.
BARE = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    for epoch in range(3):
        for x, y in DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), 8):
            ((net(x) - y) ** 2).mean().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        torch.save({"net": net.state_dict(), "epoch": epoch}, "net.pt")
        print("epoch", epoch)
"""


@pytest.mark.slow
def test_a_change_is_measured_on_the_unedited_script(place: Place) -> None:
    place.write(main=BARE)
    ended = place.python(
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--what-if",
        "checkpoint-no-crc",
        "main.py",
        timeout=280,
    )
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[1].startswith("  It could win at most ")
    assert "results: losses equal, checkpoints equal, output equal" in ended.out
    found = ended.summary["what_if"]
    assert len(found["pairs"]) == 5
    assert found["verdict"] in ("win", "loss", "no difference found")
    assert found["step"]["plain_s"] > 0
    shown = place.python("-m", "voirkit", "report", "run")
    assert f"{found['verdict']}: with checkpoint-no-crc the run takes" in " ".join(
        shown.out.split()
    )
