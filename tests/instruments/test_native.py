"""``--native``: real perf on scripts of planted C code; skipped, with the reason, where perf cannot sample."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Ended, Place

from voirkit_instruments.stacks.analyse_frames import name_of

pytestmark = pytest.mark.long

SPANS = """
import hashlib, os, threading, time, zlib
from voirkit.trace import recorder
DATA = os.urandom(1 << 20)
def planted(category, name, kind, do, times):
    number, used = recorder.name(category, name, kind=kind), time.thread_time()
    for _ in range(times):
        begun = recorder.now()
        do()
        recorder.span(number, begun, recorder.now())
    print(name, time.thread_time() - used, flush=True)
def compress():
    zlib.compress(DATA, 6)
def digest():
    for _ in range(40):
        hashlib.sha256(DATA).digest()
def load(times=10):
    planted("operation", "Compress", "loader", compress, times)
    planted("operation", "Digest", "loader", digest, times)
"""
BESIDE = """
def both():
    thread = threading.Thread(target=digest)
    thread.start()
    time.sleep(0.01)
    thread.join()
planted("compute", "backward", "phase", both, 10)
"""
RESIZE = """
from PIL import Image
from torchvision import transforms
image = Image.frombytes("RGB", (700, 500), DATA[:700] * 1500)
crop = transforms.RandomResizedCrop(300, scale=(0.9, 1.0))
planted("operation", "RandomResizedCrop", "loader", lambda: crop(image), 150)
"""


@cache
def why_not() -> str:
    """Why perf cannot sample here; empty if it can."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    command = ["perf", "record", "--event", "cpu-clock", "--output", "-", "--", "true"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    return done.stderr.decode(errors="replace").strip()[:200] if done.returncode else ""


@pytest.fixture
def perf() -> None:
    """Skips where perf cannot sample."""
    if why_not():
        pytest.skip(why_not())


def document(place: Place) -> dict[str, Any]:
    """``native.json`` of the run."""
    found: dict[str, Any] = json.loads((place.folder / "run" / "native.json").read_text())
    return found


def libraries(row: dict[str, Any]) -> str:
    """The library that a row spends most in."""
    return next(iter(row["libraries"]))


def used(ended: Ended) -> dict[str, Any]:
    """By what was planted: the seconds that its thread was on a processor, as the kernel counts them."""
    found: dict[str, float] = {}
    for name, seconds in (line.split() for line in ended.out.splitlines()):
        found[name] = found.get(name, 0.0) + float(seconds)
    return {name: pytest.approx(seconds, rel=0.1) for name, seconds in found.items()}


def started(place: Place, *words: str, **options: Any) -> Ended:
    """A run that has ended well."""
    ended = place.voirkit(*words, **options)
    assert ended.code == 0, ended.err
    return ended


@pytest.mark.usefixtures("perf")
def test_operations_are_mapped_to_the_libraries_that_they_work_in(place: Place) -> None:
    place.write(main=SPANS + "load(40)\n")
    ended = started(place, "--native=1999", "main.py")
    operations = document(place)["operations"]
    assert libraries(operations["Compress"]).startswith("libz")
    assert "crypto" in libraries(operations["Digest"])
    assert {name: row["on_cpu_s"] for name, row in operations.items()} == used(ended)
    brief = ended.summary["native"]
    assert (brief["event"], brief["frequency_hz"]) == (document(place)["event"], 1999)
    assert "Compress" in ended.err
    assert "hottest functions" in ended.err


ANNOTATED = """
import os, zlib
from voirkit import ai

data = os.urandom(1 << 20)
pack, digest = ai.data.preprocess.derive("pack"), ai.data.preprocess.derive("digest")
for epoch in ai.pipeline.epoch.iter(range(2)):
    for _ in range(6):
        with pack:
            zlib.compress(data)
        with digest:
            sum(data)
"""


