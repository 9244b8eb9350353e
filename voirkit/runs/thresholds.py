"""All thresholds of the verdict, the advice and the alerts of a run, in one table."""

from __future__ import annotations

# The verdict. Shares are shares of the time of a step, if not stated otherwise.
BOUND = 0.5  # minimum share of the kind of time (such as waiting for input) that bounds a run
# If the largest kind other than computing (input, host code, ...) takes at least this share, and
# more than each single phase of computing (forward, backward, ...), the verdict names it instead of
# computing, which can hardly be saved as a whole.
LARGEST = 0.4
# minimum share of the steps in the time after the start-up; if the steps take less, the verdict
# names the largest part of the run outside of the steps
TRAINS_LEAST = 0.25
# seconds of the script's own start-up; a shorter start-up is neither the verdict nor worth advice
STARTUP_S = 2.0
SECOND = 0.05  # minimum share of the second largest part for the verdict to mention it
STRAGGLES = 0.15  # a rank is late if the others wait for it for this share of a step
# A run is divided into stretches, each of the same number of consecutive steps. A straggler, a rank
# that the others wait for, is late in at least this share of the stretches.
LATE_IN = 0.6
FEW_IN_STEP = 5  # minimum number of steps to call a rank a straggler
FEW = 3  # minimum number of steps for a verdict
# a run is host-bound if its GPU idles for at least this share of a step, not for lack of input
IDLES = 0.45

# Evaluation is called inference if more than this share of its time is direct calls of a model in
# training mode.
INFERENCE = 0.5

# If the mean and the median step time differ by at least this factor, in either direction, the
# median says little about the run.
UNLIKE = 1.5

# Advice. *_SAVES and HALF_AS_OFTEN are not thresholds, but rough estimates of the saving, as a
# share of the time that the advice is about. They are not bounds: docs/steps.md lists savings that
# were reached.
ADVICE_LEAST_OF_RUN = 0.01  # minimum saving for advice, as a share of the run
# if the steps take a smaller share of the run, the run is a trial, too short to show what can be
# saved
FEW_OF_RUN = 0.05
ADVICE_LEAST = 0.02  # minimum saving for advice, as a share of the time after the start-up
AUTOCAST_SAVES = 0.5  # share of forward and backward: half the bytes, twice the arithmetic rate
COMPILE_SAVES = 0.3  # share of forward and backward
# minimum time of all steps for advice to use torch.compile: compiling a small model took 10 to 30 s
# of CPU time, more than a short run saves
COMPILE_LEAST_S = 60.0
FUSED_SAVES = 0.6  # share of the optimizer step
HALF_AS_OFTEN = 0.5  # saving if something, such as an evaluation, is done half as often
SLOW_OPTIMIZER_S = 0.5e-3  # if an optimizer step is shorter, a fused optimizer saves little
SMALL_STEP_S = 0.002  # if forward plus backward is shorter, most of it is operator call overhead
# if the data loader wait per sample is shorter, sending the sample from a worker would take longer
TINY_SAMPLE_S = 50e-6
# minimum share of the data loader wait in a step for advice to use worker processes
LOADING_LEAST = 0.1
# If restarts of workers cause at least this share of the data loader wait, the only advice about
# the wait is to keep the workers alive.
RESTARTS_OF_WORKERS = 0.25
# If at least this share of the data loader wait is for the first batches of epochs, its cause is
# that the workers are started.
START_OF_WORKERS = 0.5

# The check for a loss that does not fall. It compares the medians of the first and the last quarter
# of the recorded losses.
FEW_LOSSES = 40  # minimum number of losses for this check
FALLS = 0.01  # minimum fall, as a share of the first median, for the loss to count as falling
FEW_IN_QUARTER = 5  # minimum number of finite losses in a quarter
COULD_FALL = 0.05  # no alert if noise could hide a fall by this share of the first median

# The check for memory growth, by the slope over the second half of the run.
FEW_SAMPLES = 20  # minimum number of memory samples in the second half
CREEP_LEAST_S = 30.0  # minimum duration of the second half in seconds
CREEPS = 0.05  # minimum growth over the second half, as a share of the median memory use in it
CREEP_BYTES = 64 << 20  # minimum growth over the second half in bytes
# The second half is divided into eight parts: minimum share of the seven changes from one part to
# the next that are increases.
CREEP_RISES = 0.75

# CPU contention: other programs slow the script down if both shares reach these minimums.
WAITED = 0.05  # share of the run in which the main thread was ready to run but waited for a CPU
OTHER_PROGRAMS = 0.05  # share of the CPUs available to this run that other programs used

# If recording takes a larger share of the run, a note above the verdict says so, since recording
# makes all times longer.
OVERHEAD = 0.05
