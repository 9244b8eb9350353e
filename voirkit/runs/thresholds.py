"""Every threshold of the verdict and of the alerts beside it, in one table."""

from __future__ import annotations

# The verdict: shares of step time.
BOUND = 0.5  # what takes more than half is what the run is bound by
STRAGGLES = 0.15  # a rank that makes the others wait that long in every step
FEW = 3  # steps, under which nothing is said
IDLES = 0.45  # a GPU that does nothing for so much of a step, while no input is waited for

# A loss that does not fall: medians of the first and the last quarter of its curve.
FEW_LOSSES = 40  # under which nothing is said
FALLS = 0.01  # by so much of the first, at least

# Memory that creeps: the slope over the second half of the run.
FEW_SAMPLES = 20  # of memory in that half, under which nothing is said
CREEP_LEAST_S = 30.0  # as long must that half be
CREEPS = 0.05  # growth over that half, of what was held in its middle
CREEP_BYTES = 64 << 20  # and as much at least
CREEP_RISES = 0.75  # of the eighths of that half, each against the one before, so many must be higher

# Others' work on the processors: shares of the run.
WAITED = 0.05  # the main thread was ready to run and waited for a processor
OTHERS = 0.05  # of the processors that this run may use, others had so much
