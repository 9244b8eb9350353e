"""Decides whether voirfiles and configuration files that voirkit finds by itself are trusted.

Voirfiles are executed, and configuration files set options. A file is trusted if every user who can
have written it is trusted. Trusted users are the user who runs voirkit, root, the user who called
sudo, and all users who can write the script, since their code is executed anyway.

Example: root in a container runs a script in a checkout or mounted folder that belongs to another
user; a voirfile of the same user is accepted. But a ``voirfile.py`` that another user has put into
``/tmp`` is refused. Group write permission does not matter: membership in a group implies trust.
Files that the user names explicitly are not checked.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FLAG, VARIABLE, ALL = "--trust", "VOIRKIT_TRUST", "*"
_ANYBODY = -1


def fault(path: str, script: str, folders: Sequence[str] = ()) -> str:
    """Return the reason why a file is not trusted, such as ``belongs to mallory (uid 1001)``; empty
    if the file is trusted.

    Args:
        path: The file. Symbolic links in the path are resolved.
        script: The script to run, or the current folder if a module is run. Users who can write it
            are trusted.
        folders: Folders that the user trusts, including everything below them. Those in
            ``$VOIRKIT_TRUST`` are added.
    """
    if not hasattr(os, "geteuid"):  # Windows has no file owners of this kind
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
    """Return the value of ``--trust`` unchanged if it is ``*`` or an existing folder. Raises
    ValueError: there is no such folder."""
    if text != ALL and not os.path.isdir(text):
        raise ValueError(
            f"{text} is {'a file' if os.path.exists(text) else 'not there'}; give a folder."
        )
    return text


def way_out(path: str) -> str:
    """Return a hint that says how to trust the folder of a file."""
    folder = os.path.dirname(os.path.realpath(path))
    return (
        f"If you trust what is in it, say so: voirkit {FLAG} {folder} SCRIPT, or"
        f" {VARIABLE}={folder}"
    )


def is_own(folder: str) -> bool:
    """True if a folder belongs to this user, root, or the user who called sudo, and is not
    writable by everybody. Always true on Windows."""
    there = os.stat(folder)
    return not hasattr(os, "geteuid") or (
        there.st_uid in (0, os.geteuid(), _caller_of_sudo()) and not there.st_mode & 0o002
    )


def _writers(path: str) -> set[int]:
    """Return the ids of the users who can have written a file, apart from groups. ``_ANYBODY`` is
    included if the file or its folder is writable by everybody.

    A writable folder with the sticky bit, such as /tmp, does not count: nobody can replace another
    user's file there.
    """
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
