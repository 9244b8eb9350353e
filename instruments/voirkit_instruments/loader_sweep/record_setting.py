"""Other numbers for the program's loaders, and a bounded number of steps: what ``--loader-sweep`` runs the script with. Nobody else should.

    --loader-setting num_workers=4,prefetch_factor=8,steps=40

The arguments of ``torch.utils.data.DataLoader`` are replaced where the program makes one (checked with torch 2.1 to 2.15); what does not go
together with them is dropped: without workers there is nothing to prefetch, to keep or to wait for.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import PhaseWithPriority
    from voirkit.runner.overseer import Overseer

KEYS = ("num_workers", "prefetch_factor", "steps")


def read(text: str) -> dict[str, int]:
    """The numbers of a setting.

    Raises:
        ValueError: It has another form.
    """
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key not in KEYS or not equals or not value.isdigit():
            raise ValueError(f"{part!r} is none of {', '.join(f'{k}=N' for k in KEYS)}.")
        found[key] = int(value)
    return found


@instrument_definition
def loader_setting(ov: Overseer, setting: Mapping[str, int]) -> Iterator[PhaseWithPriority]:
    """Run with this setting."""
    from voirkit.intercept import Patches
    from voirkit_instruments.early_stop.record import Stopper

    patches, stopper = Patches(), Stopper(ov)
    hooks: list[Any] = []
    made = ov.summary["loader_setting"] = {**setting, "loaders": 0}
    left = setting.get("steps", 0)

    def begin(module: ModuleType) -> None:
        patches.wrap(module.DataLoader, "__init__", replacing(setting, made))

    def count(module: ModuleType) -> None:
        def stepped(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                stopper.now()

        if left:
            hooks.append(module.register_optimizer_step_post_hook(stepped))

    when_imported("torch.utils.data.dataloader", begin)
    when_imported("torch.optim.optimizer", count)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
        patches.remove()
        for hook in hooks:
            hook.remove()


def replacing(setting: Mapping[str, int], made: dict[str, int]) -> Callable[..., Any]:
    """What is called in place of ``DataLoader.__init__``."""
    from inspect import signature

    def make(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = signature(wrapped).bind(*args, **kwargs)
        except TypeError:  # torch says what is wrong with it
            return wrapped(*args, **kwargs)
        given = bound.arguments
        workers = setting.get("num_workers", given.get("num_workers", 0))
        given["num_workers"] = workers
        if workers and "prefetch_factor" in setting:
            given["prefetch_factor"] = setting["prefetch_factor"]
        if not workers:
            for key in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                given.pop(key, None)
        made["loaders"] += 1
        return wrapped(*bound.args, **bound.kwargs)

    return make