@pytest.mark.usefixtures("perf")
def test_an_annotated_operation_outside_of_a_loader_is_mapped_to_the_libraries_that_it_works_in(
    place: Place,
) -> None:
    place.write(main=ANNOTATED)
    assert place.voirkit("--native", "main.py").code == 0
    operations = document(place)["operations"]
    assert {name: row["n"] for name, row in operations.items()} == {
        "data.preprocess.pack": 12,
        "data.preprocess.digest": 12,
    }
    assert "libz" in libraries(operations["data.preprocess.pack"])
    assert "libz" not in libraries(operations["data.preprocess.digest"])


@pytest.mark.parametrize(
    ("category", "name", "operation"),
    [
        ("data", "preprocess.crop", "data.preprocess.crop"),
        ("data", "data.io.read", "data.io.read"),
        ("compute", "compute", "compute"),
        ("dataloader", "fetch.block", None),
        ("pipeline", "epoch.iter", None),
    ],
)
def test_annotations_are_operations_but_for_stages_of_a_run_and_bodies_of_loops(
    category: str, name: str, operation: str | None
) -> None:
    assert name_of("span", category, name) == (
        None if operation is None else ("operation", operation)
    )


@pytest.mark.usefixtures("perf")
def test_forked_and_spawned_workers_are_followed(place: Place) -> None:
    place.write(
        work=SPANS,
        main="""
        import multiprocessing, sys
        import work
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=work.load)
                process.start()
                process.join()
                assert process.exitcode == 0
        """,
    )
    ended = started(place, "--native=1999", "main.py")
    operations = document(place)["operations"]
    assert {name: row["n"] for name, row in operations.items()} == {"Compress": 20, "Digest": 20}
    assert {name: row["on_cpu_s"] for name, row in operations.items()} == used(ended)


@pytest.mark.usefixtures("perf")
def test_other_threads_during_a_phase_belong_to_it_but_are_told_apart(place: Place) -> None:
    place.write(main=SPANS + BESIDE)
    started(place, "--native=1999", "main.py")
    backward = document(place)["phases"]["backward"]
    assert backward["other_threads"]["samples"] > 10 * backward["samples"]
    assert "crypto" in libraries(backward)


@pytest.mark.usefixtures("perf")
def test_a_script_sees_no_child_that_is_not_its_own(place: Place) -> None:
    place.write(
        main="""
        import multiprocessing, os, signal, threading
        told = []
        signal.signal(signal.SIGCHLD, lambda *_: told.append(1))
        try:
            os.wait()
        except ChildProcessError:
            print("no child")
        def parent(pid):
            try:
                return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
            except OSError:
                return 0
        print([pid for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == os.getpid()])
        print(multiprocessing.active_children(), threading.active_count(), told)
        end = sum(i * i for i in range(300_000))
        print(told)
        """
    )
    assert started(place, "--native", "main.py").out == place.python("main.py").out
    assert document(place)["samples"] > 0


@pytest.mark.usefixtures("perf")
def test_a_script_that_closes_every_descriptor_is_sampled_to_its_end(place: Place) -> None:
    place.write(main=SPANS + "os.closerange(3, 100)\nload(3)\n")
    started(place, "--native=1999", "main.py")
    assert document(place)["samples"] > 0
    assert not still_sampling(place)


def still_sampling(place: Place) -> bool:
    """Whether perf goes on."""
    (known,) = [
        json.loads(path.read_text())
        for path in (place.folder / "run" / "native").glob("*[0-9].json")
    ]
    try:
        state = (
            Path(f"/proc/{known['profiler_pid']}/stat").read_text().rpartition(")")[2].split()[0]
        )
    except FileNotFoundError:
        return False
    return state not in "ZX"  # nobody may wait for orphans here


