"""Creates, checks and finds run directories, and reads and writes their JSON documents.

A directory that holds foreign files is refused. voirkit never deletes or overwrites a file that it
did not write.
"""

from __future__ import annotations

import json
import os
import re
import time

from voirkit.errors import RunDirectoryError, did_you_mean, reason
from voirkit.fork import job
from voirkit.plugins import installed_instruments
from voirkit.runs.manifest import SCHEMA, machine, rank_and_world_size, restart
from voirkit.runs.other_processes import began_s, locked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MANIFEST, SUMMARY = "run.json", "summary.json"
# files and folders that voirkit itself writes into a run directory; instruments add more
_ENTRIES = (MANIFEST, SUMMARY, "report.html", "stream", "trace", "steps", "collectives")
PARENT = "voirkit-runs"
_LARGEST = 1 << 27  # maximum size of a document in bytes; parsed, it takes ten times the memory
_RECORD = re.compile(r".*-r\d+-\d+\.json")  # <host>-r<rank>-<process id>.json


def create(run_dir: str | None, script: str, force: bool) -> str:
    """Create the directory of a run that starts now.

    Args:
        run_dir: The value of ``--run-dir``, or None for ``voirkit-runs/<UTC time>-<script>``.
        script: The script or module that is run; its name becomes part of the default directory.
        force: Whether to replace a run that is already in the directory.

    Returns:
        The absolute path of the directory.

    Raises:
        RunDirectoryError: The directory holds another run or files that are not voirkit's, or
            cannot be created.
    """
    if run_dir is not None and is_url(run_dir):
        hint = "Copy it there when it is over; voirkit report reads it there."
        raise RunDirectoryError(
            "a run is recorded into a folder.", where=f"--run-dir {run_dir}", next=hint
        )
    rank, size = rank_and_world_size()
    if run_dir is None:
        has_ranks = size > 1 or "TORCHELASTIC_RUN_ID" in os.environ
        folder = where = os.path.join(PARENT, _name(script, has_ranks))
    else:
        folder, where = run_dir, f"--run-dir {run_dir}"
    try:
        path = os.path.abspath(folder)
        continues = restart() and is_continued(read_manifest(path) or {})
        if run_dir is None and size == 1 and not continues:
            path = _new(path)
        elif os.path.exists(path):
            _prepare_existing(path, where, force, ranks=size > 1)
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise RunDirectoryError("this folder cannot be written to.", where=where)
    except OSError as exc:
        raise RunDirectoryError(f"cannot be made: {exc.strerror}.", where=where) from None
    if run_dir is None and rank == 0:
        _point_latest(path)
    return path


def _name(script: str, ranks: bool) -> str:
    began_at = _launched() if ranks else time.time()
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began_at))
    stem = os.path.basename(script.rstrip("/")).removesuffix(".py").replace(":", ".")
    return f"{start}-{stem or 'run'}"


def _new(path: str) -> str:
    """Create a new directory and return its path. If the path is taken, a number is appended: two
    runs may start in the same second."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    first_path, n = path, 1
    while True:
        try:
            os.mkdir(path)
            return path
        except FileExistsError:
            n += 1
            path = f"{first_path}-{n}"


def _launched() -> float:
    """Return the start time of the parent process, which launched the ranks, in seconds since the
    epoch. All ranks on a host thus choose the same directory name. If the start time cannot be
    read, return the current time."""
    try:
        return began_s(os.getppid())[2]
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()


def _prepare_existing(path: str, where: str, force: bool, ranks: bool) -> None:
    """Make sure that an existing path can be used as run directory, and clear the earlier run if
    it is to be replaced.

    Args:
        where: The path as the user gave it, for error messages.
        force: Whether to replace a run that is already in the directory.
        ranks: Whether this process is one of several ranks.

    Raises:
        RunDirectoryError: The path is a file, or holds another run or foreign files.
    """
    if not os.path.isdir(path):
        raise RunDirectoryError("this is a file, not a folder.", where=where)
    check_entries(os.path.realpath(path), where)
    there = refuse_foreign(path, where)
    manifest = read_manifest(path)
    if there and manifest is None and not ranks:
        raise _not_ours(there, where)
    if manifest is None or is_continued(manifest):
        return
    is_of_job = force or manifest.get("job") == job()
    if ranks and is_of_job and rank_and_world_size()[0] > 0:
        return  # rank 0 replaces or refuses the run that is already there
    if not force:
        raise RunDirectoryError(
            f"this folder holds another run (of {manifest.get('started', 'unknown time')}).",
            where=where,
            next="Give another folder, or replace that run with --force.",
        )
    clear(path, _launched() if ranks else None)


def refuse_foreign(path: str, where: str) -> list[str]:
    """Return the names of the entries of a folder, sorted. Raises RunDirectoryError: one of them is
    not voirkit's."""
    there = sorted(os.listdir(path))
    foreign = {n for n in there if n not in _ENTRIES and not n.endswith(".tmp")}
    if foreign:
        foreign -= _own_entries()  # called only if needed: it imports all installed instruments
    if foreign:
        raise _not_ours(sorted(foreign), where)
    return there


