"""Kinds of general advice: ways to save time in the part that bounds a run.

They are used where no finding explains that time.
"""

from __future__ import annotations

from voirkit.findings.kind import Kind, Severity

_RECORDED = "the recorded time of that part, which would vanish"

ADVICE = (
    Kind(
        name="faster-loading",
        severity=Severity.ADVICE,
        example="voirkit --loader examples/gallery/worker_processes.py before",
        because="{share:.0%} of a step is spent waiting for the next batch; {what_words}",
        next="{do_words}",
        meaning=(
            "The loader does not keep up, and what each of its operations takes is recorded"
            " (`--loader`)."
        ),
        condition="With `--loader`, the wait for batches is at least 1 % of the run.",
        confirm="`voirkit --what-if workers=N,M` with the number of workers that is advised.",
        mend="As it says: more workers, or the operation that takes most made cheaper.",
        gain="what the prediction from the recorded operations leaves of the wait",
        explains="input-bound",
    ),
    Kind(
        name="whole-batches",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/whole_batches.py before",
        because=(
            "{share:.0%} of a step is spent waiting for the next batch, {per_sample_words} a sample"
        ),
        next=(
            "Index whole batches at once, data[indices], not sample by sample: give the dataset a"
            " __getitems__, or loop over a permutation of the indices. Worker processes would cost"
            " more than they save."
        ),
        meaning=(
            "Reading one sample takes microseconds: what the loader does around each of them is"
            " most of the wait."
        ),
        condition=(
            "Without workers, less than 50 us of wait a sample, and the dataset has no"
            " `__getitems__`."
        ),
        confirm="Time `next(iter(loader))` against `data[torch.randperm(n)[:batch_size]]`.",
        mend=(
            "`def __getitems__(self, indices): return self.x[indices], self.y[indices]`, with a"
            " `collate_fn` that returns it as it is."
        ),
        gain=_RECORDED,
        explains="input-bound",
    ),
    Kind(
        name="load-in-workers",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/worker_processes.py before",
        because=(
            "{share:.0%} of a step is spent waiting for the next batch; loading a batch takes"
            " {of_training:.0%} of the time that training on it takes"
        ),
        next=(
            "Load in worker processes: DataLoader(..., num_workers={workers},"
            " persistent_workers=True).{more_words}"
        ),
        meaning="Batches are loaded in the main process, which trains on nothing meanwhile.",
        condition="Without workers, the wait for batches is at least 10 % of a step.",
        confirm="Run with `num_workers=1`: the wait falls, if there is a free processor.",
        mend="`DataLoader(..., num_workers=n, persistent_workers=True)`.",
        gain="the recorded wait, less what as many workers as there are processors leave of it",
        explains="input-bound",
    ),
    Kind(
        name="keep-workers",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/keep_workers.py before",
        because=(
            "workers were started {starts:,} times; all starts but the first and all stops but the"
            " last took {again_words}"
        ),
        next=(
            "Keep the loader workers of {whose_words} from one loop to the next: DataLoader(...,"
            " persistent_workers=True)."
        ),
        meaning="A loader starts its workers anew for each loop, and stops them at its end.",
        condition="Starts but the first and stops but the last are worth advice.",
        confirm="Time the first batch of each epoch.",
        mend="`persistent_workers=True`.",
        gain="the recorded time of these starts and stops",
        explains="input-bound",
    ),
    Kind(
        name="draw-indices-faster",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/draw_indices_faster.py before",
        because="drawing the indices of batches takes {drawing_words}",
        next=(
            "Draw indices faster: the sampler draws those of each batch in the main process, which"
            " worker processes do not take over."
        ),
        meaning="The sampler itself takes the time that is waited for.",
        condition=(
            "Drawing indices is worth advice; with workers, where it is most of what first batches"
            " take longer than later ones."
        ),
        confirm="`for indices in loader.batch_sampler: pass`, timed.",
        mend="Draw the indices of an epoch at once, as a tensor.",
        gain="the recorded time of drawing",
        explains="input-bound",
    ),
    Kind(
        name="late-first-batch",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/late_first_batch.py before",
        because=(
            "the first batch of {loops:,} loop{plural_words} is waited for {late_words} longer than"
            " later ones"
        ),
        next=(
            "Do less before the first batch of a loop: its sampler, and what the dataset opens."
            " Worker processes do not take that over."
        ),
        meaning="Something is done once for each loop before its first batch, in the main process.",
        condition=(
            "Without workers, what first batches take longer than later ones is worth advice."
        ),
        confirm="Time `next(iter(loader))`.",
        mend="Open files once, in `__init__`; draw indices once.",
        gain="what first batches take longer than later ones: recorded",
        explains="input-bound",
    ),
    Kind(
        name="more-workers",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/more_workers.py before",
        because=(
            "{share:.0%} of a step is spent waiting for the next batch with {workers}"
            " worker{plural_words}"
        ),
        next="Use more workers: num_workers={enough} ({processors} processors).{more_words}",
        meaning="The workers do not keep up, and there are processors that they could use.",
        condition="There are fewer workers than processors, and the wait is worth advice.",
        confirm=(
            "`voirkit --what-if workers=N,M` measures several numbers of workers on the script as it"
            " is."
        ),
        mend="`DataLoader(..., num_workers=n)`.",
        gain="the recorded wait, shortened as the number of workers grows",
        explains="input-bound",
    ),
    Kind(
        name="fewer-workers",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/fewer_workers.py before",
        because=(
            "{share:.0%} of a step is spent waiting for the next batch; {workers} loader workers"
            " share {processors} processor{plural_words}"
        ),
        next=(
            "Use no more loader workers than there are processors: num_workers={processors} or"
            " less.{more_words}"
        ),
        meaning=(
            "Workers, and the training itself, take the processors from each other; each is a"
            " process to start and to switch to."
        ),
        condition="There are more workers than processors, and the wait is worth advice.",
        confirm=(
            "`voirkit --what-if workers=N,M` measures several numbers of workers on the script as it"
            " is."
        ),
        mend=(
            "`DataLoader(..., num_workers=n)`. More than processors help only samples that wait for"
            " a network or a disk."
        ),
        explains="input-bound",
    ),
    Kind(
        name="cheaper-samples",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/cheaper_samples.py before",
        because="{share:.0%} of a step is spent waiting for the next batch",
        next="Make the work on a sample cheaper, or do it once and keep the result.{more_words}",
        meaning="There are as many workers as processors, and they do not keep up.",
        condition="There are as many workers as processors, or it is not known how many there are.",
        confirm="`voirkit --loader --flame` shows which operation and which line takes the time.",
        mend=(
            "Resize and decode once and store the result; a cheaper transform; data in larger"
            " pieces."
        ),
        explains="input-bound",
    ),
    Kind(
        name="pinned-copies",
        severity=Severity.ADVICE,
        because="{share:.0%} of a step is copies of tensors",
        next=(
            "Copy once, whole and early: pin_memory=True in the DataLoader, .to(device,"
            " non_blocking=True), the smallest dtype that will do."
        ),
        meaning="Copies to the device are waited for.",
        condition="Copies between devices are worth advice.",
        confirm="`voirkit --what-if pin-memory`.",
        mend="`DataLoader(..., pin_memory=True)`, `batch.to(device, non_blocking=True)`.",
        gain=_RECORDED,
        explains="transfer-bound",
    ),
    Kind(
        name="convert-once",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/convert_once.py before",
        because="{share:.0%} of a step is copies of tensors",
        next=(
            "Convert and copy the data once, before the training, into the dtype and layout that it"
            " is used in."
        ),
        meaning="Tensors are converted in each step, on the processor that trains.",
        condition="A training on the CPU, whose conversions and copies are worth advice.",
        confirm="Time the conversion of one batch.",
        mend="`data = data.float().contiguous()` before the loop.",
        gain=_RECORDED,
        explains="transfer-bound",
    ),
    Kind(
        name="larger-batch",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/larger_batch.py before",
        because="forward and backward take {share:.0%} of a step, {seconds_words}",
        next=(
            "Try a larger batch: calling operators takes most of such a small step, whatever the"
            " batch."
        ),
        meaning=(
            "The tensors are so small that python and the dispatch of operators take more time than"
            " their work."
        ),
        condition="One model call, forward and backward, takes less than 2 ms on the CPU.",
        confirm="Double the batch: the step hardly takes longer.",
        mend="A larger `batch_size`, with the learning rate that fits.",
        explains="compute-bound",
    ),
    Kind(
        name="autocast",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/lower_precision.py before",
        because="forward and backward take {share:.0%} of a step",
        next=(
            "Try lower precision: torch.autocast with torch.bfloat16 around the forward pass and"
            " the loss."
        ),
        meaning=(
            "Matrix products in bfloat16 take about half the time where the hardware has"
            " instructions for them."
        ),
        condition=(
            "No autocast is seen, the device has bfloat16, and a model call takes 2 ms or more."
        ),
        confirm="Time some steps under autocast, and compare the loss.",
        mend=(
            "`with torch.autocast(device_type, dtype=torch.bfloat16): loss = criterion(model(x),"
            " y)`."
        ),
        explains="compute-bound",
    ),
    Kind(
        name="compile",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/compile.py before",
        because="forward and backward take {share:.0%} of a step",
        next="Try torch.compile(model).",
        meaning="A compiled model joins operators, and spends less time between them.",
        condition=(
            "The model is not compiled, a model call takes 2 ms or more, and the training lasted a"
            " minute or more."
        ),
        confirm="Time some steps of the compiled model after its first two.",
        mend="`model = torch.compile(model)`.",
        explains="compute-bound",
    ),
    Kind(
        name="fused-optimizer",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/fused_optimizer.py before",
        because="the optimizer's step takes {share:.0%} of a step",
        next="Make the optimizer with fused=True: {optimizer}(..., fused=True).",
        meaning=(
            "An optimizer that is not fused goes through all parameters once for each of its"
            " operations."
        ),
        condition="The optimizer has `fused`, it is off, and its step takes 0.5 ms or more.",
        confirm="The optimizer's row in the table of a step, with and without `fused=True`.",
        mend="`torch.optim.AdamW(model.parameters(), fused=True)`.",
        gain=(
            "60 % of the recorded time of the optimizer's steps, which is what was reached on"
            " examples"
        ),
        explains="compute-bound",
    ),
    Kind(
        name="fewer-updates",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/fewer_updates.py before",
        because="the optimizer's step takes {share:.0%} of a step",
        next=(
            "Step the optimizer less often: accumulate the gradients of two batches, or double the"
            " batch."
        ),
        meaning="The optimizer's step goes through all parameters, whatever the batch.",
        condition="The optimizer's steps are worth advice, and gradients are not accumulated.",
        confirm="Double the batch: the optimizer's share falls.",
        mend="`if (i + 1) % 2 == 0: optimizer.step(); optimizer.zero_grad()`.",
        gain="half of the recorded time of the optimizer's steps",
        explains="compute-bound",
    ),
    Kind(
        name="slow-operator",
        severity=Severity.ADVICE,
        example="voirkit --torch-profile examples/gallery/lower_precision.py before",
        because="forward and backward take {share:.0%} of a step",
        next="Look at {operator}: {of_operators:.0%} of the time of operators.",
        meaning="One operator takes a large part of the time of all.",
        condition=(
            "With `--torch-profile`, an operator takes 20 % of the time of these phases or more."
        ),
        confirm="`voirkit --torch-profile` shows it with its shapes.",
        mend="Another layer, layout or dtype for that operator.",
        explains="compute-bound",
    ),
    Kind(
        name="look-at-operators",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/lower_precision.py before",
        because="forward and backward take {share:.0%} of a step",
        next="{look_words}",
        meaning="Computing takes most of the time, and nothing more is recorded of it.",
        condition="Forward and backward are worth advice, and no flag has recorded operators.",
        confirm="The flag that is named.",
        mend="As that flag says.",
        explains="compute-bound",
    ),
    Kind(
        name="recompilations",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/recompiles.py before",
        because="{what_words}",
        next="{do_words}",
        meaning=(
            "`torch.compile` compiles a function anew when a guard of the compiled one fails: a"
            " shape, a number, a type."
        ),
        condition="A function was compiled again, and that is worth advice.",
        confirm="`TORCH_LOGS=recompiles`.",
        mend=(
            "As the reason says: `mark_dynamic`, a tensor in place of a number, batches of one"
            " size."
        ),
        explains="compile-bound",
    ),
    Kind(
        name="late-rank",
        severity=Severity.ADVICE,
        example=(
            "torchrun --standalone --nproc-per-node 2 -m voirkit examples/gallery/late_rank.py"
            " before"
        ),
        because="{what_words}",
        next="{do_words}",
        meaning="Ranks begin a collective at different times: the others wait for the last.",
        condition="The collectives of ranks show a wait for others that is worth advice.",
        confirm="Read the waits in the report's table of ranks.",
        mend="Even out what ranks do: samples of like size, the same number of batches.",
        gain="the recorded time that ranks wait for each other",
        explains="communication-bound",
    ),
    Kind(
        name="communicate-less",
        severity=Severity.ADVICE,
        example=(
            "torchrun --standalone --nproc-per-node 2 -m voirkit"
            " examples/findings/communicate_less.py before"
        ),
        because="{share:.0%} of a step is communication between ranks",
        next=(
            "Communicate less often and in larger pieces: accumulate gradients under no_sync(),"
            " larger buckets (bucket_cap_mb), fewer and larger shards; overlap it with computing"
            " (async_op=True); broadcast_buffers=False where buffers need not be equal."
        ),
        meaning="Ranks spend much of a step in collectives.",
        condition="Communication is worth advice.",
        confirm="Run with one rank: the rest is what communication costs.",
        mend="`with model.no_sync():` in all micro-batches but the last.",
        gain=_RECORDED,
        explains="communication-bound",
    ),
    Kind(
        name="checkpoints-in-background",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/fewer_checkpoints.py before",
        because="{of_run:.0%} of the run goes into checkpoints",
        next=(
            "Write them less often, or in the background: voirkit --what-if checkpoint-async"
            " measures what that wins, on the script as it is.{more_words}"
        ),
        meaning="Training stands still while a checkpoint is written.",
        condition="Checkpoints are worth advice.",
        confirm="`voirkit --what-if checkpoint-async`.",
        mend="`torch.distributed.checkpoint.async_save`, or a thread that writes a copy.",
        gain=_RECORDED,
        explains="checkpoint-bound",
    ),
    Kind(
        name="slow-line",
        severity=Severity.ADVICE,
        example="voirkit --flame examples/gallery/log_less.py before",
        because="{part_words}",
        next="Do less of {line}, or do it less often: {of_part:.0%} of that time.",
        meaning=(
            "Code of the script that is no part of loading or training takes time in steps, or"
            " between them."
        ),
        condition="With `--flame`, a line takes 20 % of that time or more.",
        confirm="Leave the line out.",
        mend="Log every hundredth step; `.item()` once an epoch; no plots in the loop.",
        gain="the recorded time of the line",
        explains="host-bound",
    ),
    Kind(
        name="slow-system-call",
        severity=Severity.ADVICE,
        example="voirkit --syscalls examples/findings/slow_system_call.py before",
        because="{part_words}",
        next="Do less of {call}: {of_part:.0%} of that time.",
        meaning="A system call of the main thread takes the time that nothing else accounts for.",
        condition=(
            "With `--syscalls`, a call takes 20 % of that time or more, and no line is known."
        ),
        confirm="`voirkit --syscalls` has it with its file.",
        mend="Fewer and larger reads and writes; none in the loop.",
        gain="the recorded time of the call",
        explains="host-bound",
    ),
    Kind(
        name="look-for-host-code",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/log_less.py before",
        because="{part_words}",
        next="Look for logging, metrics, plots, .item() and .cpu() {where_words}.{look_words}",
        meaning=(
            "Code of the script that is no part of loading or training takes time, and no flag has"
            " recorded its lines."
        ),
        condition="Such code is worth advice.",
        confirm="`voirkit --flame` shows the lines.",
        mend="As the lines say.",
        gain=_RECORDED,
        explains="host-bound",
    ),
    Kind(
        name="batched-inference",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/batched_inference.py before",
        because="{of_run:.0%} of the run is inference between the steps",
        next=(
            "Call the model on more inputs at once: in a rollout, on more environments; in an"
            " evaluation, on larger batches."
        ),
        meaning="The model is called on few inputs at a time, without training on them.",
        condition="Model calls between the steps are worth advice.",
        confirm="Call it on twice as many inputs: it hardly takes longer.",
        mend="Several environments in one vector; a larger batch.",
        gain="half of the recorded time",
        explains="inference-bound",
    ),
    Kind(
        name="evaluate-less",
        severity=Severity.ADVICE,
        example="voirkit examples/gallery/evaluate_less.py before",
        because="{of_run:.0%} of the run is evaluation",
        next=(
            "Evaluate half as often, or on a part of the data, in larger"
            " batches.{rollouts_words}{look_words}"
        ),
        meaning="Evaluation takes a large part of the run.",
        condition="Evaluation is worth advice.",
        confirm="The account of the wall time in the report.",
        mend="Evaluate each second epoch, on a sample of the data.",
        gain="half of the recorded time",
        explains="evaluation-bound",
    ),
    Kind(
        name="start-once",
        severity=Severity.ADVICE,
        example="voirkit examples/findings/start_once.py before",
        because="{of_run:.0%} of the run is the script's own start, before its first step",
        next=(
            "Do what the script does before its first step once, and keep the result (prepared"
            " data, downloads, indices).{more_words}"
        ),
        meaning="The script prepares for long before it trains.",
        condition="The start takes 2 s or more, and is worth advice.",
        confirm="`voirkit --flame` shows the lines.",
        mend="Store prepared data in a file, and read that.",
        gain=_RECORDED,
        explains="startup-bound",
    ),
)
