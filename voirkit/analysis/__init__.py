"""From what a run has recorded to answers: steps, phases, rates, verdict. Pure functions over numpy
arrays; knows no report.

``segmentation`` cuts a thread's time at its requests for batches, ``nesting`` counts each instant
once, ``steps`` puts both together, ``phases`` makes ranks of the records, ``document`` writes their
figures down as in ``summary.json``, ``verdict`` says what they mean.
"""
