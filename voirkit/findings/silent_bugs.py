"""Kinds of silent bugs, which ``--checks`` looks for.

Their report texts are made from the facts of the run (``voirkit_instruments.checks``). Kinds with a
``because`` are also found without that flag, and then reported with the text given here.
"""

from __future__ import annotations

from voirkit.findings.kind import Kind, Severity

_NOT_LEARNING = ("loss-not-falling",)


def _bug(
    name: str,
    meaning: str,
    condition: str,
    confirm: str,
    mend: str,
    *,
    silences: tuple[str, ...] = _NOT_LEARNING,
    **more: str,
) -> Kind:
    return Kind(name, Severity.BUG, meaning, condition, confirm, mend, silences=silences, **more)


SILENT_BUGS = (
    # bugs with optimizers
    _bug(
        "missing-zero-grad",
        "New gradients are added to those that the optimizer has used already: each step goes along"
        " the sum of all batches so far.",
        "At most of the steps that are looked at since the first one, the very gradients of the"
        " last step are still there, and not zero, when the backward pass begins, and are in place"
        " at the next step. How they are cleared (`zero_grad` of optimizer or model, `p.grad ="
        " None`, `p.grad.data.zero_()`) makes no difference; gradient accumulation, two optimizers"
        " by turns and closures are no finding.",
        "Print the norm of a parameter's gradient before each backward pass: it is not 0.",
        "`optimizer.zero_grad()` before each backward pass, or after each step.",
        example="voirkit --checks tests/checks/scripts/planted/no_zero_grad.py",
    ),
    _bug(
        "misplaced-zero-grad",
        "`zero_grad` stands between the backward pass and the step: the optimizer has no gradients"
        " to use.",
        "No gradient, or zeros alone, at every step that is looked at, and a `zero_grad` after the"
        " last backward pass before each step; its line is told. Where gradients are cleared by"
        " hand, or in each of several accumulated batches (which is also how those of an"
        " adversarial attack are thrown away), it cannot be told.",
        "Print the norm of a parameter's gradient right before `optimizer.step()`: it is 0.",
        "Call `zero_grad()` before the backward pass, or after the step.",
        example="voirkit --checks tests/checks/scripts/planted/zero_grad_before_step.py",
    ),
    _bug(
        "frozen-parameters",
        "All parameters that an optimizer holds are frozen: its steps change nothing.",
        "`requires_grad` is False for all of them at every look, and none has a gradient set by"
        " hand. Frozen parameters beside others are no finding.",
        "Compare a parameter before and after `optimizer.step()`: they are equal.",
        "Make the optimizer from what is to be trained, after parameters were frozen, replaced or"
        " thawed.",
        example="voirkit --checks tests/checks/scripts/planted/all_frozen.py",
    ),
    _bug(
        "foreign-parameters",
        "The optimizer holds parameters that are not those of the model that is trained: the model"
        " was made anew, copied, wrapped or given another head after the optimizer was made.",
        "None of what it holds ever has a gradient, while other parameters do, which no optimizer"
        " holds and which never change; or some of what it holds is of no model that is called, and"
        " parameters of the model are in no optimizer. Copies that are updated by hand change, and"
        " are no finding.",
        "`{id(p) for p in model.parameters()} - {id(p) for g in optimizer.param_groups for p in"
        " g['params']}` is not empty.",
        "Make the optimizer after the model has its final form.",
        example="voirkit --checks tests/checks/scripts/planted/model_made_anew.py",
    ),
    _bug(
        "never-updated",
        "Parameters get gradients, are in no optimizer, and never change. Layers in a plain list"
        " are the usual reason: they are no part of the module, and `model.parameters()` does not"
        " have them.",
        "A digest of their values is the same at all looks, and they come after parameters of the"
        " same model that are trained, are a model's own beside layers of which the first is"
        " trained, or are in no module. Where only layers before the trained ones are concerned"
        " (training a head alone does that), or another model (a loss network, an attacked model),"
        " it cannot be told.",
        "`[name for name, p in model.named_parameters() if p.grad is None]`, and compare with the"
        " layers that the model calls.",
        "`nn.ModuleList` for layers in a list; give them to the optimizer, or freeze them with"
        " `requires_grad_(False)`.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/forgotten_decoder.py",
    ),
    _bug(
        "no-gradient",
        "Parameters that are to be trained never have a gradient: something between them and the"
        " loss cuts the graph.",
        "Parameters of an optimizer have no gradient at any look, do not change otherwise, and"
        " their layers are called, with gradients on, before all that get gradients. Where their"
        " layers are not called (an unused head), are called without effect on the loss (a pooler"
        " whose output nobody uses) or under `no_grad`, it cannot be told.",
        "`[name for name, p in model.named_parameters() if p.grad is None]` after a backward pass.",
        "Look for `detach()`, `.data`, `no_grad`, `item()` or a detour through numpy after these"
        " layers.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/detached_features.py",
    ),
    _bug(
        "learning-rate-zero",
        "The learning rate is 0: steps of the optimizer change nothing.",
        "All learning rates of an optimizer are 0 in every step, or in the last fifth of the steps"
        " (20 at least). Warm-ups from 0 are no finding; of a run that ends before its schedule has"
        " done five steps, and of rates that are tensors on a device, it cannot be told.",
        "Print `scheduler.get_last_lr()` at each step.",
        "Look at the length of the schedule and of its warm-up (integer division?), and whether it"
        " steps by batch or by epoch.",
        silences=(*_NOT_LEARNING, "learning-rate-vanishes"),
        example="voirkit --checks tests/checks/scripts/planted/rate_stays_nought.py",
    ),
    _bug(
        "scheduler-before-optimizer",
        "The scheduler steps before the optimizer: the first value of the schedule is never used,"
        " and each comes one step too early.",
        "A scheduler's `step()` comes before any step of an optimizer, at a line that does so again"
        " later. Bringing a schedule to where a run goes on, and `step(epoch)`, are no finding.",
        "Print `optimizer.param_groups[0]['lr']` at the first step: it is not the first value of"
        " the schedule.",
        "`optimizer.step()`, then `scheduler.step()`.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/scheduler_first.py",
    ),
    _bug(
        "scheduler-too-often",
        "A schedule that is made for epochs steps with each batch: the learning rate is next to"
        " nothing for most of the training, or goes down and up again many times.",
        "A scheduler steps with each step of the optimizer, and the learning rate is below"
        " 1/100,000 of its highest in the last fifth of the steps or more; or a `CosineAnnealingLR`"
        " has been stepped ten times its `T_max`. After less than 20 steps it cannot be told.",
        "Print `scheduler.get_last_lr()` at each step.",
        "`scheduler.step()` once an epoch, or its lengths in batches: `T_max=epochs *"
        " len(loader)`.",
        silences=(*_NOT_LEARNING, "learning-rate-vanishes"),
        example="voirkit --checks tests/checks/scripts/planted/cosine_by_batch.py",
    ),
    _bug(
        "not-finite",
        "A nan or an infinity got into a parameter: nothing is learned from there on.",
        "The loss is looked at in each backward pass (on a device 32 at a time), gradients and"
        " parameters at some steps. If the parameters were bad before that loss was computed, the"
        " step that wrote them is told. A loss or gradient that is not finite and does no harm (the"
        " program leaves out the step) cannot be told; what a gradient scaler catches is no"
        " finding.",
        "`torch.autograd.set_detect_anomaly(True)` names the operation.",
        "A smaller learning rate, `eps` in a division, logarithm or square root, or"
        " `torch.amp.GradScaler` for float16.",
        silences=(*_NOT_LEARNING, "loss-not-finite"),
        example="voirkit --checks tests/checks/scripts/planted/diverges.py",
    ),
    _bug(
        "skipped-steps",
        "A gradient scaler leaves out steps again and again: gradients are never finite, and"
        " nothing is learned in these steps.",
        "Five steps are left out at least, and a quarter of the second half. The few at the"
        " beginning, until the scale fits, are no finding. Of fused optimizers, which leave out"
        " steps on the device, and of five skipped steps of less than eight, it cannot be told.",
        "Print `scaler.get_scale()` at each step: it falls on and on.",
        "Look for what overflows in the forward or backward pass (masks with -inf, clipping before"
        " `unscale_`), or use bfloat16.",
        example="voirkit --checks tests/checks/scripts/planted/always_skipped.py",
    ),
    # bugs with models, losses and graphs
    _bug(
        "eval-while-training",
        "A model with dropout or batch norm is trained in evaluation mode: dropout is off,"
        " statistics are not brought up to date.",
        "Without a flag: steps call the model in training mode, and after an evaluation in"
        " evaluation mode, to the end or to the next `train()`. With `--checks`: it was left in"
        " evaluation mode after training in training mode, or never put into it, for three steps or"
        " more; the call of the first such step is told. If some of its parameters are frozen, if"
        " another optimizer trains only a part of them then (a head on what was trained before), or"
        " if only batch norm with loaded statistics is concerned from the first step on, as in"
        " fine-tuning, it cannot be told. Single layers in evaluation mode, and gradients taken for"
        " an attack, are no finding. `F.dropout(x, training=…)` is not seen.",
        "Print `model.training` in the loop.",
        "`model.train()` before each epoch's training.",
        silences=(),
        because=(
            "The model trains in evaluation mode after an evaluation, first at step {first_step:,}:"
            " {steps_in_eval:,} of {steps:,} steps. Dropout is off, and batch normalization does"
            " not learn."
        ),
        next="Call model.train() after each evaluation.",
        example="voirkit examples/findings/eval_while_training.py before",
    ),
    _bug(
        "train-while-evaluating",
        "A model with dropout or batch norm is evaluated in training mode: its figures are too low,"
        " and its statistics take in the data that is held out.",
        "It is called in training mode in all loops over loaders in which nothing is trained."
        " Without a flag: on two batches or more of a loader that training does not read, once on"
        " each, and only if no module is put into evaluation mode in the whole run. If it is"
        " evaluated in both modes (dropout for uncertainty, statistics brought up to date), or"
        " outside of loops over loaders, it cannot be told. A generator that makes samples while"
        " the discriminator is trained, and `update_bn`, are no finding.",
        "Print `model.training` in the evaluation.",
        "`model.eval()` before the evaluation, and `model.train()` after it.",
        silences=(),
        because=(
            "{batches:,} of {batches_of:,} batches were evaluated by a model in training mode: its"
            " layers of dropout or batch normalization work there as in training."
        ),
        next="Call model.eval() before the evaluation, and model.train() after it.",
        example="voirkit examples/findings/train_while_evaluating.py before",
    ),
    _bug(
        "loss-not-connected",
        "The loss is not connected to any parameter: it is a new tensor, or was computed from what"
        " has no history.",
        "The backward pass reaches no parameter at any pass that is looked at, and no parameter of"
        " any optimizer ever has a gradient. A constant loss now and then (a batch without objects)"
        " is no finding.",
        "`loss.grad_fn` is None, or its chain of `next_functions` ends before any parameter.",
        "Compute the loss by torch's own operations: no `item()`, `numpy()`, `detach()`, `argmax`"
        " or `torch.tensor(...)` on the way.",
        example="voirkit --checks tests/checks/scripts/planted/loss_made_anew.py",
    ),
    _bug(
        "softmax-before-cross-entropy",
        "Probabilities go into a loss that takes a softmax or sigmoid itself: gradients are weak,"
        " and the loss cannot get small.",
        "The graph shows what made the loss's input, through changes of shape and type, and clamps:"
        " a softmax into `cross_entropy` or `nll_loss`, a sigmoid into"
        " `binary_cross_entropy_with_logits`. `log_softmax` into `cross_entropy` changes nothing,"
        " and is no finding. Where no loss function of torch's that is looked at was called, it"
        " cannot be told.",
        "Print the loss's input: rows sum to 1.",
        "Give the loss the scores before the softmax.",
        example="voirkit --checks tests/checks/scripts/planted/softmax_in_forward.py",
    ),
    _bug(
        "loss-broadcast",
        "Outputs of shape (N, 1) are compared with targets of shape (N,): both are broadcast to (N,"
        " N), each output is compared with every target, and the model learns the mean.",
        "The shapes that go into `mse_loss`, `l1_loss`, `smooth_l1_loss` or `huber_loss` (with a"
        " reduction) hold as many numbers in another number of dimensions; of a loss that is"
        " written by hand, such as `((output - y) ** 2).mean()`, the shapes in its graph (torch 2.3"
        " or newer). Scalar targets, quantiles, and pairs of all with all that have as many"
        " dimensions are no finding.",
        "Print `output.shape` and `target.shape`.",
        "`output.squeeze(1)`, or `target.unsqueeze(1)`.",
        example="voirkit --checks tests/checks/scripts/planted/difference_by_hand.py",
    ),
    _bug(
        "graph-kept",
        "The graphs of earlier steps stay alive: memory grows with each step, and steps may get"
        " slower.",
        "At three looks or more, up to the last, the graphs of at least six earlier steps are"
        " alive; or each backward pass goes through more nodes than the one before, by the same"
        " number each time (a state that is carried on without `detach()`); or tensors with graphs"
        " pile up. Before the eighth backward pass of a line it cannot be told. A few kept losses,"
        " a window, and truncated backpropagation are no finding. Graphs of an evaluation without"
        " `no_grad` have no backward pass, and are not seen.",
        "`sum(torch.is_tensor(o) and o.grad_fn is not None for o in gc.get_objects())` grows with"
        " the steps.",
        "`total += loss.item()`, or `loss.detach()` where that would wait for a device;"
        " `state.detach()` between steps.",
        silences=("steps-get-slower", "memory-grows"),
        explains="compute-bound",
        example="voirkit --checks tests/checks/scripts/planted/state_with_history.py",
    ),
    _bug(
        "dead-units",
        "Most units of a ReLU layer give nothing but 0: no gradient comes through them, and they"
        " learn nothing.",
        "Nine of ten units, of the results that the graph keeps for the backward pass, at three"
        " looks or more and 32 rows or more; only of a ReLU right after layers with trained"
        " parameters. From three quarters on it cannot be told: sparse features look alike."
        " Checkpointed layers, compiled code and other activations are not seen.",
        "Print `(activation == 0).float().mean()` after the layer.",
        "A lower learning rate, another initialization, inputs of another scale, `nn.LeakyReLU` or"
        " `nn.GELU`.",
        example="voirkit --checks tests/checks/scripts/planted/dead_layer.py",
    ),
    # bugs with data and ranks
    _bug(
        "same-augmentation",
        "Loader workers draw the same random numbers, so that samples of one are augmented like"
        " those of another; or a worker draws the same numbers in each epoch.",
        "In each worker, before its first batch and after the first that drew from it, a digest of"
        " the state of Python's `random`, `numpy.random`, torch's generator and generators that the"
        " dataset or a transform in it keeps. Found where two workers began with the same state and"
        " drew to the same state, or one worker in all epochs. Generators that start alike and are"
        " not used, a dataset that makes sample i from seed i, and two trainings from one seed are"
        " no finding. Generators that are made anew for each sample, in closures or globals, or on"
        " a device, are not seen.",
        "Print the first random numbers of each worker.",
        "`worker_init_fn=lambda _: np.random.seed(torch.initial_seed() % 2**32)`; a dataset's own"
        " generator is made in the worker.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/same_seed_in_workers.py",
    ),
    _bug(
        "samples-missed",
        "There are samples that no epoch sees.",
        "A sampler of the program's own leaves out the same few samples (a tenth, or less than a"
        " batch) in each of two epochs or more, and no other loader sees them; or the loader says"
        " that it has more batches than it gives, and samples are missing. Torch's own samplers,"
        " `drop_last`, and a sampler that chooses others each time are no finding. Of a sampler"
        " that chooses a larger part, and of a dataset of unknown size, it cannot be told.",
        "`set(range(len(dataset))) - {i for batch in loader.batch_sampler for i in batch}` is not"
        " empty.",
        "Let the sampler give all samples, or shuffle before it leaves some out.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/last_samples_never_seen.py",
    ),
    _bug(
        "samples-twice",
        "Samples are seen twice in an epoch.",
        "Two workers of an `IterableDataset` hold the same in their first two batches, which differ"
        " from each other; or batches overlap, the last sample of one being the first of the next."
        " Sampling with replacement, weights, and the few samples that a `DistributedSampler`"
        " repeats are no finding. Of other samplers that repeat samples, and of streams whose"
        " workers augment what they read, it cannot be told.",
        "Print the first sample of each worker.",
        "Split a stream between workers: `torch.utils.data.get_worker_info()`. Let batches begin"
        " where the one before has ended.",
        silences=(),
        example="voirkit --checks tests/checks/scripts/planted/sampler_repeats.py",
    ),
    _bug(
        "not-shuffled",
        "Training goes through the dataset in its order: batches of one class each, or the same"
        " batches in every epoch.",
        "The order of the indices is that of the dataset in each epoch, and the dataset holds one"
        " class after another; or the program says `shuffle=False`, and the classes have no order."
        " Classes are the last one-dimensional tensor of whole numbers in a batch (in a dictionary:"
        " `labels`, `target` …). One epoch in order beside shuffled ones, a `Subset` with shuffled"
        " indices, and fewer than three batches are no finding. Of data without classes, and of"
        " data in which neighbours are alike, it cannot be told.",
        "Print the targets of the first batches.",
        "`DataLoader(..., shuffle=True)`, or a sampler that shuffles.",
        example="voirkit --checks tests/checks/scripts/planted/classes_in_order.py",
    ),
    _bug(
        "same-order",
        "Data is shuffled into the same order in each epoch.",
        "Without a flag: a shuffling `DistributedSampler` has the same `epoch` at each of the"
        " iterators that are made of its loader. With `--checks`: a digest of the indices is the"
        " same in all epochs, where torch's own samplers shuffle and the same optimizer was"
        " stepped: `set_epoch()` of a `DistributedSampler` was forgotten, or the seed is set in"
        " each epoch.",
        "Print the first indices of `iter(loader.sampler)` in two epochs.",
        "`sampler.set_epoch(epoch)` before each epoch; the seed once, before the first.",
        silences=(),
        because=(
            "DistributedSampler.set_epoch() is not called: its samples come in the same order in"
            " each of {epochs} epochs."
        ),
        next=(
            "Call sampler.set_epoch(epoch) at the begin of each epoch, before the loop over the"
            " loader."
        ),
        example="voirkit examples/findings/same_order.py before",
    ),
    _bug(
        "ranks-same-data",
        "Two ranks train on the same samples in the same order: the work of one is for nothing.",
        "The digests of their indices, and of what their first two batches hold, are the same in an"
        " epoch, and each rank calls a `DistributedDataParallel`. Without that (ranks of a model"
        " that is cut into parts read the same on purpose), and of batches that cannot be compared,"
        " it cannot be told.",
        "Print the indices of the first batch on each rank.",
        "`DataLoader(..., sampler=DistributedSampler(dataset))`, and `sampler.set_epoch(epoch)`.",
        silences=(),
        example=(
            "torchrun --standalone --nproc-per-node 2 -m voirkit --checks"
            " tests/checks/scripts/planted/no_distributed_sampler.py"
        ),
    ),
    _bug(
        "ranks-diverge",
        "The parameters of ranks differ at the same step: each trains a model of its own.",
        "The sums of the absolute values of parameters (the first 48 of an optimizer) differ by"
        " more than 0.00001 of their size and still do at the last look, and the ranks call a"
        " `DistributedDataParallel`; or a `DistributedSampler` deals the data to them and nothing"
        " in the program makes gradients or parameters alike. The last digits, which differ between"
        " kinds of devices, are no finding. Of ranks that hold parts of a model, and of programs"
        " that send tensors between ranks themselves, it cannot be told. Buffers and sharded"
        " parameters are not seen.",
        "Print the sum of a parameter on each rank after some steps.",
        "Call the `DistributedDataParallel` itself, not its `module`, and change parameters alike"
        " on all ranks.",
        silences=(),
        example=(
            "torchrun --standalone --nproc-per-node 2 -m voirkit --checks"
            " tests/checks/scripts/planted/goes_round_the_wrapper.py"
        ),
    ),
)
