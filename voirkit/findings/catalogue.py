"""Catalogue of all kinds of findings: the texts of each in a report, and its documentation.

``docs/findings.md`` and ``voirkit explain`` are made from the documentation. The texts in a report
are templates: ``{steps}`` is filled with this figure of the finding's evidence, ``{where}`` with
the line of the program.
"""

from __future__ import annotations

from voirkit.findings.advice import ADVICE
from voirkit.findings.halts import HALTS
from voirkit.findings.kind import Kind, Severity
from voirkit.findings.silent_bugs import SILENT_BUGS
from voirkit.findings.verdicts import VERDICTS

_KINDS = (
    Kind(
        name="weights-onto-themselves",
        severity=Severity.BUG,
        example="voirkit examples/findings/weights_onto_themselves.py before",
        because="{where}: {weights_words}.",
        next=(
            "Keep a copy of the weights: copy.deepcopy(model.state_dict()), or save them to a file."
        ),
        meaning=(
            "`state_dict()` returns references to the model's tensors, not copies. A dictionary"
            " that is kept as the best weights changes with every step after that, and loading it"
            " back changes nothing: the last weights are used in place of the best."
        ),
        condition=(
            "At a call of `load_state_dict`, most tensors that are given lie in the same memory as"
            " the model's own. Or `torch.save` or `load_state_dict` of another model is given what"
            " `state_dict()` returned in the training, and the same tensors have been updated"
            " since."
        ),
        confirm="Compare a weight before and after `load_state_dict`: they are equal.",
        mend="`best = copy.deepcopy(model.state_dict())` in place of `best = model.state_dict()`.",
    ),
    Kind(
        name="gradients-cleared-unused",
        severity=Severity.BUG,
        example="voirkit examples/findings/gradients_cleared_unused.py before",
        because=(
            "{where}: zero_grad() cleared gradients that no optimizer step had used, {cleared:,}"
            " times of {cleared_of:,}; the optimizer stepped {steps:,} times in {backward_passes:,}"
            " backward passes."
        ),
        next=(
            "Call zero_grad() once for each step of the optimizer: right after step(), or before"
            " the first batch that is accumulated."
        ),
        meaning=(
            "Gradients of several batches are to be accumulated before the optimizer steps, but"
            " they are cleared before each backward pass: only the last batch of each group is"
            " trained on, and the work of the others is lost."
        ),
        condition=(
            "In a training whose optimizer steps once in several batches of its loader, `zero_grad`"
            " of the optimizer or of the model clears gradients between two backward passes without"
            " a step, for nine of ten of the batches in between. On one batch (an adversarial"
            " attack) this is done on purpose, and no finding."
        ),
        confirm=(
            "Print the norm of a parameter's gradient right before `optimizer.step()`: it is the"
            " norm for a single batch."
        ),
        mend="Move `optimizer.zero_grad()` into the condition in which the optimizer steps.",
        explains="compute-bound",
    ),
    Kind(
        name="loss-not-finite",
        severity=Severity.BUG,
        example="voirkit examples/gallery/first_nan.py before",
        because=(
            "The loss{whose_words} is {value} {since_words} ({n:,} of {of:,} that were looked"
            " at){first_words}."
        ),
        next="{do_words}. torch.autograd.set_detect_anomaly(True) names the operation{look_words}.",
        meaning=(
            "The loss is nan or infinite. From there on each update spoils the weights: nothing is"
            " learned any more."
        ),
        condition=(
            "A loss, given or what `backward` is called on, is no finite number. Of losses on a"
            " device only those of the curve are looked at, at the end."
        ),
        confirm="`torch.isfinite(loss)` in the loop.",
        mend=(
            "A smaller learning rate, `eps` in a division or logarithm, or `torch.amp.GradScaler`"
            " for float16."
        ),
    ),
    Kind(
        name="busy-machine",
        severity=Severity.MEASUREMENT,
        example="voirkit examples/findings/busy_machine.py before",
        because=(
            "CPU contention: other processes used {others_share:.0%} of the CPU; the main thread"
            " waited for it {waited_share:.0%} of the run."
        ),
        next="Re-run on an idle machine: these timings are not reliable.",
        meaning=(
            "Other programs had the processors while the script was ready to run. No time of this"
            " run is the script's own."
        ),
        condition=(
            "The main thread waited for a processor during 5 % of the run or more, and others used"
            " 5 % of the processors or more. It stands above the verdict, and no advice has a"
            " figure."
        ),
        confirm="`top`, or `cat /proc/pressure/cpu`.",
        mend="Measure on a machine that does nothing else.",
    ),
    Kind(
        name="instrument-overhead",
        severity=Severity.MEASUREMENT,
        example="voirkit --parameters examples/findings/instrument_overhead.py",
        because="The instruments slowed this run: {reasons_words}.",
        next=(
            "Trust which lines, functions and operations take the time, not how long a step takes:"
            " time it in a run with fewer flags."
        ),
        meaning="Recording took a part of the run that is not small. All times are longer by it.",
        condition=(
            "Recording took more than 5 % of the run; or what voirkit runs beside the script"
            " (py-spy, perf, strace) used 5 % of the processors or more, while the main thread"
            " waited for one during 5 % of the run or more."
        ),
        confirm="Time the script with and without voirkit.",
        mend="Fewer flags at a time, or narrower probes.",
    ),
    Kind(
        name="learning-rate-vanishes",
        severity=Severity.BUG,
        example="voirkit examples/findings/learning_rate_vanishes.py before",
        because=(
            "The learning rate has fallen to next to nothing after {share:.0%} of the training:"
            " {last:.2g}, where it was {highest:.2g}. What comes after that hardly changes the"
            " model."
        ),
        next=(
            "Step the scheduler once an epoch, not once a batch; or tell it its length in updates."
        ),
        meaning=(
            "A scheduler whose length or period is meant in epochs is stepped once for each batch:"
            " the learning rate falls to next to nothing in the first epoch, and the rest of the"
            " training hardly changes the model."
        ),
        condition=(
            "Of 100 updates or more, half or more are done with a learning rate under a thousandth"
            " of the highest one, to the last update of its optimizer. It is asked at the first and"
            " at each seventh `zero_grad`, more seldom in long runs; a rate that is a tensor on a"
            " device is not read."
        ),
        confirm="Print `scheduler.get_last_lr()` at the end of each epoch.",
        mend="`scheduler.step()` after the loop over the loader, not inside of it.",
    ),
    Kind(
        name="evaluation-builds-graphs",
        severity=Severity.MEMORY,
        example="voirkit examples/findings/evaluation_builds_graphs.py before",
        because=(
            "Evaluation builds graphs for gradients that nothing uses: {batches:,} of"
            " {batches_of:,} batches were evaluated with gradients on."
        ),
        next="Evaluate under torch.no_grad() or torch.inference_mode().",
        meaning=(
            "A model that is called with gradients on keeps what a backward pass would need. In an"
            " evaluation nothing uses that: it costs time, and where outputs or losses are kept"
            " until the end, the memory of all batches."
        ),
        condition=(
            "Batches are evaluated in which a module with trainable parameters is called with"
            " gradients on, in evaluation mode or, if it is trained and the batch comes of a loader"
            " that training does not read, in training mode, and no backward pass follows: at least"
            " half of those of the evaluation."
        ),
        confirm="`output.grad_fn` is not None in the evaluation.",
        mend=(
            "`with torch.no_grad():` around the loop, or `@torch.inference_mode()` over the"
            " function that evaluates."
        ),
        explains="evaluation-bound",
    ),
    Kind(
        name="workers-copy-dataset",
        severity=Severity.MEMORY,
        example="voirkit examples/findings/workers_copy_dataset.py before",
        because=(
            "The dataset of Python objects is copied by its loader workers: each of {workers} has"
            " grown to {worker_words} of its own; the program holds {program_words}."
        ),
        next=(
            "Keep the samples' descriptions in few large arrays (numpy, torch, pyarrow, or one"
            " bytes object with offsets), not in lists and dictionaries."
        ),
        meaning=(
            "A worker shares its parent's memory until one of them writes to a page. Python writes"
            " to an object whenever it is used: to its reference count. So a worker that reads a"
            " list of objects copies it, page by page, and memory grows with each epoch."
        ),
        condition=(
            "The memory that forked workers have for themselves alone is at least 48 MB each, and"
            " 32 bytes for each Python object of the dataset, when they end or an epoch is over;"
            " and the dataset holds at least 100,000 of these."
        ),
        confirm="The `Private_Dirty` of `/proc/<worker>/smaps_rollup` grows while workers read.",
        mend="`numpy.array(boxes)` in place of a list of lists; strings as one array of bytes.",
    ),
    Kind(
        name="memory-grows",
        severity=Severity.SYMPTOM,
        example="voirkit examples/findings/memory_grows.py before",
        because=(
            "The memory that the process needs grows with the steps: from {first_words} to"
            " {last_words}, {each_words} a step{kept_words}."
        ),
        next="Look for {held_words}{look_words}.",
        meaning=(
            "The memory that the program holds rises steadily while it trains. Most often tensors"
            " are kept with their graphs."
        ),
        condition=(
            "The most memory that the process has held is asked for at each seventh `zero_grad`."
            " Without the first eighth of the training, the median of each eighth is above that of"
            " the one before, and the whole rise is at least 64 MB and 20 % of what had been held"
            " at its begin. What there is more of is told where memory has grown by 96 MB while it"
            " was sampled: living tensors by type and shape, and the list, dictionary or deque that"
            " has grown most. With more than some 360,000 Python objects that is left out, since it"
            " would take too long; nor is seen what only graphs hold."
        ),
        confirm="`voirkit --checks SCRIPT`, and `torch.cuda.memory_summary()` on a GPU.",
        mend="Keep numbers: `history.append(loss.item())`, `outputs.append(output.detach())`.",
        silences=("memory-creep",),
    ),
    Kind(
        name="memory-creep",
        severity=Severity.SYMPTOM,
        example="voirkit --monitor 0.5 examples/findings/memory_creep.py before",
        because=(
            "Memory grows by {hourly_words} an hour: it was {middle_words} in the middle of the"
            " run, {end_words} at its end."
        ),
        next=(
            "Look for what is kept from every step: losses with their graph (keep loss.item()),"
            " lists of outputs, caches of a dataset."
        ),
        meaning=(
            "The first rank and the processes that it has started hold more and more memory, by the"
            " samples of `--monitor`."
        ),
        condition=(
            "With `--monitor`, over the second half of the run, of 30 s at least: the median slope"
            " between two samples makes 5 % of what was held and 64 MB, and of the medians of the"
            " half's eighths three of four are above the one before."
        ),
        confirm="Run longer: the curve of `voirkit report --html` goes on rising.",
        mend="Keep numbers: `history.append(loss.item())`, `outputs.append(output.detach())`.",
    ),
    Kind(
        name="steps-get-slower",
        severity=Severity.SYMPTOM,
        example="voirkit examples/findings/steps_get_slower.py before",
        because=(
            "Steps get slower: {slowest} takes {first_words} in the first fifth of the run and"
            " {last_words} in the last (medians by fifth: {fifths_words})."
        ),
        next="Look for {grows_words}{look_words}.",
        meaning=(
            "A step should take as long at the end of a run as at its begin. Where it takes longer"
            " and longer, something that it uses grows: most often a graph that reaches back"
            " through all steps before."
        ),
        condition=(
            "The median step of each fifth of the run is longer than that of the fifth before (one"
            " may be shorter by a tenth: other programs come and go), and that of the last at least"
            " 1.5 times that of the first (five times while other programs hold the processors), in"
            " runs of at least 50 steps."
        ),
        confirm="Print how long the named part takes at the begin of the run and at its end.",
        mend=(
            "`state = state.detach()` at the begin of each step; a set in place of a list that is"
            " searched; hooks registered once."
        ),
    ),
    Kind(
        name="loss-not-falling",
        severity=Severity.SYMPTOM,
        example="voirkit examples/gallery/missing_zero_grad.py before",
        because=(
            "The loss{whose_words} does not fall: {first_words} in the first quarter of"
            " {training_words}, {last_words} in the last (medians)."
        ),
        next=(
            "Check that the optimizer holds the model's parameters, that its step() is called, and"
            " that the learning rate is suitable{look_words}. In reinforcement learning and"
            " adversarial training the loss need not fall."
        ),
        meaning="The training does not get better at what it minimizes.",
        condition=(
            "Of 40 losses or more, the median of the last quarter is less than 1 % below that of"
            " the first, and with two standard errors of that difference not 5 % below it: where"
            " losses differ by more, a fall would not show. Optimizers that step by turns are left"
            " out."
        ),
        confirm="Overfit one batch: its loss must fall.",
        mend=(
            "Fix what `voirkit --checks` reports: parameters that no optimizer holds, gradients of"
            " zero, a graph that `.item()` cuts."
        ),
    ),
    Kind(
        name="loss-spike",
        severity=Severity.SYMPTOM,
        example="voirkit examples/findings/loss_spike.py before",
        because=(
            "The loss jumps at step {step:,}: {value:.4g}, {times_words} times the median of the"
            " losses around it ({usual:.4g})."
        ),
        next=(
            "Look at the samples of that step, and clip gradients (torch.nn.utils.clip_grad_norm_)."
        ),
        meaning=(
            "One loss is far above those around it: a broken sample, a learning rate that is too"
            " high, or a division by nearly nothing."
        ),
        condition=(
            "A loss of the curve is at least 50 times the median of the curve, the ones around it"
            " are less than a fifth of it, there are at least 40, and none later is not finite. With"
            " batches of a single sample losses differ so much by themselves; nothing is said then."
        ),
        confirm="Train on the batch of that step alone.",
        mend="Leave the sample out, or clip gradients.",
    ),
    Kind(
        name="measured-change",
        severity=Severity.TIME,
        example="voirkit --what-if gc-freeze examples/gallery/freeze_garbage.py before",
        because=(
            "With {name_words} the run takes {ratio_words} times as long ({interval_words} in"
            " {pairs} pairs of runs){once_words}."
        ),
        next="Write it into the script: {write_words}.",
        meaning=(
            "`--what-if` ran the script in pairs, with and without one change, and the change wins."
        ),
        condition=(
            "With `--what-if`, the whole interval of the ratios is below 1, their median is further"
            " from it than two plain runs differ by, and neither losses nor checkpoints are known"
            " to differ. Runs beside other work on the processors have a wider interval."
        ),
        confirm=(
            "`voirkit compare` a run of the script as it is with one of the script as it has been"
            " changed."
        ),
        mend=(
            "Write the change into the script: for `--what-if num-threads=4`,"
            " `torch.set_num_threads(4)` at its beginning."
        ),
        gain=(
            "the pairs of runs: what the change won of their work, less what it takes once, as a"
            " share of the whole run"
        ),
    ),
    Kind(
        name="iterator-each-step",
        severity=Severity.TIME,
        example="voirkit examples/findings/iterator_each_step.py before",
        because=(
            "A new iterator of the loader is made in each step: {iterators:,} iterators, of which"
            " {single:,} gave one batch{workers_words}."
        ),
        next=(
            "Make the iterator once, batches = iter(loader), and call next(batches) in each step;"
            " or loop over the loader."
        ),
        meaning=(
            "`next(iter(loader))` begins an epoch anew each time: the sampler shuffles all indices"
            " again, and worker processes are started, load several batches ahead and are ended,"
            " for one batch."
        ),
        condition=(
            "At least half of the steps, and at least five, have an iterator of their own that"
            " gives one batch."
        ),
        confirm="Count how often the dataset's samples are read: many more than are trained on.",
        mend="`batches = itertools.cycle(loader)`, or a loop over epochs.",
        gain=(
            "the time in which iterators are made and, without workers, their first indices drawn,"
            " but for the first: recorded"
        ),
        explains="input-bound",
    ),
    Kind(
        name="slow-sampler",
        severity=Severity.TIME,
        example="voirkit examples/findings/slow_sampler.py before",
        because=(
            "The first batch of each epoch waits {first_words}, later ones {usual_words}: {sampler}"
            " draws the indices of {samples_words} in the main process before it."
        ),
        next=(
            "Draw fewer indices at once: num_samples of the sampler, or a sampler that draws as it"
            " goes. It is the sampler's work, which worker processes do not take over."
        ),
        meaning=(
            "A sampler that draws all indices of an epoch at once, as `WeightedRandomSampler` and a"
            " shuffle of millions do, makes the first batch of each epoch late. It runs in the main"
            " process, however many workers there are."
        ),
        condition=(
            "In at least two epochs the first batch takes at least ten times a later one and 50 ms"
            " more, and the loader draws from a sampler of at least 100,000 samples; with workers,"
            " drawing is at least half of what it takes more."
        ),
        confirm="Time `next(iter(loader.batch_sampler))`.",
        mend=(
            "`WeightedRandomSampler(weights, num_samples=batches * batch_size)` for an epoch of"
            " that many batches."
        ),
        gain="what first batches take longer than later ones: recorded",
        explains="input-bound",
    ),
    Kind(
        name="garbage-collection",
        severity=Severity.TIME,
        example="voirkit examples/gallery/freeze_garbage.py before",
        because=(
            "Python's garbage collector pauses the run {pauses:,} times for 0.1 ms and more,"
            " {total_words} in all: {share:.0%} of the run, {in_steps:.0%} in its steps."
        ),
        next="{do_words}.",
        meaning=(
            "Python looks for garbage in cycles whenever enough objects have been made, and at each"
            " `gc.collect()`. A full collection looks at all objects that live: a dataset of"
            " millions of them makes each one take a second."
        ),
        condition=(
            "The pauses of 0.1 ms and more, in steps and outside of them, but for those in imports"
            " and compilations, take at least 2 % of the run."
        ),
        confirm=(
            "`gc.callbacks.append(print)` shows when each collection begins and ends; `voirkit"
            " --what-if gc-freeze SCRIPT`."
        ),
        mend=(
            "`gc.collect(); gc.freeze()` after the data and the model were made; no `gc.collect()`"
            " in the loop; `gc.disable()` while the data is made."
        ),
        gain=(
            "the recorded time of the pauses since the first step; where most come before it, that"
            " of all"
        ),
        part_of="host-bound",
    ),
    Kind(
        name="evaluation-one-by-one",
        severity=Severity.TIME,
        example="voirkit examples/findings/evaluation_one_by_one.py before",
        because=(
            "Evaluation reads one sample at a time: {batches:,} batches of 1, {share:.0%} of the"
            " run."
        ),
        next="Give the evaluation's loader a larger batch_size.",
        meaning=(
            "A `DataLoader` has a batch size of 1 unless another is given. An evaluation needs no"
            " gradients, so that its batches can be larger than those of training."
        ),
        condition=(
            "The loader of the evaluation has batch_size=1, at least 20 batches are evaluated, and"
            " they take at least 5 % of the run."
        ),
        confirm="Print `len(loader)` of the evaluation.",
        mend="`DataLoader(held_out, batch_size=64)`.",
        explains="evaluation-bound",
    ),
    Kind(
        name="padding",
        severity=Severity.TIME,
        example="voirkit --checks examples/findings/padding.py before",
        because=(
            "{share:.0%} of the tokens that are trained on are padding: id {token} at the {side} of"
            " rows of {columns:,}, in {looks} batches that were looked at; {fixed_words}."
        ),
        next=(
            "Pad each batch to its own longest row, and put rows of like length into one batch"
            " (sort or bucket by length); or pack several into one row."
        ),
        meaning=(
            "Rows of token ids are made as long as each other by an id that means nothing. The"
            " model computes on padding as on all else, and the loss leaves it out."
        ),
        condition=(
            "With `--checks`, batches 1 to 4, 8, 16 ... 1024 and each 1024th of a loader are looked"
            " at, 64 rows of each. At least 30 % of the elements of a two-dimensional tensor of"
            " whole numbers are one id at the end or begin of rows, in at least three batches that"
            " were trained on, of rows whose lengths differ. That id is at most 5 % of the rest,"
            " and there are at least eight others: masks, one-hot rows, counts and images are not"
            " taken for tokens."
        ),
        confirm="`(batch['input_ids'] == tokenizer.pad_token_id).float().mean()`.",
        mend=(
            "`DataCollatorWithPadding(tokenizer)` in place of `padding='max_length'`;"
            " `group_by_length=True`, or a batch sampler that sorts by length;"
            " `torch.nn.utils.rnn.pad_sequence` in `collate_fn`; `packing=True`."
        ),
        explains="compute-bound",
    ),
    Kind(
        name="dense-embedding-gradient",
        severity=Severity.TIME,
        example="voirkit --checks examples/findings/dense_embedding_gradient.py before",
        because=(
            "Of the {rows:,} rows of {name} {share_words} have a gradient in a step: it is dense,"
            " and the optimizer and zero_grad go through all of them."
        ),
        next=(
            "Give the embedding sparse=True, and its weight to an optimizer that takes sparse"
            " gradients: torch.optim.SparseAdam or SGD."
        ),
        meaning=(
            "The gradient of an embedding is as large as its table unless it is sparse, though a"
            " batch uses few of its rows. It is made, cleared, and read by the optimizer in each"
            " step, with what that keeps for each row."
        ),
        condition=(
            "With `--checks`, an optimizer is looked at after its steps 1 to 4, 8, 16 ... 1024 and"
            " each 1024th. At least three looks see a dense gradient of an `nn.Embedding` or"
            " `nn.EmbeddingBag` of at least 50,000 rows, which is at least half of what the"
            " optimizer holds; and of the rows that are read (a million elements, other ones at"
            " each look) at most 5 % are not all zero."
        ),
        confirm="`(table.weight.grad != 0).any(1).float().mean()` before the optimizer's step.",
        mend=(
            "`nn.Embedding(n, d, sparse=True)` with `torch.optim.SparseAdam([table.weight])`, and"
            " another optimizer for the rest. Rows without a gradient then stay as they are: there"
            " is no weight decay or momentum for them."
        ),
    ),
)
CATALOGUE: dict[str, Kind] = {
    kind.name: kind for kind in (*_KINDS, *HALTS, *SILENT_BUGS, *ADVICE, *VERDICTS)
}
