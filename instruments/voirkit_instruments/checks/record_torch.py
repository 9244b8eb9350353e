"""Which functions of torch ``--checks`` stands around: the one table of them. Checked with torch 2.1 and 2.15.

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType

from voirkit.intercept import Patches
from voirkit.probes.around import Around
from voirkit_instruments.checks.record_facts import BACKWARD, COLLECTING, DEAF, FORWARD
from voirkit_instruments.checks.record_graph import Graphs
from voirkit_instruments.checks.record_losses import LossFacts
from voirkit_instruments.checks.record_models import ModelFacts
from voirkit_instruments.checks.record_optimizers import OptimizerFacts
from voirkit_instruments.steps.torch_functions import COMPILING, as_function, innermost, step_of, steppers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")
_PAIRS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_SCHEDULERS = ("LRScheduler", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler", "CosineAnnealingWarmRestarts")


class TorchFacts:
    """The patches of ``--checks`` on the optimizer, the gradients and the model.

    Args:
        facts: Where facts are written.
        torch: The module.
        ov: The overseer.
    """

    def __init__(self, facts: Facts, torch: ModuleType, ov: Any) -> None:
        self._facts, self._torch, self._ov = facts, torch, ov
        self._patches = Patches()
        models = ModelFacts(facts, torch)
        graphs = Graphs(facts, torch, models)
        optimizers = self._optimizers = OptimizerFacts(facts, torch, models, graphs)
        losses = LossFacts(facts, torch)
        self._step = self._around(BACKWARD, optimizers.enter_step, optimizers.leave_step, ("self",))
        self._decorated_step = self._around(BACKWARD, optimizers.enter_step, optimizers.leave_step, ("args",))
        self._made = self._around(DEAF, optimizers.enter_made, self._leave_made, ("self",))
        self._zero_grad = self._around(BACKWARD, optimizers.enter_zero_grad, optimizers.leave_zero_grad, ("self",))
        self._backward = self._around(FORWARD, graphs.enter_backward(optimizers), graphs.leave_backward, ("tensors",))
        self._call = self._around(COLLECTING, models.enter_call, models.leave_call, ("self",))
        enter, leave = as_function(optimizers.enter_scheduler), as_function(optimizers.leave_scheduler)
        # Their module has no torch that could be asked whether it is being compiled.
        self._scheduler = Around(facts.here, BACKWARD, enter, leave, ("self", "epoch"), unasked=True)
        self._scheduler_alone = Around(facts.here, BACKWARD, enter, leave, ("self",), unasked=True)
        self._scaler = self._around(BACKWARD, optimizers.enter_scaler, optimizers.leave_scaler, ("optimizer",))
        self._losses = {name: self._around(FORWARD, *losses.around(name), ("input",)) for name in _LOSSES}
        self._losses |= {name: self._around(FORWARD, *losses.around_pair(name), ("input", "target", "reduction")) for name in _PAIRS}

    def _around(self, most: int, enter: Any, leave: Any, passed: tuple[str, ...]) -> Around:
        return Around(self._facts.here, most, as_function(enter), as_function(leave), passed, False, COMPILING)

    def put(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        for module, path, around in (
            ("torch.nn.modules.module", "Module._wrapped_call_impl", self._call),
            ("torch.nn.modules.module", "Module.zero_grad", self._zero_grad),
            ("torch.autograd", "backward", self._backward),
            ("torch.optim.optimizer", "Optimizer.zero_grad", self._zero_grad),
            ("torch.optim.optimizer", "Optimizer._patch_step_function", self._made),
            *(("torch.nn.functional", name, around) for name, around in self._losses.items()),
        ):
            self._patches.when(module, partial(self._put_around, path, around), self._off)
        self._patches.when("torch.optim.lr_scheduler", self._put_schedulers, self._off)
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            self._patches.when(module, self._put_scaler, self._off)
        self._patches.when("torch.optim.optimizer", self._put_steps, self._off)

    def remove(self) -> None:
        """Put all back as it was, after a last look."""
        self._optimizers.finish()
        self._patches.remove()
        table = self._patches.table
        self._ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())

    def _off(self, name: str, why: str) -> None:
        self._patches.table[name] = why
        self._ov.warn(f"checks: {name} is not watched: it {why.rstrip('.')}.")

    def _put_around(self, path: str, around: Around, module: ModuleType) -> None:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        self._put(f"{module.__name__}.{path}", innermost(found), around)

    def _put(self, name: str, function: Any, around: Around, qualname: str | None = None) -> None:
        if not self._patches.around(name, function, around, qualname):
            self._off(name, self._patches.table[name])

    def _put_schedulers(self, module: ModuleType) -> None:
        for name in _SCHEDULERS:
            step = vars(getattr(module, name, object)).get("step")
            if type(step) is FunctionType:
                step = innermost(step)
                with_epoch = "epoch" in step.__code__.co_varnames[: step.__code__.co_argcount]
                self._put(f"{module.__name__}.{name}.step", step, self._scheduler if with_epoch else self._scheduler_alone)

    def _put_scaler(self, module: ModuleType) -> None:
        step = vars(module.GradScaler).get("step")  # that of torch.cuda.amp is torch.amp's in torch 2.3 and later
        if step is not None:
            self._put(f"{module.__name__}.GradScaler.step", innermost(step), self._scaler)

    # optimizers: the step of a class is decorated anew when its first optimizer is made

    def _put_steps(self, module: ModuleType) -> None:
        for kind in steppers(module.Optimizer):
            self._put_step(kind)

    def _leave_made(self, _began: int, was: int, optimizer: Any) -> None:
        self._facts.here.inside = was
        try:
            self._facts.trains()
            self._put_step(type(optimizer))
        except Exception as exc:
            self._facts.failed("an optimizer", exc)

    def _put_step(self, kind: type) -> None:
        name, function, qualname = step_of(kind)
        if function is None:
            self._off(name, "is not written in Python")
        else:
            self._put(name, function, self._decorated_step if qualname else self._step, qualname)
