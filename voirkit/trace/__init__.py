"""The trace: spans, marks and counters, recorded into files at a high rate, and read back.

A record is in its file when the call that made it returns. ``recorder`` is the interface for
writing, ``reader`` for reading. The package is a bottom layer: outside of itself, it imports only
``voirkit.errors`` and ``voirkit.fork``.
"""
