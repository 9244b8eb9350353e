"""Whose files voirkit executes, or takes options from, where it finds them by itself: voirfiles and
configuration files.

A file is taken if each user who can have written it is trusted. That is the user who runs voirkit,
root, the user who called sudo, and those who can write the script: they have their code executed in
any case. So a root in a container, whose files belong to somebody outside (a runner's checkout, a
mounted folder), is refused nothing, and a ``voirfile.py`` that another user has put into ``/tmp``
is not executed. Files that a group can write are taken: to be in one is to be trusted there. Files
that the user has named are not asked about.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FLAG, VARIABLE, ALL = "--trust", "VOIRKIT_TRUST", "*"
_ANYBODY = -1


def fault(path: str, script: str, folders: Sequence[str] = ()) -> str:
    """Why a file is not taken: ``belongs to mallory (uid 1001)``; empty if it is.

    Args:
        path: The file. What it and its folder are links to counts.
        script: What is executed in any case: the script, or the current folder where a module is.
        folders: Those that the user trusts, with all below them, beside those of
            ``$VOIRKIT_TRUST``.
    """
    if not hasattr(os, "geteuid"):  # Windows has no such owners
        return ""
    path = os.path.realpath(path)
    named = [*folders, *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]
    if any(
        trusted_path == ALL or path.startswith(os.path.join(os.path.realpath(trusted_path), ""))
        for trusted_path in named
    ):
        return ""
    strangers = (
        _writers(path) - _writers(os.path.realpath(script)) - {0, os.geteuid(), _caller_of_sudo()}
    )
    if _ANYBODY in strangers:
        return "can be written by every user"
    return f"belongs to {' and '.join(map(_named, sorted(strangers)))}" if strangers else ""


def trusted_folder(text: str) -> str:
    """A folder, as the flag takes it. Raises ValueError: there is none of that name."""
    if text != ALL and not os.path.isdir(text):
        raise ValueError(
            f"{text} is {'a file' if os.path.exists(text) else 'not there'}; give a folder."
        )
    return text


def way_out(path: str) -> str:
    """What to do about a file that is not taken."""
    folder = os.path.dirname(os.path.realpath(path))
    return (
        f"If you trust what is in it, say so: voirkit {FLAG} {folder} SCRIPT, or"
        f" {VARIABLE}={folder}"
    )


def is_own(folder: str) -> bool:
    """Whether a folder is this user's, root's, or of who called sudo, and not everybody can write
    into it."""
    there = os.stat(folder)
    return not hasattr(os, "geteuid") or (
        there.st_uid in (0, os.geteuid(), _caller_of_sudo()) and not there.st_mode & 0o002
    )


def _writers(path: str) -> set[int]:
    """The ids of the users who can have written a file. In a folder with the sticky bit, as /tmp,
    none replaces the file of another."""
    owners = set()
    try:
        status, around = os.stat(path), os.stat(os.path.dirname(path))
    except OSError:
        return set()
    if status.st_mode & 0o002 or around.st_mode & 0o1002 == 0o002:
        owners.add(_ANYBODY)
    return {status.st_uid, *owners}


def _caller_of_sudo() -> int:
    word = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return int(word) if word.isdecimal() else 0


def _named(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
