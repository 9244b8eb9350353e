"""Results of ``state_dict()`` that the program keeps, which tell whether the weights in them are
still those of the call.

They are references to the parameters, not copies, and share the number of their changes
(``_version``): it tells an update since the call, whoever made it. Nothing of the program is kept
alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.values import parameters_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


_DEEPEST = 3  # dictionaries and lists in one another
_MOST_LOOKED_AT = 256  # elements of each


class KeptWeights:
    """Results of ``state_dict()`` that are alive, each with the version that a trained parameter
    had."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        # of each one parameter: a reference to it, its name, and where and in which version it was
        self._results = IdentityMap()

    def add(self, module: Any, result: Any) -> None:
        """``module.state_dict()`` has been called."""
        if type(result) is not OrderedDict:
            return
        with self._torch._C.DisableTorchFunction():
            trained = _first_trained(module)
            if type(trained) not in self._plain or trained.is_inference():
                return
            address = trained.data_ptr()
            if not address:
                return
            for key, value in result.items():
                if type(value) in self._plain and value.data_ptr() == address:
                    self._results[result] = (weakref.ref(trained), key, address, trained._version)
                    return

    def is_stale(self, thing: Any, depth: int = _DEEPEST) -> bool:
        """True if something is, or holds, a result whose weights have been updated since."""
        watched = self._results.get(thing)
        if watched is not None:
            return self._is_updated(thing, *watched)
        if not depth or type(thing) not in (dict, OrderedDict, list, tuple):
            return False
        elements = list(thing.values()) if isinstance(thing, dict) else thing
        return any(self.is_stale(element, depth - 1) for element in elements[:_MOST_LOOKED_AT])

    def _is_updated(
        self, result: Any, reference: weakref.ref[Any], key: str, address: int, version: int
    ) -> bool:
        value, parameter = result.get(key), reference()
        if type(value) not in self._plain:
            return False
        with self._torch._C.DisableTorchFunction():
            # it was put onto another device
            is_moved = parameter is not None and parameter.data_ptr() != address
            return value.data_ptr() == address and not is_moved and value._version > version


def _first_trained(module: Any) -> Any:
    """The first parameter of a module that requires a gradient; None without."""
    for parameter in parameters_of(module):
        if parameter is not None and parameter.requires_grad:
            return parameter
    return None
