"""Whether files that torch.save wrote hold the same: a program of its own, since it loads them.

    python -m voirkit_instruments.what_if.analyse_contents [--near 0.01] A B [A B ...]

Prints one line of JSON: ``equal`` (true, false; null if it can not be told) and ``because``. Files with the same records are the same,
which needs no unpickling; else they are loaded with ``weights_only`` and compared value by value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def main(words: Sequence[str]) -> int:
    """Returns the exit code, 0."""
    import json

    near = float(words[1]) if words[:1] == ["--near"] else 0.0
    paths = words[2 if near else 0 :]
    equal: bool | None = True
    because = ""
    for one, other in zip(paths[::2], paths[1::2], strict=True):
        found, why = same(one, other, near)
        if found is not True:
            equal, because = found, f"{other}: {why}"
            break
        because = because or why
    print(json.dumps({"equal": equal, "because": because}))
    return 0


def same(one: str, other: str, near: float) -> tuple[bool | None, str]:
    """Whether two files hold the same, and what is to be said of it."""
    import torch

    if _same_records(torch, one, other):
        return True, ""
    try:
        first, second = (torch.load(path, map_location="cpu", weights_only=True) for path in (one, other))
    except Exception as exc:
        return None, f"can not be loaded with weights_only ({type(exc).__name__}), and its bytes differ"
    most = 0.0
    for where, apart in differences(torch, first, second, "it"):
        if apart is None or apart > near:
            return False, f"{where} differs" + ("" if apart is None else f" by {apart:.2g} of itself")
        most = max(most, apart)
    return True, f"they differ by {most:.2g} of themselves, which is rounding" if most else ""


def _same_records(torch: Any, one: str, other: str) -> bool:
    """Whether two files of torch's format hold the same pickle and the same storages, byte for byte."""
    try:
        readers = [torch._C.PyTorchFileReader(path) for path in (one, other)]
        names = [sorted(name for name in reader.get_all_records() if not name.startswith(".data/")) for reader in readers]
        return names[0] == names[1] and all(readers[0].get_record(name) == readers[1].get_record(name) for name in names[0])
    except Exception:  # the format from before torch 1.6, or another torch
        return False


def differences(torch: Any, one: Any, other: Any, where: str) -> Iterator[tuple[str, float | None]]:
    """What differs: where, and by what part of itself (of a tensor by its norm); None if that can not be said."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield where, None
        elif not same_bits(torch, one, other):
            yield where, _apart(torch, one, other)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            yield where, None
            return
        for key in one:
            yield from differences(torch, one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(torch, a, b, f"{where}[{at}]")
    elif type(one) is float and type(other) is float:
        if one != other and (one == one or other == other):
            yield where, abs(one - other) / max(abs(one), abs(other))
    else:
        try:
            equal = type(one) is type(other) and bool(one == other)
        except Exception:  # an array, or an object that does not compare
            equal = False
        if not equal:
            yield where, None


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors hold the same; nan is the same as nan."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _apart(torch: Any, one: Any, other: Any) -> float | None:
    if not (one.is_floating_point() and bool(one.isfinite().all()) and bool(other.isfinite().all())):
        return None
    whole = float(one.double().norm())
    return float((one.double() - other.double()).norm()) / whole if whole else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