def _own_entries() -> set[str]:
    folders = {name for instrument in installed_instruments() for name in instrument.folders}
    return folders.union(_ENTRIES)


def _not_ours(names: list[str], where: str) -> RunDirectoryError:
    named_entries = ", ".join(names[:4])
    return RunDirectoryError(
        f"this folder holds what is not voirkit's ({named_entries}).",
        where=where,
        next="Give a new or empty folder.",
    )


def check_entries(path: str, where: str) -> None:
    """Check the file types in a run directory, before anything in it is read, written or removed.

    Another user may have made the directory, and reading a run also writes into it (compaction,
    stored counts). Through a link, voirkit would modify other files of the user who reads the run.
    A read from a pipe or device might never end. Links that stay within the directory are allowed.

    Args:
        path: The directory, links resolved.
        where: The directory's path as the user gave it, for error messages.

    Raises:
        RunDirectoryError: An entry is a link that leads out of the directory, or is neither a file
            nor a folder.
    """
    own_entries = _own_entries()
    folders = [path]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue  # unreadable, or removed meanwhile by a process that compacts the run
        for entry in entries:
            if folder == path and entry.name not in own_entries and not entry.name.endswith(".tmp"):
                continue  # not voirkit's, so voirkit never reads it
            entry_path = os.path.join(where, os.path.relpath(entry.path, path))
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if not target.startswith(os.path.join(path, "")):
                    hint = (
                        f"If you trust it, read a copy with the links resolved: cp -rL {where} COPY"
                    )
                    raise RunDirectoryError(
                        "this link leads out of the run directory.", where=entry_path, next=hint
                    )
            elif entry.is_dir():
                folders.append(entry.path)
            elif not entry.is_file() and os.path.lexists(entry.path):
                raise RunDirectoryError(
                    "a run directory holds files and folders, and this is neither.",
                    where=entry_path,
                )


def file_beside(path: str, name: object) -> str:
    """Return the path of a file that a record refers to. The file is in the folder of the record,
    so only the last component of its name is used.

    Args:
        path: The path of the record.
        name: The name of the file, as the record states it.
    """
    return os.path.join(os.path.dirname(path), os.path.basename(str(name)))


def is_continued(manifest: dict[str, Any]) -> bool:
    """True if this process continues the run of a manifest: torchrun has restarted the ranks, or
    the script has re-executed itself."""
    job_before, _, _ = str(manifest.get("job")).partition("/")
    job_now, _, _ = job().partition("/")
    if job_before == job_now and restart() > manifest.get("restart", 0):
        return True
    is_running = manifest.get("ended") == "running" and manifest.get("pid") == os.getpid()
    return is_running and manifest.get("host") == machine()[0]


def clear(path: str, before: float | None = None) -> None:
    """Delete the files that voirkit wrote into a run directory.

    Args:
        before: Delete only files last modified before this time, in seconds since the epoch: other
            ranks may already write to the new run. None to delete all.
    """
    own_entries = _own_entries()
    for folder, folders, files in os.walk(path, topdown=False):
        part = os.path.relpath(folder, path).split(os.sep)[0]
        if part != "." and part not in own_entries:
            continue
        for name in files:
            if part == "." and name not in own_entries and not name.endswith(".tmp"):
                continue
            file = os.path.join(folder, name)
            if before is None or os.lstat(file).st_mtime < before:
                os.unlink(file)
        if part != ".":
            _remove_if_empty(folder)
        for name in folders:
            _remove_if_empty(os.path.join(folder, name))


def remove_summary(path: str) -> None:
    """Delete the summary of the previous attempt of a restarted job. Otherwise it would stay in
    place if the new attempt is killed before it writes its own."""
    try:
        os.unlink(os.path.join(path, SUMMARY))
    except OSError:
        pass  # the previous attempt wrote no summary


def _remove_if_empty(folder: str) -> None:
    if os.path.islink(folder):
        os.unlink(folder)
    elif os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)


def _point_latest(path: str) -> None:
    """Atomically point the link ``latest``, in the run's parent folder, to the run."""
    link = os.path.join(os.path.dirname(path), "latest")
    try:
        if os.path.lexists(link) and not os.path.islink(link):
            return
        temporary = f"{link}.{os.getpid()}.tmp"
        os.symlink(os.path.basename(path), temporary)
        os.replace(temporary, link)
    except OSError:
        pass  # a file system without links; the run itself does not need the link


