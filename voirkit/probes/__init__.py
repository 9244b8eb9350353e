"""Probes: a selector becomes a stream of what variables of named functions are set to.

From the inside out: ``language`` and ``grammar`` read selectors, ``catalogue`` and ``selectors`` say what is wrong with them, ``plan``
says what they ask for, ``sites`` puts taps into trees, ``source`` and ``weave`` get trees from live functions and put new code into them,
``imports`` does so before a module runs, ``taps`` and ``matching`` are what is called, ``compiled`` keeps torch.compile off, ``engine``
holds it together, ``stream`` is what users have in hand.
"""

from voirkit.probes.scope import Scope
from voirkit.probes.stream import Probe, global_probe, probing, refstring

__all__ = ["Probe", "Scope", "global_probe", "probing", "refstring"]
