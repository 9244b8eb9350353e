"""``--what-if checkpoint-async``: files are what torch.save would have written, whenever the program can look at them."""

from __future__ import annotations

import errno
import glob
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dill
import pytest
import torch
from conftest import Place

from voirkit.intercept import Patches
from voirkit_instruments.what_if import record_checkpoint_async as what_if_async
from voirkit_instruments.what_if.record_checkpoint_async import (
    BackgroundSaves,
    CheckpointAsync,
    Save,
)

pytestmark = [pytest.mark.torch, pytest.mark.long]


class Changed:
    """The change made in this process. The thread writes nothing before somebody waits, and then what was saved until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited = threading.Event()
        start, wait = BackgroundSaves.start, BackgroundSaves.wait
        held_back: list[threading.Event] = []

        def late(saves: BackgroundSaves, save: Save, write: Callable[[], Any]) -> None:
            allowed = threading.Event()
            if self.at_once:
                allowed.set()
            held_back.append(allowed)
            start(saves, save, lambda: (allowed.wait(60), write()))

        def waiting(saves: BackgroundSaves, *args: Any) -> None:
            if not saves.pending:
                return
            self.waited.set()
            for one in held_back:
                one.set()
            wait(saves, *args)

        monkeypatch.setattr(BackgroundSaves, "start", late)
        monkeypatch.setattr(BackgroundSaves, "wait", waiting)
        self.at_once = False
        self.change, self._patches = CheckpointAsync(None), Patches()
        self.change.install(self._patches)

    def end(self) -> dict[str, Any]:
        """The work is over; the facts."""
        try:
            self.change.end()
        finally:
            self._patches.remove()
        return self.change.facts()


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Changed]:
    """The change, in a process whose current folder is empty."""
    monkeypatch.chdir(tmp_path)
    made = Changed(monkeypatch)
    yield made
    made.end()


def model_and_optimizer() -> Any:
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 2)
    )
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(8, 20)).sum().backward()
    optimizer.step()
    return {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "rng": torch.get_rng_state(),
        "module": net,
    }


def views() -> Any:
    base = torch.arange(100.0)
    return [base, base[10:20], base.view(10, 10).t(), base[::3]]


OBJECTS: dict[str, Callable[[], Any]] = {
    "a model and its optimizer": model_and_optimizer,
    "views of one storage": views,
    "a parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "a sparse tensor": lambda: torch.eye(4).to_sparse(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8),
    "a tensor without memory": lambda: torch.empty(4, device="meta"),
    "an empty tensor": lambda: torch.empty(0),
    "shared memory": lambda: torch.randn(100).share_memory_(),
    "other types": lambda: [
        torch.randn(9).bfloat16(),
        torch.randn(9, dtype=torch.complex64),
        torch.tensor(True),
    ],
    "no tensor": lambda: {"text": "x" * 1000, "set": {1, 2}},
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_the_file_is_byte_for_byte_the_same(changed: Changed, name: str) -> None:
    made = OBJECTS[name]()
    os.mkdir("plain")
    torch.save(made, "c.pt")
    assert changed.end()["touched"] == 1
    torch.save(made, "plain/c.pt")
    assert Path("c.pt").read_bytes() == Path("plain/c.pt").read_bytes()


def test_tensors_that_share_memory_share_it_when_they_are_loaded(changed: Changed) -> None:
    torch.save(views(), "c.pt")
    first, *others = torch.load("c.pt", weights_only=False)
    assert {one.untyped_storage().data_ptr() for one in others} == {
        first.untyped_storage().data_ptr()
    }


def test_what_is_changed_after_the_call_is_not_changed_in_the_file(changed: Changed) -> None:
    state = {"w": torch.zeros(1000), "epochs": [1]}
    torch.save(state, "c.pt")
    state["w"] += 1  # type: ignore[operator]
    state["epochs"].append(2)  # type: ignore[union-attr]
    found = torch.load("c.pt")
    assert (found["w"].sum(), found["epochs"]) == (0, [1])


def test_options_are_those_of_the_call(changed: Changed, tmp_path: Path) -> None:
    def save(path: Path) -> None:
        path.parent.mkdir()
        was = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(
                {"x": 1, "w": torch.ones(9)},
                path,
                pickle_module=dill,
                pickle_protocol=4,
                _disable_byteorder_record=True,
            )
        finally:
            torch.serialization.set_crc32_options(was)

    save(tmp_path / "a" / "c.pt")
    assert changed.end()["touched"] == 1
    save(tmp_path / "b" / "c.pt")
    assert Path("a/c.pt").read_bytes() == Path("b/c.pt").read_bytes()


def test_what_is_no_path_is_written_as_ever(changed: Changed) -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    with open("open.pt", "wb") as file:
        torch.save(torch.ones(3), file)
    torch.save(torch.ones(3), "old.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.ones(3), "ä.pt")
    torch.save(torch.ones(3), os.devnull)
    assert buffer.getvalue()
    assert not changed.waited.is_set()
    facts = changed.end()
    assert facts["touched"] == 0
    assert facts["synchronous"] == {
        "to a path that is not ASCII": 1,
        "to what is no regular file": 1,
    }
    for name in ("open.pt", "old.pt", "ä.pt"):
        assert torch.equal(torch.load(name), torch.ones(3))


@pytest.mark.parametrize("path", ["missing/c.pt", "missing/../c.pt", "new/", ".", ""])
def test_a_path_that_can_not_be_opened_is_told_where_torch_tells_it(
    changed: Changed, path: str
) -> None:
    with pytest.raises(Exception) as late:  # noqa: PT011 (whatever torch raises)
        torch.save(torch.ones(3), path)
    changed.end()
    with pytest.raises(type(late.value)) as plain:
        torch.save(torch.ones(3), path)
    assert str(late.value) == str(plain.value)


def test_what_can_not_be_pickled_is_told_at_once_and_leaves_what_torch_leaves(
    changed: Changed,
) -> None:
    for name in ("a/c.pt", "b/c.pt"):
        os.mkdir(name[0])
        with pytest.raises(Exception, match="lambda"):
            torch.save([torch.ones(3), lambda: 0], name)
        if name[0] == "a":
            changed.end()
    assert Path("a/c.pt").read_bytes() == Path("b/c.pt").read_bytes()


def forked() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0 if zipfile.is_zipfile("c.pt") else 1)
    assert os.waitpid(pid, 0)[1] == 0


def with_a_folders_descriptor() -> None:
    os.mkdir("elsewhere")
    folder = os.open(".", os.O_RDONLY)
    os.chdir("elsewhere")
    try:
        os.close(os.open("c.pt", os.O_RDONLY, dir_fd=folder))
    finally:
        os.chdir("..")
        os.close(folder)


def removed_with_a_folders_descriptor() -> None:
    """There is a file of the same name where the process is."""
    folder = os.open(".", os.O_RDONLY)
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    try:
        Path("c.pt").absolute().touch()
        os.remove("c.pt", dir_fd=folder)
    finally:
        os.chdir("..")
        os.close(folder)


def pipe_opened() -> None:
    """As multiprocessing does it to hand over the work to a process that it has spawned."""
    reading, writing = os.pipe()
    open(writing, "wb").close()
    os.close(reading)


LOOKS: dict[str, Callable[[], Any]] = {
    "torch.load": lambda: torch.load("c.pt"),
    "torch.load of a mapped file": lambda: torch.load("c.pt", mmap=True),
    "open": lambda: open("c.pt", "rb").close(),
    "open to write": lambda: open("c.pt", "ab").close(),
    "open of an absolute path": lambda: open(os.path.abspath("c.pt"), "rb").close(),
    "open of a link": lambda: open("link.pt", "rb").close(),
    "open with a folder's descriptor": with_a_folders_descriptor,
    "os.open": lambda: os.close(os.open("c.pt", os.O_RDONLY)),
    "pathlib": lambda: Path("c.pt").read_bytes(),
    "os.rename": lambda: os.rename("c.pt", "d.pt"),
    "os.replace": lambda: os.replace("c.pt", "d.pt"),
    "os.replace of its folder": lambda: os.replace(os.getcwd(), os.getcwd() + "-moved"),
    "os.remove": lambda: os.remove("c.pt"),
    "os.remove with a folder's descriptor": removed_with_a_folders_descriptor,
    "os.link": lambda: os.link("c.pt", "d.pt"),
    "os.truncate": lambda: os.truncate("c.pt", 10),
    "os.stat": lambda: os.stat("c.pt"),
    "os.path.getsize": lambda: os.path.getsize("../" + os.path.basename(os.getcwd()) + "/c.pt"),
    "os.path.exists": lambda: os.path.exists("c.pt"),
    "pathlib's stat": lambda: Path("c.pt").stat(),
    "os.scandir": lambda: [one.stat() for one in os.scandir()],
    "os.listdir": lambda: os.listdir(),
    "glob": lambda: glob.glob("*.pt"),
    "shutil.copy": lambda: shutil.copy("c.pt", "d.pt"),
    "shutil.move": lambda: shutil.move("c.pt", "d.pt"),
    "zipfile": lambda: zipfile.ZipFile("c.pt").close(),
    "a process": lambda: subprocess.run(["test", "-s", "c.pt"], check=True),
    "a shell": lambda: os.system("test -s c.pt"),
    "a fork": forked,
    "os.kill": lambda: os.kill(os.getpid(), 0),
    "a pipe to a spawned process": pipe_opened,
}


@pytest.mark.parametrize("name", LOOKS)
def test_who_looks_at_the_file_waits_for_it(changed: Changed, name: str) -> None:
    os.symlink("c.pt", "link.pt")
    torch.save(torch.ones(100_000), "c.pt")
    assert not changed.waited.is_set()
    LOOKS[name]()
    assert changed.waited.is_set()
    facts = changed.change.facts()
    assert (facts["touched"], sum(facts["waits"].values())) == (1, 1)


def test_the_file_is_written_where_the_path_led_when_it_was_saved(changed: Changed) -> None:
    for name in ("one", "two"):
        os.mkdir(name)
    os.symlink("one", "latest")
    os.symlink("first.pt", "one/link.pt")
    torch.save(torch.ones(3), "latest/c.pt")
    torch.save(torch.ones(3), "latest/link.pt")
    os.remove("latest")
    os.symlink("two", "latest")
    assert not changed.waited.is_set()
    assert changed.end()["touched"] == 2
    assert os.listdir("two") == []
    assert torch.equal(torch.load("one/c.pt"), torch.ones(3))
    torch.save(torch.ones(3), "two/link.pt")
    assert Path("two/link.pt").read_bytes() == Path("one/first.pt").read_bytes()


def test_a_folder_may_have_any_name(changed: Changed) -> None:
    os.mkdir("a ä")
    os.chdir("a ä")
    torch.save(torch.ones(3), "c.pt")
    assert changed.end()["touched"] == 1
    assert torch.equal(torch.load("c.pt"), torch.ones(3))


def test_who_looks_at_another_file_does_not_wait(changed: Changed) -> None:
    Path("other").mkdir()
    Path("other/c.pt").write_text("something else")
    torch.save(torch.ones(3), "c.pt")
    Path("other/d.pt").write_text("something else")
    os.path.getsize("other/c.pt")
    os.stat(".")
    assert not os.path.exists("d.pt")
    threading.Thread(target=print).start()
    assert not changed.waited.is_set()


def test_what_os_says_of_its_functions_stays_true(changed: Changed) -> None:
    assert os.stat in os.supports_dir_fd
    assert os.stat in os.supports_follow_symlinks
    assert changed.end()["touched"] == 0
    assert type(os.stat) is type(os.open)
    assert type(os._exit) is type(os.open)


def test_two_saves_to_one_file_are_written_in_their_order(changed: Changed) -> None:
    for i in range(3):
        torch.save(torch.full((1000,), i), "c.pt")
    assert torch.load("c.pt")[0] == 2
    assert changed.end()["waits"] == {"torch.save": 2, "open": 1}


def test_what_is_written_at_once_waits_for_what_was_saved_before(changed: Changed) -> None:
    torch.save(torch.ones(1000), "c.pt")
    with pytest.raises(Exception, match="lambda"):
        torch.save([torch.ones(3), lambda: 0], "c.pt")
    torch.save(torch.ones(3), "d.pt")
    torch.save(torch.ones(3), "ä.pt")
    assert changed.end()["waits"] == {"torch.save": 2}


def test_other_threads_may_save_and_write_at_once(changed: Changed) -> None:
    changed.at_once = True

    def saves(k: int) -> None:
        for i in range(8):
            torch.save(torch.full((1000,), 10 * k + i), f"{k}-{i}.pt")
            torch.save(torch.full((1000,), 10 * k + i), f"{k}.pt")

    threads = [threading.Thread(target=saves, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    facts = changed.end()
    assert (facts["touched"], facts["synchronous"]) == (0, {"in another thread": 64})
    assert [int(torch.load(f"{k}-{i}.pt")[0]) for k in range(4) for i in range(8)] == [
        10 * k + i for k in range(4) for i in range(8)
    ]
    assert [int(torch.load(f"{k}.pt")[0]) for k in range(4)] == [7, 17, 27, 37]


def test_no_thread_is_left_when_all_is_written(changed: Changed) -> None:
    before = threading.active_count()
    torch.save(torch.ones(3), "c.pt")
    assert threading.active_count() == before + 1
    forked()
    assert threading.active_count() == before


def test_what_does_not_fit_into_memory_is_written_at_once(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if_async, "room", lambda: 10_000.0)
    torch.save([torch.zeros(1000), torch.ones(2000)], "c.pt")
    facts = changed.end()
    assert (facts["touched"], facts["synchronous"]) == (0, {"for want of memory": 1})
    assert facts["because"] == "torch.save wrote as ever 1 x for want of memory."
    assert [one.sum() for one in torch.load("c.pt")] == [0, 2000]


def test_of_several_ranks_none_writes_later(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.save(torch.ones(3), "c.pt")
    assert changed.end()["synchronous"] == {"in one of several ranks": 1}


def test_a_loaders_worker_writes_at_once(changed: Changed) -> None:
    class Saving(torch.utils.data.Dataset):  # type: ignore[misc, type-arg]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i: int) -> Any:
            torch.save(torch.full((10,), i), f"{i}.pt")
            return open(f"{i}.pt", "rb").read()

    torch.save(torch.ones(3), "c.pt")
    loader = torch.utils.data.DataLoader(
        Saving(), num_workers=2, batch_size=None, multiprocessing_context="fork"
    )
    assert all(zipfile.is_zipfile(io.BytesIO(data)) for data in loader)
    assert changed.change.facts()["waits"] == {"os.fork": 1}


class Full:
    """The disk is full as soon as the thread writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def truncate(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "ftruncate", truncate)