@pytest.mark.usefixtures("perf")
@pytest.mark.parametrize(
    "end",
    ["raise SystemExit(3)", "raise ValueError('x')", "os._exit(5)", "os.kill(os.getpid(), 9)"],
)
def test_however_a_script_ends_it_ends_so_and_perf_too(place: Place, end: str) -> None:
    place.write(main=SPANS + f"load(3)\n{end}\n")
    plain, ended = (
        place.python("-c", f"import os\n{end}"),
        place.voirkit("--native=1999", "main.py"),
    )
    assert ended.code == plain.code
    report = place.run(sys.executable, "-m", "voirkit", "report", "run", "--json")
    found = json.loads(report.out)["native"]
    assert set(found["operations"]) == {"Compress", "Digest"}
    assert not still_sampling(place)


@pytest.mark.usefixtures("perf")
def test_every_rank_is_sampled_and_they_are_added(place: Place) -> None:
    place.write(main=SPANS + "load(3)\n")
    command = [sys.executable, "-m", "voirkit", "--run-dir", "run", "--native=1999", "main.py"]
    ranks = [
        subprocess.Popen(
            command,
            cwd=place.folder,
            env={**CLEAN, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=100) for process in ranks] == [0, 0]
    report = place.run(sys.executable, "-m", "voirkit", "report", "run", "--json")
    assert set(json.loads(report.out)["native"]["operations"]) == {"Compress", "Digest"}
    assert {name: row["n"] for name, row in document(place)["operations"].items()} == {
        "Compress": 6,
        "Digest": 6,
    }


@pytest.mark.usefixtures("perf")
def test_a_script_that_records_nothing_has_its_functions_too(place: Place) -> None:
    place.write(main=SPANS + "for _ in range(8): compress()\n")
    ended = started(place, "--native=1999", "main.py")
    assert libraries(document(place)["elsewhere"]).startswith("libz")
    assert "elsewhere" in ended.err


@pytest.mark.usefixtures("perf")
def test_the_file_is_bounded_and_it_is_said_that_sampling_ended(place: Place) -> None:
    place.write(main=SPANS + "for _ in range(60): compress()\n")
    ended = started(place, "--native=20000", "--trace-limit", "500kB", "main.py")
    (data,) = (place.folder / "run" / "native").glob("*.data")
    assert data.stat().st_size < 1_000_000
    assert "sampling ended before the run did" in ended.err
    assert "--trace-limit" in ended.err
    assert document(place)["samples"] > 0


@pytest.mark.usefixtures("perf")
@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv",
)
def test_without_privileges_the_kernel_is_left_out(place: Place) -> None:
    place.write(main=SPANS + "load(4)\n")
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all"]
    ended = place.run(
        *drop, sys.executable, "-m", "voirkit", "--run-dir", "run", "--native=1999", "main.py"
    )
    assert ended.code == 0, ended.err
    if "--native:" in ended.err:
        pytest.skip(ended.err)
    found = document(place)
    assert found["kernel_seen"] is False
    assert libraries(found["operations"]["Compress"]).startswith("libz")


