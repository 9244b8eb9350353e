"""The trace plane: spans, marks and counters at a high rate, each in a file when the call that
recorded it returns.

``recorder`` is its door for who records, ``reader`` for who reads.  Stands on the ground: imports
nothing of voirkit but ``errors``.
"""
