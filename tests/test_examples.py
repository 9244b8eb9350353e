"""The examples learn, print the same each time and under voirkit, and their voirfiles give all that they promise.

Importing torch and making the first optimizer takes seconds: each example is run three times for all its tests, two side by side.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

pytest.importorskip("torchvision")

EXAMPLES = Path(__file__).parent.parent / "examples"
# Options that make each example small, and the number of steps that it then does.
SMALL = {
    "mlp": (["--epochs", "2", "--items", "1000", "--batch-size", "64"], 32),
    "resnet": (
        ["--size", "64", "--epochs", "2", "--batch-size", "8", "--limit", "8", "--workers", "2"],
        16,
    ),
    "sentiment": (
        ["--steps", "40", "--sentences", "640", "--batch-size", "16", "--test-sentences", "64"],
        40,
    ),
}
NAMES = sorted(SMALL)
Run = Callable[[str, str], Ended]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images as make_images.py makes them, but few."""
    folder = tmp_path_factory.mktemp("data") / "images"
    made = Place(folder.parent).python(
        str(EXAMPLES / "resnet" / "make_images.py"), "--data", str(folder), "--count", "64"
    )
    assert made.code == 0, made.err
    return folder


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """What came of a small example run by ``"python"``, by python ``"again"``, or by ``"voirkit"``."""

    def start(name: str, how: str) -> Ended:
        place = Place(tmp_path_factory.mktemp(f"{name}-{how}"))
        words = [str(EXAMPLES / name / "main.py"), *SMALL[name][0]]
        if name == "resnet":
            words += ["--data", str(images)]
        return (
            place.voirkit("--verify", "--options", *words)
            if how == "voirkit"
            else place.python(*words)
        )

    with ThreadPoolExecutor(2) as pool:

        @cache
        def started(name: str) -> dict[str, Future[Ended]]:
            return {how: pool.submit(start, name, how) for how in ("python", "again", "voirkit")}

        def ended(name: str, how: str) -> Ended:
            found = started(name)[how].result()
            assert found.code == 0, found.err
            return found

        yield ended


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls(run: Run, name: str) -> None:
    losses = [float(found) for found in re.findall(r"loss (\S+?),?\s", run(name, "python").out)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_python_says_nothing_on_stderr(run: Run, name: str) -> None:
    assert run(name, "python").err == ""


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_print_the_same(run: Run, name: str) -> None:
    assert run(name, "python").out == run(name, "again").out


@pytest.mark.parametrize("name", NAMES)
def test_the_script_prints_the_same_under_voirkit(run: Run, name: str) -> None:
    assert run(name, "voirkit").out == run(name, "python").out


@pytest.mark.parametrize("name", NAMES)
def test_the_voirfile_gives_every_reading(run: Run, name: str) -> None:
    steps = SMALL[name][1]
    expected = {"use_cuda": 1, "model": 1, "loader": 1, "loss": steps, "step": steps}
    given = run(name, "voirkit").summary["given"]
    assert {key: given.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", NAMES)
def test_each_step_is_one_compute_wrap_with_a_batch(run: Run, name: str) -> None:
    summary = run(name, "voirkit").summary
    steps = SMALL[name][1]
    wraps = [probe["events"] for probe in summary["probes"] if "compute_start" in probe["selector"]]
    assert wraps == [2 * steps]
    # A batch comes with each step, and with what else an event of the loop carries of it.
    assert summary["given"]["batch"] >= steps
    assert summary["given"]["compute_start"] >= steps


@pytest.mark.parametrize("name", NAMES)
def test_the_voirfile_reduces_the_losses_to_the_smallest(run: Run, name: str) -> None:
    ended = run(name, "voirkit")
    printed = [float(found) for found in re.findall(r"loss (\S+?),?\s", ended.out)]
    found = re.search(r"Minimum loss: (\S+)", ended.err)
    assert found is not None
    assert float(found[1]) <= min(printed)


def test_the_sentiment_voirfile_gives_the_entries_of_the_metrics(run: Run) -> None:
    given = run("sentiment", "voirkit").summary["given"]
    assert [given.get(key) for key in ("accuracy", "precision", "recall", "f1")] == [1, 1, 1, 1]


def test_without_images_the_resnet_says_how_to_make_them(place: Place) -> None:
    ended = place.python(str(EXAMPLES / "resnet" / "main.py"), "--data", "nowhere")
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.splitlines() == [
        f"nowhere: no such folder. Make the images first: python {EXAMPLES / 'resnet' / 'make_images.py'}"
    ]


def test_images_that_are_there_are_kept(images: Path) -> None:
    one = sorted(images.glob("*/*.jpg"))[0]
    before = one.stat().st_mtime_ns
    made = Place(images.parent).python(
        str(EXAMPLES / "resnet" / "make_images.py"), "--data", str(images), "--count", "64"
    )
    assert made.out == f"{images}: 0 images made, 64 already there\n"
    assert one.stat().st_mtime_ns == before


def test_the_images_are_the_same_for_the_same_seed(images: Path, place: Place) -> None:
    place.python(str(EXAMPLES / "resnet" / "make_images.py"), "--data", "few", "--count", "4")
    few = sorted((place.folder / "few").glob("*/*.jpg"))
    assert len(few) == 4
    assert [path.read_bytes() for path in few] == [
        (images / path.parent.name / path.name).read_bytes() for path in few
    ]


def test_the_images_have_several_sizes(images: Path) -> None:
    from PIL import Image

    sizes = []
    for path in images.glob("*/*.jpg"):
        with Image.open(path) as image:
            sizes.append(image.size)
    assert len(set(sizes)) > len(sizes) // 2
    assert all(200 <= width <= 800 and 200 <= height <= 600 for width, height in sizes)


@pytest.mark.slow
def test_the_training_order_does_not_depend_on_the_workers(images: Path, place: Place) -> None:
    place.write(
        order=f"""
        import argparse, sys
        from pathlib import Path
        sys.path.insert(0, {str(EXAMPLES / "resnet")!r})
        from main import make_dataset, make_loader

        dataset = make_dataset(Path({str(images)!r}), 64)
        orders = []
        for workers in (0, 2):
            args = argparse.Namespace(seed=3, limit=None, batch_size=8, workers=workers)
            loader = make_loader(dataset, args, use_cuda=False)
            orders.append([target.tolist() for epoch in range(2) for _, target in loader])
        print(orders[0] == orders[1], orders[0][:8] == orders[0][8:], len(orders[0]))
        """
    )
    assert place.python("order.py").out == "True False 16\n"


@pytest.mark.slow
def test_sentences_read_from_files_train_the_same(place: Place) -> None:
    options = [
        "--steps",
        "10",
        "--sentences",
        "40",
        "--batch-size",
        "4",
        "--test-sentences",
        "8",
        "--workers",
        "2",
    ]
    script = str(EXAMPLES / "sentiment" / "main.py")
    # Side by side: most of the time goes into importing torch.
    others = subprocess.Popen(
        [sys.executable, script, *options], stdout=subprocess.PIPE, text=True, cwd=place.folder
    )
    read = place.python(script, *options, "--data-dir", "sentences", "--save", "weights.pt")
    assert others.communicate()[0] == read.out
    assert len(list((place.folder / "sentences").glob("*/*.txt"))) == 48
    assert (place.folder / "weights.pt").stat().st_size > 100_000