def only(place: Place, **programs: str) -> dict[str, str]:
    """An environment in whose path there is a shell, and programs that do as written."""
    folder = place.folder / "path"
    folder.mkdir()
    (folder / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    for name, text in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return {"PATH": str(folder)}


REFUSED = "echo 'Permission Denied: Try running again with elevated permissions'; exit 1"


def test_without_perf_it_says_how_to_get_it_and_the_run_goes_on(place: Place) -> None:
    place.write(main="print('hello')\n")
    ended = started(place, "--native", "main.py", env=only(place, py_spy=REFUSED))
    assert ended.out == "hello\n"
    assert "perf is not installed" in ended.err
    assert "apt-get install linux-perf" in ended.err
    assert "Nor can py-spy: it may not look into the process" in ended.err
    assert ended.summary["native"] is None
    assert any("--native" in text for text in ended.summary["warnings"])


def test_a_perf_that_may_not_sample_is_told_with_what_to_do(place: Place) -> None:
    place.write(main="print('hello')\n")
    limited = "echo 'Error: Access to performance monitoring and observability operations is limited.'; exit 255"
    ended = started(place, "--native", "main.py", env=only(place, perf=limited, py_spy=REFUSED))
    assert ended.out == "hello\n"
    assert "Access to performance monitoring" in ended.err or "perf_event_paranoid" in ended.err
    assert "PERFMON" in ended.err or "sysctl" in ended.err


def test_a_perf_that_is_too_old_is_told(place: Place) -> None:
    place.write(main="print('hello')\n")
    ended = started(
        place,
        "--native",
        "main.py",
        env=only(place, perf='echo "Error: unknown option \\`control"; exit 129', py_spy=REFUSED),
    )
    assert ended.out == "hello\n"
    assert "too old" in ended.err


@pytest.mark.parametrize("rate", ["0", "-3", "fast", "1.5", "100000000"])
def test_a_wrong_rate_is_refused(place: Place, rate: str) -> None:
    place.write(main="print('hello')\n")
    ended = place.voirkit(f"--native={rate}", "main.py")
    assert ended.code == 2
    assert "no rate" in ended.err
    assert ended.out == ""


def test_a_run_without_the_flag_loads_nothing_of_it(place: Place) -> None:
    place.write(
        main="import sys\nprint([m for m in sys.modules if 'native_' in m or m == 'subprocess'])\n"
    )
    assert started(place, "--quiet", "main.py").out == "[]\n"


@pytest.mark.torch
@pytest.mark.usefixtures("perf")
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_a_resize_of_pillow_is_mapped_to_its_function(place: Place) -> None:
    place.write(main=SPANS + RESIZE)
    started(place, "--native=1999", "main.py")
    functions = document(place)["operations"]["RandomResizedCrop"]["functions"]
    hottest = next(row["function"] for row in functions.values())
    assert hottest == "_ImagingResampleHorizontal_8bpc"


@pytest.mark.skipif(
    shutil.which("py-spy", path=os.path.dirname(sys.executable)) is None, reason="needs py-spy"
)
def test_where_there_is_no_perf_py_spy_samples_by_operation(place: Place) -> None:
    place.write(
        main=SPANS
        + """
class Compress:
    def __call__(self):
        compress()
planted("operation", "Compress", "loader", Compress(), 80)
"""
    )
    ended = started(place, "--native", "main.py", env=only(place))
    if "Nor can py-spy" in ended.err:
        pytest.skip(ended.err)
    found = document(place)
    assert found["tool"] == "py-spy"
    assert libraries(found["operations"]["Compress"]).startswith("libz")
    assert "py-spy samples instead" in ended.err


@pytest.mark.torch
@pytest.mark.usefixtures("perf")
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_with_loader_the_transforms_in_its_workers_are_mapped(place: Place) -> None:
    place.write(
        main="""
        import os
        from PIL import Image
        from torch.utils.data import DataLoader, Dataset
        from torchvision import transforms

        class Photos(Dataset):
            transform = transforms.Compose([transforms.RandomResizedCrop(300, scale=(0.9, 1.0)), transforms.ToTensor()])
            image = Image.frombytes("RGB", (700, 500), os.urandom(700) * 1500)
            def __len__(self):
                return 120
            def __getitem__(self, index):
                return self.transform(self.image)

        for batch in DataLoader(Photos(), batch_size=20, num_workers=2):
            pass
        """
    )
    started(place, "--loader", "--native=1999", "main.py")
    operations = document(place)["operations"]
    assert {
        name: row["n"]
        for name, row in operations.items()
        if name in ("RandomResizedCrop", "ToTensor")
    } == {
        "RandomResizedCrop": 120,
        "ToTensor": 120,
    }
    functions = [row["function"] for row in operations["RandomResizedCrop"]["functions"].values()]
    assert (
        "_ImagingResampleHorizontal_8bpc" in functions[:3]
    )  # what the kernel does for new pages may take longer