def test_what_writing_fails_with_is_raised_where_the_file_is_looked_at(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full(monkeypatch)
    torch.save(torch.ones(3), "c.pt")
    with pytest.raises(OSError, match="No space left") as raised:
        os.path.getsize("c.pt")
    if sys.version_info >= (3, 11):
        assert "c.pt was written after torch.save" in raised.value.__notes__[0]
    os.path.getsize("c.pt")
    changed.end()


def test_what_writing_fails_with_is_raised_by_the_next_save(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed.at_once = True
    Full(monkeypatch)
    torch.save(torch.ones(3), "c.pt")
    changed.change._saves.pending[0].join()
    with pytest.raises(OSError, match="No space left"):
        torch.save(torch.ones(3), "d.pt")
    monkeypatch.undo()


def test_what_writing_fails_with_is_raised_at_the_end_at_the_latest(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full(monkeypatch)
    torch.save(torch.ones(3), "c.pt")
    with pytest.raises(OSError, match="No space left"):
        changed.end()


FULL = """
    import resource, signal, torch
    from voirkit.intercept import Patches
    from voirkit_instruments.what_if.record_checkpoint_async import CheckpointAsync

    change = CheckpointAsync(None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    def save():
        try:
            torch.save(torch.ones(1_000_000), "c.pt")
            change.end()
        except RuntimeError as exc:
            return str(exc)
    plain = save()
    change.install(Patches())
    late = save()
    print(plain[:60])
    assert plain.partition(" at ")[0].partition("frame")[0] == late.partition(" at ")[0].partition("frame")[0], (plain, late)
    """


def test_a_file_that_becomes_too_large_fails_as_with_torch(place: Place) -> None:
    ended = place.write(full=FULL).python("full.py")
    assert (ended.code, ended.err) == (0, "")
    assert "PytorchStreamWriter failed" in ended.out or "enforce fail" in ended.out


ENDS = {
    "its end": ("pass", 0),
    "an exception": ("1 / 0", 1),
    "os._exit": ("os._exit(4)", 4),
    "os.exec": ("os.execv('/bin/true', ['true'])", 0),
}
ENDING = """
    import os, sys, torch
    torch.save(torch.ones(20_000_000), "c.pt")
    print(len(os.listdir("run")) > 0)
    {end}
    """


@pytest.mark.parametrize("end", ENDS)
def test_however_the_program_ends_the_file_is_whole(place: Place, end: str) -> None:
    statement, code = ENDS[end]
    ended = place.write(ending=ENDING.replace("{end}", statement)).voirkit(
        "--what-if-setting", "checkpoint-async", "ending.py"
    )
    assert ended.code == code
    assert torch.load(place.folder / "c.pt").sum() == 20_000_000


TRAINING = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(300, 300)
    optimizer = torch.optim.Adam(net.parameters())
    loader = torch.utils.data.DataLoader(torch.randn(60, 300), batch_size=10)
    for epoch in range(4):
        for batch in loader:
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, f"{epoch % 2}.pt")
        print(epoch, loss.item())
    """


def test_a_training_run_saves_and_prints_the_same(place: Place) -> None:
    place.write(train=TRAINING)
    found = []
    for change in ("plain", "checkpoint-async"):
        ended = place.voirkit("--quiet", "--force", "--what-if-setting", change, "train.py")
        assert ended.code == 0, ended.err
        found.append((ended.out, [(place.folder / f"{i}.pt").read_bytes() for i in (0, 1)]))
    assert found[0] == found[1]
    assert (
        ended.summary["what_if_run"]["facts"]["touched"]
        == ended.summary["what_if_run"]["saves"]
        == 4
    )
