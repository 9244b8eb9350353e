"""Every threshold of the verdict and of the alerts beside it, in one table."""

from __future__ import annotations

# The verdict: shares of step time.
BOUND = 0.5  # what takes more than half is what the run is bound by
# what takes that much, and more than any single phase of computing, is named before computing as a
# whole
LARGEST = 0.4
# of the time after the start-up: where the steps take less, what takes most outside of them is the
# verdict
TRAINS_LEAST = 0.25
# the script's own start-up in seconds, under which no run is bound by it, and nothing is advised
# about it
STARTUP_S = 2.0
SECOND = 0.05  # what takes that much is named in second place
STRAGGLES = 0.15  # a rank that makes the others wait that long in a step
LATE_IN = 0.6  # of a run's stretches, and is late in so many of them
FEW_IN_STEP = 5  # steps, under which no rank is called a straggler
FEW = 3  # steps, under which nothing is said
IDLES = 0.45  # a GPU that does nothing for so much of a step, while no input is waited for

# of the evaluation's time is model calls by hand in training mode: it is not called evaluation then
INFERENCE = 0.5

# the mean step is so many times the median one, or the other way round: a typical step says little
# of the run
UNLIKE = 1.5

# Advice: about what is saved, as a share of what it is about. A rough estimate and no bound;
# docs/steps.md has what was reached.
ADVICE_LEAST_OF_RUN = 0.01  # of the run: what would save less is not advised
FEW_OF_RUN = 0.05  # of the run in steps: less is a trial, of which nothing can be saved
ADVICE_LEAST = 0.02  # of the time after the start: what would save less is not advised
AUTOCAST_SAVES = 0.5  # of forward and backward: half the bytes, twice the rate of the units
COMPILE_SAVES = 0.3  # of forward and backward
# of training: compiling a small model took 10 to 30 s of processor time, which a short run does not
# win back
COMPILE_LEAST_S = 60.0
FUSED_SAVES = 0.6  # of the optimizer's step
HALF_AS_OFTEN = 0.5  # of what is done half as often
SLOW_OPTIMIZER_S = 0.5e-3  # its step: a fused one has little to save of less
SMALL_STEP_S = 0.002  # forward and backward, under which calling operators is most of it
TINY_SAMPLE_S = 50e-6  # of wait a sample, under which handing it over from a worker costs more
LOADING_LEAST = 0.1  # of a step: for less wait no worker processes are advised
# of the wait is for workers that are started again: nothing else is advised about it before they
# stay
RESTARTS_OF_WORKERS = 0.25
START_OF_WORKERS = 0.5  # of the wait is for the first batches of epochs: the workers start then

# A loss that does not fall: medians of the first and the last quarter of its curve.
FEW_LOSSES = 40  # under which nothing is said
FALLS = 0.01  # by so much of the first, at least
FEW_IN_QUARTER = 5  # finite losses
COULD_FALL = 0.05  # of the first: where noise could hide a fall by as much, nothing is said

# Memory that creeps: the slope over the second half of the run.
FEW_SAMPLES = 20  # of memory in that half, under which nothing is said
CREEP_LEAST_S = 30.0  # as long must that half be
CREEPS = 0.05  # growth over that half, of what was held in its middle
CREEP_BYTES = 64 << 20  # and as much at least
# of the eighths of that half, each against the one before, so many must be higher
CREEP_RISES = 0.75

# Others' work on the processors: shares of the run.
WAITED = 0.05  # the main thread was ready to run and waited for a processor
OTHER_PROGRAMS = 0.05  # of the processors that this run may use, others had so much

# of the run is spent on recording it: its times are longer by so much that this stands above the
# verdict
OVERHEAD = 0.05
