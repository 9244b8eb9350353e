"""Whose voirfiles and configuration files are taken: a real file system, with owners that root gives them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import Place

from voirkit import trust
from voirkit.errors import ConfigurationError
from voirkit.options.configuration import collect

MALLORY, ALICE = 12_345, 12_346
as_root = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives files to others"
)
EXECUTES = "def instrument_x(ov):\n    print('executed')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "main.py"
    path.write_text("print('ran')\n")
    return path


def file(folder: Path, uid: int = 0, mode: int = 0o644, folder_mode: int = 0o755) -> str:
    """A voirfile of a user's."""
    folder.mkdir(exist_ok=True)
    path = folder / "voirfile.py"
    path.write_text(EXECUTES)
    path.chmod(mode)
    folder.chmod(folder_mode)
    if uid:
        os.chown(path, uid, -1)
    return str(path)


def test_ones_own_file_is_taken(tmp_path: Path, script: Path) -> None:
    assert trust.fault(file(tmp_path / "a"), str(script)) == ""


@as_root
def test_a_file_of_another_user_is_not(tmp_path: Path, script: Path) -> None:
    assert trust.fault(file(tmp_path / "a", MALLORY), str(script)) == f"belongs to uid {MALLORY}"


@pytest.mark.parametrize("link", ["file", "folder"])
@as_root
def test_what_a_link_leads_to_counts(tmp_path: Path, script: Path, link: str) -> None:
    theirs = Path(file(tmp_path / "theirs", MALLORY))
    path = tmp_path / "own" / "voirfile.py"
    if link == "file":
        path.parent.mkdir()
        path.symlink_to(theirs)
    else:
        path.parent.symlink_to(theirs.parent)
    assert trust.fault(str(path), str(script)) == f"belongs to uid {MALLORY}"


def test_a_file_that_everybody_can_write_is_not_taken(tmp_path: Path, script: Path) -> None:
    assert (
        trust.fault(file(tmp_path / "a", mode=0o666), str(script)) == "can be written by every user"
    )
    assert (
        trust.fault(file(tmp_path / "b", folder_mode=0o777), str(script))
        == "can be written by every user"
    )
    assert (
        trust.fault(file(tmp_path / "c", folder_mode=0o1777), str(script)) == ""
    )  # as /tmp: others cannot replace it there


def test_a_file_that_its_group_can_write_is_taken(tmp_path: Path, script: Path) -> None:
    assert trust.fault(file(tmp_path / "a", mode=0o664, folder_mode=0o775), str(script)) == ""


@as_root
def test_who_can_write_the_script_has_code_executed_in_any_case(
    tmp_path: Path, script: Path
) -> None:
    """A container whose user is root, and whose checkout belongs to somebody outside."""
    path = file(tmp_path / "a", MALLORY)
    os.chown(script, MALLORY, -1)
    assert trust.fault(path, str(script)) == ""
    os.chown(path, ALICE, -1)
    assert trust.fault(path, str(script)) == f"belongs to uid {ALICE}"
    os.chown(path, 0, -1)
    os.chmod(path, 0o666)  # a mounted folder in which all files are so
    assert trust.fault(path, str(script)) != ""
    script.chmod(0o666)
    assert trust.fault(path, str(script)) == ""


@as_root
def test_who_called_sudo_is_trusted_by_root_alone(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path / "a", ALICE)
    monkeypatch.setenv("SUDO_UID", str(ALICE))
    assert trust.fault(path, str(script)) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 12_347)
    assert trust.fault(path, str(script)) == f"belongs to uid {ALICE}"


@as_root
def test_a_folder_that_the_user_names_is_taken_with_all_below(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path / "a", MALLORY)
    assert trust.fault(path, str(script), [str(tmp_path / "b"), str(tmp_path)]) == ""
    assert trust.fault(path, str(script), [str(tmp_path / "a" / "voir")]) != ""
    monkeypatch.setenv("VOIRKIT_TRUST", f"/nowhere:{tmp_path}")
    assert trust.fault(path, str(script)) == ""
    monkeypatch.setenv("VOIRKIT_TRUST", "*")
    assert trust.fault(path, str(script)) == ""


