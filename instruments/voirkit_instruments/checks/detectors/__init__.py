"""Silent training bugs, told after the run from the facts that ``--checks`` recorded; of killed runs too.

``facts`` are what was recorded, a detector decides on them and gives a ``finding``, ``all_of`` lists the detectors, ``checks.analyse``
asks them. No false alarm, ever: where what is seen is also done on purpose, a detector does not say that it has found something.
"""