def read_manifest(path: str) -> dict[str, Any] | None:
    """Return the contents of ``run.json``, or None if it is missing or voirkit did not write it."""
    manifest = read_object(os.path.join(path, MANIFEST))
    return (
        manifest
        if manifest is not None and "voirkit" in manifest and "schema" in manifest
        else None
    )


def read_summary(path: str) -> dict[str, Any] | None:
    """Return the contents of ``summary.json``; None if it is missing or damaged."""
    return read_object(os.path.join(path, SUMMARY))


def read_object(path: str) -> dict[str, Any] | None:
    """Return the object in a JSON file, with null for non-finite numbers. None if the file cannot
    be read, holds no object, or is nested too deeply for Python's recursion limit."""
    document = read_document(path)
    try:
        return finite(document) if isinstance(document, dict) else None
    except RecursionError:
        return None


def read_json(path: str, schema: int) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it cannot be read or has another schema number."""
    document = read_document(path)
    return document if isinstance(document, dict) and document.get("schema") == schema else None


def read_document(path: str) -> Any:
    """Return the contents of a JSON file. None if the file is missing, damaged, or larger than any
    file that voirkit writes."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file) if os.fstat(file.fileno()).st_size <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: str, document: Any) -> None:
    """Write a JSON file atomically, so that a reader never sees half of it. Non-finite numbers
    become null. Raises OSError: the disk is full, or the folder is gone."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", opener=no_link) as file:
            file.write(json.dumps(finite(document), indent=1, default=_unknown) + "\n")
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def no_link(path: str, flags: int) -> int:
    """Open a file without following a symbolic link that may have been planted at its path; an
    ``opener`` for ``open``."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def finite(value: Any) -> Any:
    """Return a document with None in place of non-finite numbers (nan, inf), which JSON lacks."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


def _unknown(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


# the records that each process of an instrument wrote, and the counts derived from them


def record_stems(folder: str) -> list[str]:
    """Return the paths of the records in a folder, without ``.json``, sorted. A record is a JSON
    file in which one process describes what it recorded."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [
        os.path.join(folder, name.removesuffix(".json"))
        for name in names
        if _RECORD.fullmatch(name)
    ]


def kept_counts(
    stem: str,
    schema: int,
    count: Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[str]] | None],
) -> dict[str, Any] | None:
    """Return the counts for one process's record. They are read from the file beside the record, or
    else counted now and stored there.

    A lock makes other processes that ask for the same counts wait. None if the counts cannot be
    computed yet.

    Args:
        stem: A path from ``record_stems``.
        schema: The schema number of both the record and the counts.
        count: Called with the record. Returns the counts, and the suffixes of files to delete once
            the counts are stored; None if the counts cannot be computed yet.
    """
    path = f"{stem}.counts.json"

    def counts() -> dict[str, Any] | None:
        stored = read_json(path, schema)
        if stored is not None:
            return stored
        record = read_json(f"{stem}.json", schema)
        result = None if record is None else count(record)
        if result is None:
            return None
        document, endings = result
        try:
            write_json(path, document)
            folder, name = os.path.split(stem)
            for entry in os.listdir(folder):
                if entry.startswith(f"{name}.") and entry.endswith(tuple(endings)):
                    os.remove(os.path.join(folder, entry))
        except OSError:
            pass  # the counts were not stored: the next reader of the run counts again
        return document

    stored = read_json(path, schema)
    if stored is not None:
        return stored
    try:
        with locked(f"{stem}.lock"):
            return counts()
    except OSError:  # the folder is read-only: no process can write, so no lock is needed
        return counts()


LATEST = os.path.join(PARENT, "latest")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: str) -> bool:
    """True if a path is a URL from which a run can be fetched, such as ``s3://bucket/run``."""
    return _URL.match(path) is not None


