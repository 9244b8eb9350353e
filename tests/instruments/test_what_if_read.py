"""``--what-if read-ahead``: files are asked for before they are read, once it is known which; what is read is the same."""

from __future__ import annotations

import copy
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import pickle
import resource
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from conftest import Place
from torch.utils.data import DataLoader, Dataset, Subset

from voirkit.intercept import Patches
from voirkit_instruments.what_if.record_changes import make_change
from voirkit_instruments.what_if.record_read_ahead import ReadAhead, WatchedQueue

pytestmark = [pytest.mark.torch, pytest.mark.long]


class Files(Dataset):  # type: ignore[misc, type-arg]
    """A file for each sample."""

    def __init__(self, folder: Path, n: int) -> None:
        self.paths = [folder / f"{i}.txt" for i in range(n)]
        for i, path in enumerate(self.paths):
            path.write_text(str(i) * 1000)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        if i == 1000:
            raise ValueError("there is no sample 1000")
        return self.paths[i].read_text()


class Changed:
    """A change made in this process."""

    def __init__(self) -> None:
        self.change, self._patches = ReadAhead(None), Patches()
        self.change.install(self._patches)

    def end(self) -> dict[str, Any]:
        self.change.end()
        self._patches.remove()
        return self.change.facts()


@pytest.fixture
def changed() -> Iterator[Changed]:
    made = Changed()
    yield made
    made._patches.remove()


def epochs(loader: Any, n: int) -> list[list[str]]:
    return [sorted(text for batch in loader for text in batch) for _ in range(n)]


def test_from_the_second_epoch_on_files_are_asked_for(changed: Changed, tmp_path: Path) -> None:
    files = Files(tmp_path, 20)
    read = epochs(DataLoader(files, batch_size=6, shuffle=True), 3)
    assert read == [sorted(files[i] for i in range(20))] * 3
    assert changed.end() == {"touched": 40, "batches": 8, "learned": 20}


@pytest.mark.parametrize("stay", [False, True])
def test_workers_know_what_other_workers_have_learned(
    changed: Changed, tmp_path: Path, stay: bool
) -> None:
    files = Files(tmp_path, 40)
    loader = DataLoader(
        files,
        batch_size=5,
        shuffle=True,
        num_workers=2,
        persistent_workers=stay,
        multiprocessing_context="fork",
    )
    first = epochs(loader, 1)
    time.sleep(0.6)  # a worker looks twice a second at what others have learned
    assert first + epochs(loader, 2) == [sorted(files[i] for i in range(40))] * 3
    facts = changed.end()
    assert 40 <= facts["touched"] <= 80
    assert facts["learned"] >= 40


def test_in_one_epoch_there_is_nothing_to_ask_for(changed: Changed, tmp_path: Path) -> None:
    epochs(DataLoader(Files(tmp_path, 20), batch_size=6), 1)
    assert changed.end() == {
        "touched": 0, "batches": 0, "learned": 20, "because": "no sample was read a second time: its files are only known then.",
    }  # fmt: skip


def test_a_file_of_many_samples_is_not_asked_for(changed: Changed, tmp_path: Path) -> None:
    class Packed(Files):
        def __getitem__(self, i: int) -> Any:
            return self.paths[0].read_text()[i]

    epochs(DataLoader(Packed(tmp_path, 20), batch_size=6), 3)
    assert changed.end()["touched"] == 0


def test_samples_that_open_no_files_are_told(changed: Changed) -> None:
    epochs(DataLoader(["a", "b"]), 2)  # type: ignore[arg-type]
    assert (
        changed.end()["because"]
        == "the loader's samples open no files of their own that Python knows of."
    )


def test_data_sets_that_take_whole_batches_are_learned_too(
    changed: Changed, tmp_path: Path
) -> None:
    files = Files(tmp_path, 20)
    read = epochs(DataLoader(Subset(files, range(10)), batch_size=4), 2)
    assert read == [sorted(files[i] for i in range(10))] * 2
    assert changed.end()["touched"] == 10


def test_single_samples_are_asked_for_too(changed: Changed, tmp_path: Path) -> None:
    loader = DataLoader(Files(tmp_path, 5), batch_size=None)
    assert [list(loader) for _ in range(2)] == [[str(i) * 1000 for i in range(5)]] * 2
    assert changed.end()["touched"] == 5


