"""``state_dict()`` results that the program keeps, to tell if their weights have been updated since
the call.

The tensors in a result are references to the parameters, not copies. They share the parameters'
change counter (``_version``), which shows any update since the call. No object of the program is
kept alive.
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


_DEEPEST = 3  # dictionaries and lists are searched down to this nesting depth
_MOST_LOOKED_AT = 256  # number of elements searched in each dictionary or list


class KeptWeights:
    """Results of ``state_dict()`` that are still alive, each with the version of one trained
    parameter at the call."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        # for each result of ``state_dict()``, one parameter: (weak reference to it, its name in the
        # result, its address and its version at the call)
        self._results = IdentityMap()

    def add(self, module: Any, result: Any) -> None:
        """Remember the result of ``module.state_dict()``."""
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
        """True if an object is or contains a ``state_dict()`` result whose weights have been
        updated since."""
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
            # If the parameter has moved, for example to another device, the result no longer shares
            # its memory.
            is_moved = parameter is not None and parameter.data_ptr() != address
            return value.data_ptr() == address and not is_moved and value._version > version


def _first_trained(module: Any) -> Any:
    """Return the first parameter of a module that requires a gradient; None if there is none."""
    for parameter in parameters_of(module):
        if parameter is not None and parameter.requires_grad:
            return parameter
    return None
