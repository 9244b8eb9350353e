"""All thresholds of the verdict, the advice and the alerts of a run, in one table."""

from __future__ import annotations

# The verdict: shares of step time, if not stated otherwise.
BOUND = 0.5  # a run is bound by the kind of work that takes at least this share
# input, host code and other work that can be saved is named instead of computing if it takes at
# least this share, and more than forward, backward and every other single phase of computing
LARGEST = 0.4
# minimum share of the steps in the time after the start-up; if they take less, the verdict is the
# largest part outside of the steps
TRAINS_LEAST = 0.25
# seconds of the script's own start-up; a shorter start-up is neither the verdict nor worth advice
STARTUP_S = 2.0
SECOND = 0.05  # minimum share of the second largest part for the verdict to mention it
STRAGGLES = 0.15  # a rank is late if the others wait for it for this share of a step
LATE_IN = 0.6  # a straggler is late in at least this share of the run's stretches of steps
FEW_IN_STEP = 5  # minimum number of steps to call a rank a straggler
FEW = 3  # minimum number of steps for a verdict
IDLES = 0.45  # a run is host-bound if its GPU idles for this share of a step, not for lack of input

# Evaluation is called inference if more than this share of its time is direct calls of a model in
# training mode.
INFERENCE = 0.5

# If the mean and the median step differ by at least this factor, in either direction, a typical
# step says little about the run.
UNLIKE = 1.5

# Advice. The values *_SAVES and HALF_AS_OFTEN are rough estimates of the saving, as a share of the
# time that the advice is about; they are not bounds. docs/steps.md lists savings that were reached.
ADVICE_LEAST_OF_RUN = 0.01  # minimum saving for advice, as a share of the run
FEW_OF_RUN = 0.05  # a run with a smaller share of steps is a trial: nothing to save shows in it
ADVICE_LEAST = 0.02  # minimum saving for advice, as a share of the time after the start-up
AUTOCAST_SAVES = 0.5  # of forward and backward: half the bytes, twice the arithmetic rate
COMPILE_SAVES = 0.3  # of forward and backward
# minimum training time for advice to use torch.compile: compiling a small model took 10 to 30 s of
# CPU time, which a short run does not win back
COMPILE_LEAST_S = 60.0
FUSED_SAVES = 0.6  # of the optimizer step
HALF_AS_OFTEN = 0.5  # saving when an action is done half as often
SLOW_OPTIMIZER_S = 0.5e-3  # a fused optimizer saves little if an optimizer step is shorter
SMALL_STEP_S = 0.002  # if forward plus backward is shorter, most of it is operator call overhead
TINY_SAMPLE_S = 50e-6  # for a shorter wait per sample, sending it from a worker would cost more
LOADING_LEAST = 0.1  # minimum share of the wait in a step for advice to use worker processes
# If restarts of workers cause at least this share of the data loader wait, the only advice about
# the wait is to keep the workers alive.
RESTARTS_OF_WORKERS = 0.25
# If at least this share of the wait is for the first batches of epochs, the cause is the start of
# the workers.
START_OF_WORKERS = 0.5

# A loss that does not fall: compares the medians of the first and last quarter of its curve.
FEW_LOSSES = 40  # minimum number of losses for this check
FALLS = 0.01  # minimum fall, as a share of the first median, for the loss to count as falling
FEW_IN_QUARTER = 5  # minimum number of finite losses in a quarter
COULD_FALL = 0.05  # share of the first median; no alert if noise could hide a fall of this size

# Memory growth: the slope over the second half of the run.
FEW_SAMPLES = 20  # minimum number of memory samples in that half
CREEP_LEAST_S = 30.0  # minimum duration of that half in seconds
CREEPS = 0.05  # minimum growth over that half, as a share of its median
CREEP_BYTES = 64 << 20  # minimum growth over that half in bytes
# minimum share of the eighths of that half that are higher than the eighth before
CREEP_RISES = 0.75

# Other work on the CPUs.
WAITED = 0.05  # share of the run in which the main thread was ready to run but waited for a CPU
OTHER_PROGRAMS = 0.05  # share of the CPUs available to this run that other programs used

# If recording takes a larger share of the run, a note above the verdict says so: the times are
# longer by that.
OVERHEAD = 0.05
