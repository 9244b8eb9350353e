"""Where the file of expected skips is named, as in CI, no test is skipped unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Ended, Place
from expected_skips import read_patterns

pytestmark = pytest.mark.long

EXPECTED = "# nobody plugs one in\nneeds a .* device\n"


def session(place: Place, *words: str, env: dict[str, str] | None = None, **files: str) -> Ended:
    """Run pytest with the plugin alone on files that it collects."""
    place.write({"expected.txt": EXPECTED, "pytest.ini": "[pytest]\n"}, **files)
    env = {
        "PYTHONPATH": str(Path(__file__).parent),
        "VOIRKIT_EXPECTED_SKIPS": "expected.txt",
        **(env or {}),
    }
    return place.python(
        "-m", "pytest", "-p", "expected_skips", "-p", "no:cacheprovider", *words, env=env
    )


def skipping(reason: str) -> str:
    return f"import pytest\ndef test_a(): pytest.skip({reason!r})\ndef test_b(): pass\n"


def test_a_skip_that_is_expected_is_listed_and_passes(place: Place) -> None:
    ended = session(
        place, test_one=skipping("needs a CUDA device"), test_two=skipping("needs a CUDA\ndevice")
    )
    assert ended.code == 0, ended.out
    assert "\n2: needs a CUDA device\n" in ended.out
    assert "not expected" not in ended.out


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_skip_that_is_not_expected_fails_and_is_named(place: Place, workers: list[str]) -> None:
    ended = session(
        place,
        *workers,
        test_one=skipping("needs a CUDA device"),
        test_two=skipping("it was faster"),
    )
    assert ended.code == 1, ended.out
    assert (
        "\n1: needs a CUDA device\nnot expected: 1: it was faster\n  test_two.py::test_a\n"
        in ended.out
    )


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_file_that_is_not_collected_is_skipped_too(place: Place, workers: list[str]) -> None:
    ended = session(
        place,
        *workers,
        test_one="import pytest\npytest.importorskip('not_there')\n",
        test_two="def test_b(): pass\n",
    )
    assert ended.code == 1, ended.out
    assert (
        "\nnot expected: 1: could not import 'not_there': No module named 'not_there'\n  test_one.py\n"
        in ended.out
    )


def test_the_lists_of_several_sessions_are_put_into_one_file(place: Place) -> None:
    env = {"VOIRKIT_LIST_SKIPS": "list.txt"}
    session(
        place,
        "test_one.py",
        env=env,
        test_one=skipping("needs a CUDA device"),
        test_two="def test_b(): pass\n",
    )
    session(place, "test_two.py", env=env)
    assert (
        place.folder / "list.txt"
    ).read_text() == "skips test_one.py:\n  1: needs a CUDA device\nskips test_two.py:\n  none\n"


def test_without_a_file_of_expected_skips_any_test_may_skip(place: Place) -> None:
    assert (
        session(place, env={"VOIRKIT_EXPECTED_SKIPS": ""}, test_one=skipping("it was faster")).code
        == 0
    )


def test_a_pattern_says_why_it_is_expected() -> None:
    with pytest.raises(pytest.UsageError, match="no comment says why this is expected: b"):
        read_patterns("# why\na\n\nb\n")