def test_two_data_sets_are_told_apart(changed: Changed, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    training, validation = Files(tmp_path, 10), Files(tmp_path / "b", 4)
    asked: list[str] = []
    prefetch = changed.change.prefetch

    def recorded(paths: Iterable[str]) -> int:
        asked.extend(paths := list(paths))
        return prefetch(paths)

    changed.change.prefetch = recorded  # type: ignore[method-assign]
    epochs(DataLoader(training, batch_size=5), 2)
    epochs(DataLoader(validation, batch_size=4), 1)
    assert {Path(path).parent for path in asked} == {tmp_path}
    changed.end()


def test_what_a_sample_raises_is_raised(changed: Changed, tmp_path: Path) -> None:
    files = Files(tmp_path, 5)
    files.paths *= 300
    with pytest.raises(ValueError, match="no sample 1000"):
        epochs(DataLoader(files, batch_size=400), 1)
    changed.end()


def test_a_file_that_is_gone_is_no_error(changed: Changed, tmp_path: Path) -> None:
    files = Files(tmp_path, 6)
    loader = DataLoader(files, batch_size=3)
    epochs(loader, 1)
    other = tmp_path / "other"
    files.paths[0].rename(other)
    files.paths[0] = other
    assert epochs(loader, 1) == [sorted(files[i] for i in range(6))]
    assert changed.end()["touched"] == 5


SPAWNED = """
    import sys
    from torch.utils.data import DataLoader

    class Files:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return open(f"{i}.txt").read()

    if __name__ == "__main__":
        for i in range(4):
            with open(f"{i}.txt", "w") as file:
                file.write("x" * i)
        loader = DataLoader(Files(), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context=sys.argv[1])
        for _ in range(2):
            print([len(text) for batch in loader for text in batch])
    """


@pytest.mark.parametrize(("way", "touched"), [("spawn", 0), ("fork", 4)])
def test_a_run_with_the_change_reads_the_same(place: Place, way: str, touched: int) -> None:
    ended = place.write(main=SPAWNED).voirkit("--what-if-setting", "read-ahead", "main.py", way)
    assert ended.code == 0, ended.err
    assert "[0, 1, 2, 3]\n[0, 1, 2, 3]\n" in ended.out
    assert ended.summary["what_if_run"]["facts"]["touched"] == touched


def test_a_workers_queue_gives_the_same_and_tells_what_waits() -> None:
    queue: Any = multiprocessing.get_context("fork").Queue()
    sent = [(0, [1, 2]), (1, [3, 4]), (2, [5]), None]
    for one in sent:
        queue.put(one)
    size = sum(4 + len(ForkingPickler.dumps(one)) for one in sent)
    while (
        int.from_bytes(
            fcntl.ioctl(queue._reader.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder
        )
        < size
    ):
        time.sleep(0.001)  # until the queue's thread has sent them
    told: list[Any] = []
    ahead = WatchedQueue(queue, told.append)
    assert [ahead.get(timeout=60) for _ in sent] == sent
    assert told == [[3, 4], [5]]
    queue.close()


def in_memory(path: Path) -> bool:
    """Whether the page cache holds all of a file."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with (
        open(path, "rb") as file,
        mmap.mmap(
            file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as mapped,
    ):
        address = ctypes.addressof(here := ctypes.c_char.from_buffer(mapped))
        ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(size), found
        )
        del here
    return all(page & 1 for page in found)


def test_files_that_are_asked_for_come_into_memory(changed: Changed, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(100_000))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(path):
        pytest.skip("this file system holds its files in memory")
    assert changed.change.prefetch([str(path), str(tmp_path / "missing")]) == 1
    while not in_memory(path):  # the kernel was only told
        time.sleep(0.01)


def test_an_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no argument"):
        make_change("read-ahead", "3")


def test_nothing_but_regular_files_is_ever_opened(changed: Changed, tmp_path: Path) -> None:
    """A pipe that was learned as a file: opening it would let its writer go on, and fail."""
    files = Files(tmp_path, 4)
    loader = DataLoader(files, batch_size=2)
    epochs(loader, 1)
    files.paths[0].unlink()
    os.mkfifo(files.paths[0])
    files.paths[1].unlink()
    files.paths[1].mkdir()
    files.paths[2].unlink()
    files.paths[2].symlink_to(files.paths[2])
    opened: list[str] = []
    sys.addaudithook(
        lambda event, args: (
            opened.append(os.fspath(args[0]))
            if event == "open" and str(tmp_path) in str(args[0])
            else None
        )
    )
    assert changed.change.prefetch(map(str, files.paths)) == 1
    assert opened == [str(files.paths[3])]


def test_no_descriptor_stays_open(changed: Changed, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    epochs(DataLoader(Files(tmp_path, 20), batch_size=6), 3)
    assert changed.end()["touched"] == 40
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_batch_of_many_files_stays_below_the_limit_of_descriptors(
    changed: Changed, tmp_path: Path
) -> None:
    files = Files(tmp_path, 400)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert changed.change.prefetch(map(str, files.paths)) == 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_sample_that_is_made_by_a_loader_of_its_own_is_read(
    changed: Changed, tmp_path: Path
) -> None:
    class Nested(Files):
        def __getitem__(self, i: int) -> Any:
            return (
                "".join(DataLoader(Subset(files, [i]), batch_size=None)) + self.paths[i].read_text()
            )

    files = Files(tmp_path, 4)
    nested = Nested(tmp_path, 4)
    assert epochs(DataLoader(nested, batch_size=2), 2) == [[str(i) * 2000 for i in range(4)]] * 2
    assert changed.end()["learned"] >= 4


def test_the_indices_of_a_batch_can_be_pickled(changed: Changed, tmp_path: Path) -> None:
    class Pool(Files):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            again = pickle.loads(pickle.dumps(indices))
            assert type(again) is list
            assert again == copy.copy(indices) == indices
            return [self[i] for i in again]

    files = Pool(tmp_path, 6)
    assert epochs(DataLoader(files, batch_size=3), 2) == [[files[i] for i in range(6)]] * 2