def fetch(url: str, folder: str) -> str:
    """Copy a run from object storage. Only files that voirkit writes are copied, and the storage is
    not modified. Checked with s3fs 2026.9.

    Args:
        url: The address of the run, in a form that fsspec accepts.
        folder: The local folder in which the copy is made.

    Returns:
        The path of the copy.

    Raises:
        RunDirectoryError: The address is not a run, or cannot be read.
    """
    failed = "there is no such run."
    try:
        from fsspec.core import url_to_fs

        # no cached file system: the same process may retry with other credentials
        storage, root = url_to_fs(url.rstrip("/"), skip_instance_cache=True)
        there = {path.rstrip("/").rpartition("/")[2] for path in storage.ls(root, detail=False)}
        if there.isdisjoint((MANIFEST, "trace")):
            manifests = sorted(storage.glob(f"{root}/*/{MANIFEST}"))
            runs = [storage.unstrip_protocol(os.path.dirname(file)) for file in manifests]
            raise RunDirectoryError(
                f"this is no run directory: it has no {MANIFEST}.", where=url, next=_name_runs(runs)
            )
        own_entries = _own_entries()
        path = os.path.join(folder, os.path.basename(root))
        sources = []
        copies = []
        for source in storage.find(root):
            name = source.removeprefix(root).lstrip("/")
            is_own = name.split("/")[0] in own_entries
            if is_own and ".." not in name and not name.endswith("/"):
                sources.append(f"{root}/{name}")
                copies.append(os.path.join(path, name))
        failed = "it was removed while it was read."
        storage.get(sources, copies)
    except RunDirectoryError:
        raise
    except ImportError as exc:
        hint = "pip install 'voirkit[s3]'" if url.startswith("s3:") else str(exc)
        raise RunDirectoryError(
            "what reads runs there is not installed.", where=url, next=hint
        ) from None
    except FileNotFoundError:
        raise RunDirectoryError(failed, where=url) from None
    except Exception as exc:  # each storage backend has its own exceptions
        raise RunDirectoryError(f"it cannot be read ({reason(exc)}).", where=url) from None
    return path


def find(path: str) -> str:
    """Return the absolute path of a run directory, links resolved. Raises RunDirectoryError: the
    path is not a run directory that can be read."""
    hint = "A run directory is made by: voirkit SCRIPT"
    if is_url(path):
        raise RunDirectoryError(
            "a run there is read as a whole, and not watched.",
            where=path,
            next=f"voirkit report {path}",
        )
    if path == LATEST and not os.path.lexists(path):
        raise RunDirectoryError(
            "there is no run in this folder.",
            where=path,
            next=f"Name a run directory, or record one.  {hint}",
        )
    if not os.path.exists(path):
        raise RunDirectoryError(
            "there is no such folder.", where=path, next=_near_folders(path) or hint
        )
    if not os.path.isdir(path):
        raise RunDirectoryError("this is a file, not a run directory.", where=path, next=hint)
    try:
        there = os.listdir(path)
    except OSError as exc:
        raise RunDirectoryError(f"it cannot be read: {exc.strerror}.", where=path) from None
    check_entries(os.path.realpath(path), path)
    if MANIFEST not in there:
        from voirkit.runs.trace_files import layout  # imported here because it imports numpy

        if not any(layout(path)):
            raise RunDirectoryError(
                f"this is no run directory: it has no {MANIFEST}.",
                where=path,
                next=_runs_in(path) or hint,
            )
    manifest = read_document(os.path.join(path, MANIFEST))
    if isinstance(manifest, dict) and manifest and "voirkit" not in manifest:
        raise RunDirectoryError(
            f"this is no run directory: its {MANIFEST} is not voirkit's.", where=path, next=hint
        )
    return os.path.realpath(path)


def check_manifest(path: str, where: str) -> list[str]:
    """Return warnings about the manifest of a run directory, at most one. ``Run`` itself warns
    about a damaged manifest.

    Args:
        path: The directory.
        where: The directory's path or address as the user gave it, for the warning.
    """
    file = os.path.join(where, MANIFEST)
    if not os.path.lexists(os.path.join(path, MANIFEST)):
        return [f"{file} is missing: what was run, and how it ended, is not known."]
    manifest = read_document(os.path.join(path, MANIFEST))
    if not isinstance(manifest, dict):
        return []
    if manifest.get("schema") != SCHEMA:
        return [
            f"{file} has schema {manifest.get('schema')!r}, this voirkit knows {SCHEMA}: a newer"
            " voirkit may read more of it."
        ]
    if len(os.listdir(path)) == 1 and manifest.get("ended") != "running":
        return [f"{where} holds nothing but its manifest: nothing that was recorded is left."]
    return []


def _near_folders(path: str) -> str:
    """Return a hint that names folders similar to a path that does not exist; empty if no folder is
    similar."""
    parent, name = os.path.split(path.rstrip("/"))
    try:
        entries = os.listdir(parent or ".")
    except OSError:
        return ""
    folders = [entry for entry in entries if os.path.isdir(os.path.join(parent, entry))]
    return did_you_mean(name, folders)


def _runs_in(path: str) -> str:
    """Return a hint that lists the runs inside a folder that is not itself a run; empty if there
    are no runs in it."""
    entries = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return _name_runs([e for e in entries if os.path.exists(os.path.join(e, MANIFEST))])


def _name_runs(runs: Sequence[str]) -> str:
    return f"It holds runs: {', '.join(runs[-3:])}" if runs else ""
