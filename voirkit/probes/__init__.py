"""Probes: a selector becomes a stream of what variables of named functions are set to.

The engine that watches the functions is ptera's, behind ``engine.py`` alone; the rest of voirkit knows only the names exported here.
"""

from voirkit.probes.scope import NotDefinedYet, Scope
from voirkit.probes.stream import Probe, global_probe, probing, refstring

__all__ = ["NotDefinedYet", "Probe", "Scope", "global_probe", "probing", "refstring"]
