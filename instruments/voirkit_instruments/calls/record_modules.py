"""Which modules, classes and functions ``--calls`` names, and whether they can be there; imports none of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from voirkit.errors import CommandLineError, did_you_mean

# What a training calls: the layers' functions, optimizers and schedulers, modules, backward, and the loader.
DEFAULT = (
    "torch.nn.functional",
    "torch.optim",
    "torch.nn.Module.__call__",
    "torch.Tensor.backward",
    "torch.utils.data.DataLoader",
)
# As people write them, who write `from torch import nn` and `import torch.nn.functional as F`.
SHORT = {"nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim", "Tensor": "torch.Tensor", "DataLoader": DEFAULT[-1]}


def is_script(word: str, following: Sequence[str]) -> bool:
    """Whether the word after ``--calls`` is SCRIPT, and not what ``--calls`` is to record.

    A file is, and what ends in ``.py``; so is a folder that can be run, unless another script comes after it.
    """
    if os.path.isfile(word) or word.endswith(".py"):
        return True
    if not os.path.isfile(os.path.join(word, "__main__.py")):
        return False
    return not (following and (following[0] in ("-m", "--") or is_script(following[0], ())))


def names(given: str | bool | None) -> list[str]:
    """What is asked for, by full names; the default list where nothing is (None, or True: the flag alone).

    Raises:
        CommandLineError: It is no list of names, or an empty one.
    """
    if not isinstance(given, str):
        return list(DEFAULT)
    found: list[str] = []
    for word in given.replace(" ", ",").split(","):
        if not word:
            continue
        first, dot, rest = word.partition(".")
        name = SHORT.get(first, first) + dot + rest
        if not all(part.isidentifier() for part in name.split(".")):
            raise CommandLineError(f"{word!r} is no name of a module, class or function.", where=f"--calls={given}")
        if name not in found:
            found.append(name)
    if not found:
        raise CommandLineError(
            "it names nothing to record.",
            where=f"--calls={given}",
            next="Name modules, --calls=torch.optim,mine, or none at all for what a training calls: voirkit --calls SCRIPT",
        )
    return found


def check(asked: Sequence[str], folder: str) -> None:
    """See whether the modules are there, before the script starts.

    Args:
        asked: Full names.
        folder: Where the script looks for modules first.

    Raises:
        CommandLineError: One is not.
    """
    path = [folder, *(entry for entry in sys.path if entry)]
    for name in asked:
        first = name.partition(".")[0]
        if first in sys.modules or first in sys.builtin_module_names or PathFinder.find_spec(first, path) is not None:
            _check_below(name, path)
            continue
        hint = did_you_mean(first, [name for name in (*SHORT, "torch", "torchvision") if name != first])  # torch itself may be missing
        search = f"Looked in {folder} and in python's own path; name other folders in PYTHONPATH."
        raise CommandLineError(f"there is no module {first!r}.", where=f"--calls {name}", next=f"{hint}\n{search}".strip())


def _check_below(name: str, path: list[str]) -> None:
    """The last part that is found as a module; what comes behind it may be a class or function, of which nothing is known yet."""
    parts, places = name.split("."), path
    for n in range(len(parts) - 1):
        spec = PathFinder.find_spec(".".join(parts[: n + 1]), places)
        if spec is None or spec.submodule_search_locations is None:
            return
        places = list(spec.submodule_search_locations)
