"""The input pipeline of a run, from the records of ``--loader``: operations, batches, workers, the queue, what to do first.

A pipeline of pure functions over the records of one rank (``records`` -> ``batches``, ``samples`` -> ``partial``) and over the partial
results of all ranks (``combine`` -> ``figures``).
"""