def test_a_folder_that_is_none_is_refused(place: Place) -> None:
    place.write(main="print('ran')\n")
    assert (
        place.voirkit("--trust", "main.py", "main.py").err
        == "voirkit: --trust main.py: main.py is a file; give a folder.\n"
    )
    assert (
        place.voirkit("--trust", "gone", "main.py").err
        == "voirkit: --trust gone: gone is not there; give a folder.\n"
    )


@as_root
def test_options_of_somebody_else_are_refused_and_an_empty_table_is_not(
    tmp_path: Path, script: Path
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    os.chown(tmp_path / "pyproject.toml", MALLORY, -1)
    assert collect(None, str(tmp_path / "below")) == []
    for name, text in (
        ("pyproject.toml", "[tool.voirkit]\nstop = 1\n"),
        ("voirkit.toml", "stop = 1\n"),
    ):
        (tmp_path / name).write_text(text)
        os.chown(tmp_path / name, MALLORY, -1)
        with pytest.raises(
            ConfigurationError, match=f"belongs to uid {MALLORY}, and would set options of yours"
        ):
            collect(None, str(tmp_path / "below"))
        assert len(collect(None, str(tmp_path / "below"), trusted=[str(tmp_path)])) == 1
        assert (
            len(collect(None, str(tmp_path / "below"), [str(tmp_path / name)])) == 1
        )  # named on the command line
        (tmp_path / name).unlink()


@as_root
def test_a_run_beside_a_planted_voirfile_executes_nothing_and_says_what_to_do(place: Place) -> None:
    place.write(main="print('ran')\n")
    file(place.folder, MALLORY)
    refused = place.voirkit("main.py")
    assert (refused.code, refused.out) == (2, "")
    path = os.path.realpath(place.folder)
    assert refused.err == (
        f"voirkit: {path}/voirfile.py: this voirfile belongs to uid {MALLORY}, and would be executed as you.\n"
        f"  If you trust what is in it, say so: voirkit --trust {path} SCRIPT, or VOIRKIT_TRUST={path}\n"
    )
    assert place.voirkit("--trust", ".", "main.py").out == "executed\nran\n"
    assert (
        place.voirkit("--force", "main.py", env={**os.environ, "VOIRFILE": "voirfile.py"}).out
        == "executed\nran\n"
    )


@as_root
def test_to_another_user_roots_files_are_as_good_as_own_ones(place: Place) -> None:
    with TemporaryDirectory() as folder:  # the tests' own folder is closed to others
        open_ = Path(folder)
        open_.chmod(0o755)
        script, roots = open_ / "main.py", file(open_ / "root")
        script.write_text("")
        own, theirs = file(open_ / "own", ALICE), file(open_ / "theirs", MALLORY)
        code = (
            f"import os, sys\nfrom voirkit import trust\nos.setgid({ALICE}); os.setuid({ALICE})\n"
            "print([trust.fault(path, sys.argv[1]) for path in sys.argv[2:]])\n"
        )
        done = place.run(sys.executable, "-c", code, str(script), roots, own, theirs)
    assert (done.out, done.err) == (f"['', '', 'belongs to uid {MALLORY}']\n", "")


@as_root
def test_a_folder_to_follow_that_is_somebody_elses_is_not_followed(place: Place) -> None:
    place.write(main="import os\nprint(os.environ.get('VOIRKIT_FOLLOW'))\n")
    folder = place.folder / "follow"
    folder.mkdir(mode=0o755)
    (folder / "options").write_text("--html\0")
    os.chown(folder, MALLORY, -1)
    code = "import voirkit.follow_start, runpy; runpy.run_path('main.py')"
    done = place.run(sys.executable, "-c", code, env={**os.environ, "VOIRKIT_FOLLOW": str(folder)})
    assert (done.out, done.err) == ("None\n", "")
    assert sorted(os.listdir(folder)) == ["options"]
