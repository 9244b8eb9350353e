"""Analysis of a run's records: steps, phases, rates and the verdict. Pure functions over numpy
arrays, which know nothing of reports.

``segmentation`` cuts a thread's time at its requests for batches. ``nesting`` attributes each
instant to one span, and ``steps`` combines both. ``phases`` turns records into ranks, ``document``
computes the values of ``summary.json``, and ``verdict`` interprets them.
"""
