"""Which parameters an optimizer has, what is known of each, which of them are looked at in which step; and how what is known is written
into the trace plane: kind ``parameter``. Flags and what they mean stand here once; ``voirkit_instruments.parameters.analyse`` reads them.
"""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from itertools import count
from struct import Struct
from typing import NamedTuple

from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.parameters.record_owners import Owner, find_owner
from voirkit_instruments.values import is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any

    from voirkit_instruments.parameters.record_figures import Figures


# How many parameters on the CPU are sampled in a step, and the most steps between two samples of one: a sample of 62 tensors costs 0.9 ms
# behind an Adam.step, whose data is in the caches.
SAMPLED, MOST_ROUNDS = 8, 8


class Watched:
    """A parameter that an optimizer steps, or one of the models' that none does."""

    def __init__(self, parameter: Any, name: Name, where: tuple[int, int] | None) -> None:
        self.ref = weakref.ref(parameter)
        self.name = name
        self.where = where  # its group and place in it; None if no optimizer has it
        self.meta: Any = None  # (type, dtype, device, requires_grad, shape, is readable, stride) as they were last; None: not seen yet
        self.state = -1  # the flags that were recorded last, of a step
        self.zeroed = -1  # those after zero_grad
        self.why_not = ""  # why its data is not looked at
        self.place: tuple[int, int] | None = None  # how many elements are sampled, and how far apart; None: none are
        self.is_whole = False  # all of them are
        self.stride: Any = None
        self.ids: dict[str, int] = {}  # interned names of its records, by category


class Group:
    """Parameters on one device, of one type: their samples are taken together."""

    def __init__(self, places: list[int], counts: list[int]) -> None:
        self.at = places  # among all parameters
        self.starts = [sum(counts[:n]) for n in range(len(counts))]  # where the sample of each begins among those of the group


class Plan:
    """What is watched in the steps of one optimizer."""

    def __init__(self, ordinal: int, kind: str, every: int) -> None:
        self.ordinal, self.kind, self.every = ordinal, kind, every
        self.n = 0  # steps that it has made
        self.args = 0
        self.watched: list[Watched] = []
        self.groups: list[list[Group]] = []  # of what is sampled, for each step of a short round
        self.none: list[bool] = []  # of each parameter, whether it had no gradient in the last step
        self.is_finite = True  # no NaN or Inf was in the last step
        self.alarms = 0  # how often there was one after there was none
        self.last_ns = 0  # when its last step began
        self.turns: list[list[int]] = []  # what is examined in full, for each step of a round
        self.models = self.others = -1  # how many models and optimizers were known when it was made
        self._by_id: dict[int, Watched] = {}

    def is_of(self, parameters: Sequence[Any]) -> bool:
        """Whether it was made for these very parameters."""
        return len(parameters) == len(self.watched) and all(map(operator.is_, parameters, [one.ref() for one in self.watched]))

    def adopt(self, parameters: Sequence[Any], wheres: Sequence[tuple[int, int] | None], name_of: Callable[[Any, Any], Name]) -> None:
        """Watch these from now on; what was known of those that stay is kept."""
        known, self._by_id, self.watched = self._by_id, {}, []
        for parameter, where in zip(parameters, wheres, strict=True):
            one = known.get(id(parameter))
            if one is None or one.ref() is not parameter:
                one = Watched(parameter, name_of(parameter, where), where)
            elif one.where != where:
                one.where, one.meta = where, None
            self.watched.append(one)
            self._by_id[id(parameter)] = one
        self.none = [False] * len(parameters)

    def looked_at(self) -> list[int]:
        """The places of those whose data is looked at in this step."""
        return [*(at for group in self.sampled() for at in group.at), *self.due()] if self.groups else []

    def arrange(self, parameters: Sequence[Any], figures: Figures) -> None:
        """Sort what is watched into groups and turns."""
        n_rounds = max(1, min(len(parameters) // SAMPLED, MOST_ROUNDS, self.every))
        rounds: list[dict[tuple[Any, Any], list[int]]] = [{} for _ in range(n_rounds)]
        sizes = [0] * len(parameters)
        for at, (parameter, one) in enumerate(zip(parameters, self.watched, strict=True)):
            one.place = one.stride = None
            if one.why_not:
                continue
            sizes[at] = parameter.numel() * parameter.element_size()
            one.stride = parameter.stride()
            one.place = figures.place(parameter)
            one.is_whole = one.place is not None and one.place[0] == parameter.numel()
            if one.place is not None:
                for number, kinds in enumerate(rounds):
                    if at % len(rounds) == number or parameter.device.type != "cpu":
                        kinds.setdefault((parameter.device, parameter.dtype), []).append(at)
        self.groups = [
            [Group(ats, [self.watched[at].place[0] for at in ats]) for ats in kinds.values()]  # type: ignore[index]
            for kinds in rounds
        ]
        total, before = sum(sizes) or 1, 0.0
        self.turns = [[] for _ in range(self.every)]
        for at, (one, size) in enumerate(zip(self.watched, sizes, strict=True)):
            turn = min(int((before + size / 2) / total * self.every), self.every - 1)
            before += size
            if not one.why_not:
                self.turns[turn].append(at)

    def sampled(self) -> list[Group]:
        """The groups that are sampled in this step: in the first one all."""
        return self.groups[self.n % len(self.groups)] if self.n else [group for groups in self.groups for group in groups]

    def due(self) -> list[int]:
        """The places of those that are looked at in this step."""
        return self.turns[self.n % self.every]


# Modules that stand around a model; what they call it is left out of names.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
_LEFT_OUT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Model(NamedTuple):
    """What a model can be called by."""

    number: int  # in the process
    kind: str  # its class, without what stands around it
    is_generic: bool  # it is a class of torch's, as Sequential, which says nothing of this model
    holder: str | None  # the attribute or variable of the program that has it


def model_labels(models: Sequence[Model]) -> dict[int, str]:
    """What tells the models of a process apart, by their numbers; nothing for a single one.

    It is the class, if it is the program's and of one model only; else who holds it; else the class with a number.
    """
    if len(models) < 2:
        return {model.number: "" for model in models}
    kinds = Counter(model.kind for model in models)
    holders = Counter(model.holder for model in models)
    labels: dict[int, str] = {}
    for model in models:
        is_held_apart = model.holder is not None and holders[model.holder] == 1
        is_telling = kinds[model.kind] == 1 and not model.is_generic
        label = str(model.holder) if is_held_apart and not is_telling else model.kind
        labels[model.number] = unused(label, labels.values())
    return labels


def unused(label: str, taken: Collection[str]) -> str:
    """A label with the first number, from 2 on, that makes it differ from others; without, if it does so already."""
    numbered = label
    for n in count(2):
        if numbered not in taken:
            break
        numbered = f"{label}{n}"
    return numbered


def prefixed(label: str, path: str) -> str:
    """The name of a parameter or buffer: that in its model, behind what its model is told apart by."""
    return f"{label}.{path}" if label else path


class Name:
    """What a parameter or buffer is called: its name in the whole run, its model, if one is known, its name in that model, and another one
    there if it is tied."""

    def __init__(self, full: str, model: Model | None = None, path: str = "", alias: str | None = None) -> None:
        self.full, self.model, self.path, self.alias = full, model, path, alias

    def facts(self) -> dict[str, Any]:
        """As they stand in records; ``model_of`` reads them."""
        if self.model is None:
            return {"model": None}
        facts: dict[str, Any] = {"model": self.model.kind, "model_number": self.model.number, "path": self.path}
        if self.model.is_generic:
            facts["generic"] = True
        if self.model.holder is not None:
            facts["holder"] = self.model.holder
        return facts


def model_of(facts: Mapping[str, Any]) -> Model | None:
    """The model of a parameter or buffer that a record has facts of; None in runs of 0.1, and where none is known."""
    if "model_number" not in facts:
        return None
    return Model(facts["model_number"], facts["model"], facts.get("generic", False), facts.get("holder"))


class Models:
    """The outermost modules that were called, or that a caller has them in: as ``named_parameters`` of these has it, parameters are named.
    Modules are kept weakly; their tables are read, no method of theirs is called."""

    def __init__(self) -> None:
        self._known = IdentityMap()  # of a module its ``Model``
        self._labels = IdentityMap()  # of a model what goes before its names
        self._taken: dict[str, int] = {}  # by name: the number of the model that has it
        self.changes = 0

    def called(self, module: Any) -> None:
        """A module was called, not from inside of another."""
        if self._known.get(module) is not None:
            return
        owner = find_owner(module, _contains) if _has_parameters(module) else Owner(module, None)
        for one in (owner.module, module):
            if self._known.get(one) is None:
                self._known[one] = self._describe(one, owner.name)
                self.changes += 1

    def _describe(self, module: Any, holder: str | None) -> Model:
        kind = type(_bare(module))
        is_generic = kind.__module__.partition(".")[0] == "torch"
        return Model(self.changes, kind.__name__, is_generic, holder)

    def __iter__(self) -> Iterator[Any]:
        """Those that live and are in no other, in the order in which they were called first."""
        alive = self._known.items()
        inside = [{id(inner) for inner, _ in _modules(module)} - {id(module)} for module, _ in alive]
        for module, _ in sorted(alive, key=lambda pair: pair[1].number):
            if not any(id(module) in inner for inner in inside):
                yield module

    def parameters(self) -> list[Any]:
        """All of theirs, each once."""
        return list({id(tensor): tensor for module in self for _, tensor in tensors(module, "_parameters")}.values())

    def buffers(self) -> list[tuple[Name, Any]]:
        """Their buffers with their names, each once."""
        labels = self._current_labels()
        found: dict[int, tuple[Name, Any]] = {}
        for module in self:
            model: Model = self._known.get(module)
            for path, tensor in tensors(module, "_buffers"):
                found.setdefault(id(tensor), (Name(prefixed(labels.get(model.number, ""), path), model, path), tensor))
        return list(found.values())

    def names(self) -> dict[int, Name]:
        labels = self._current_labels()
        found: dict[int, Name] = {}
        for module in self:
            own: dict[int, list[str]] = {}
            for path, tensor in tensors(module, "_parameters"):
                own.setdefault(id(tensor), []).append(path)
            model: Model = self._known.get(module)
            label = self._label(module, model, labels.get(model.number, ""), [path for paths in own.values() for path in paths])
            for key, paths in own.items():
                if key not in found:
                    alias = paths[1] if len(paths) > 1 else None
                    found[key] = Name(prefixed(label, paths[0]), model, paths[0], alias)
        return found

    def _current_labels(self) -> dict[int, str]:
        """What tells the models apart that have parameters now."""
        return model_labels([self._known.get(module) for module in self if _has_parameters(module)])

    def _label(self, module: Any, model: Model, label: str, paths: list[str]) -> str:
        """What goes before the names of a model's parameters in records, so that none is another model's name; it stays as it was while it
        lives, though models that come later may need another one in reports."""
        known: str | None = self._labels.get(module)
        candidates = [] if known is None else [known]
        candidates += [label, model.kind, *(f"{model.kind}{n}" for n in range(2, 1000))]
        for candidate in candidates:
            if all(self._taken.get(prefixed(candidate, path), model.number) == model.number for path in paths):
                break
        self._labels[module] = candidate
        self._taken.update((prefixed(candidate, path), model.number) for path in paths)
        return candidate


def _has_parameters(module: Any) -> bool:
    return next(tensors(module, "_parameters"), None) is not None


def _contains(outer: Any, module: Any) -> bool:
    """Whether a module is a part of another one."""
    return any(inner is module for inner, _ in _modules(outer))


def tensors(module: Any, table: str) -> Iterator[tuple[str, Any]]:
    """Names and tensors of one of a module's tables, and those of the modules in it; under all names that a tensor has."""
    for inner, path in _modules(module, again=True):
        for name, tensor in list(getattr(inner, table).items()):
            if tensor is not None:
                yield f"{path}{name}", tensor


def _modules(module: Any, again: bool = False) -> Iterator[tuple[Any, str]]:
    """A module and those in it with what their names begin with, in the order of ``named_modules``; none in itself."""
    seen: set[int] = set()
    stack: list[tuple[Any, str, frozenset[int]]] = [(module, "", frozenset())]
    while stack:
        at, path, above = stack.pop()
        if id(at) in above or (not again and id(at) in seen):
            continue
        seen.add(id(at))
        yield at, path
        wraps = type(at).__name__ in _WRAPPERS
        inner = [(name, one) for name, one in list(at._modules.items()) if one is not None]
        for name, one in reversed(inner):
            dropped = name in _LEFT_OUT or (wraps and name == "module")
            stack.append((one, path if dropped else f"{path}{name}.", above | {id(at)}))


def _bare(module: Any) -> Any:
    """The model itself, without what stands around it."""
    for _ in range(8):
        inner = [one for name, one in module._modules.items() if name in _LEFT_OUT or name == "module"]
        if len(module._modules) != 1 or not inner or inner[0] is None or module._parameters:
            break
        if type(module).__name__ not in _WRAPPERS and "module" in module._modules:
            break
        module = inner[0]
    return module


class More:
    """What ``--parameters-of`` adds to each step: ``buffers`` of the models, ``state`` that optimizers keep for parameters, or both."""

    def __init__(self, kinds: Collection[str], models: Models, torch: Any) -> None:
        self._kinds, self._models, self._torch = kinds, models, torch
        self._buffers: list[tuple[Name, Any]] = []  # names, and weakly what they are
        self._buffers_of = -1

    def due(self, plan: Plan, due: Mapping[int, Any], optimizer: Any) -> Iterator[tuple[str, Name, Any]]:
        """Of the step that has just been made: category, name, tensor."""
        if "state" in self._kinds:
            for at, parameter in due.items():
                for key, value in list(dict.get(optimizer.state, parameter, {}).items()):
                    if self._is_plain(value):
                        name = plan.watched[at].name
                        yield "state_norm", Name(f"{name.full}:{key}", name.model, f"{name.path}:{key}"), value
        if "buffers" in self._kinds and plan.ordinal == 0:
            if self._buffers_of != self._models.changes:
                self._buffers_of = self._models.changes
                self._buffers = [(name, weakref.ref(one)) for name, one in self._models.buffers()]
            for at, (name, ref) in enumerate(self._buffers):
                buffer = ref() if plan.n == 0 or at % plan.every == plan.n % plan.every else None
                if self._is_plain(buffer):
                    yield "buffer_norm", name, buffer

    def _is_plain(self, value: Any) -> bool:
        torch = self._torch
        if type(value) is not torch.Tensor and type(value).__name__ != "Buffer":
            return False
        return is_readable(torch, value) and value.numel() > 0 and value.dtype.is_floating_point


KIND = "parameter"
# Of a state: what was true of a step. Without any of a row's it is not known.
GRAD_NONE, GRAD_ZERO, GRAD_NOT_ZERO = 1, 2, 4
GRAD_NAN, GRAD_INF = 8, 16
GRAD_BITS = GRAD_NONE | GRAD_ZERO | GRAD_NOT_ZERO | GRAD_NAN | GRAD_INF
CHANGED, SAME = 32, 64
NAN, INF = 128, 256

_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_KEYS = {"seen": "id", "state": "flags", "zeroed": "flags", "digest": "digest"}


class Records:
    """Writes them."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._step = recorder.name("step", "optimizer", kind=KIND, value="n")
        self._zero_grad = recorder.name("zero_grad", "optimizer", kind=KIND, value="n")
        self.made = 0

    def optimizer(self, plan: Plan, identity: int, every: int) -> None:
        plan.args = self._recorder.arguments({"optimizer": plan.ordinal, "class": plan.kind, "id": identity, "every": every})

    def step(self, plan: Plan, start_ns: int, end_ns: int, n: int) -> None:
        self._recorder.span(self._step, start_ns, end_ns, plan.args, n)
        self.made += 1

    def zero_grad(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        self._recorder.span(self._zero_grad, start_ns, end_ns, plan.args, plan.n)
        self.made += 1

    def metadata(self, plan: Plan, one: Watched, parameter: Any, at_ns: int) -> None:
        """What a parameter is, when it is seen first and when that has changed."""
        kind, dtype, device, requires_grad, shape = one.meta[:5]
        known: dict[str, Any] = {
            "shape": ",".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch."), "device": str(device),
            "requires_grad": requires_grad, **one.name.facts(),
            "optimizer": None if one.where is None else plan.ordinal,
        }  # fmt: skip
        if one.where is not None:
            known.update(group=one.where[0], at=one.where[1])
        if one.name.alias is not None:
            known["alias"] = one.name.alias
        if one.why_not:
            known["not_watched"] = one.why_not
        if kind.__name__ not in ("Parameter", "Tensor"):
            known["class"] = kind.__name__
        self._recorder.span(self._id(one, "seen"), at_ns, at_ns, self._recorder.arguments(known), id(parameter))
        self.made += 1

    def flags(self, one: Watched, category: str, at_ns: int, flags: int) -> None:
        """``state`` or ``zeroed``."""
        self._recorder.span(self._id(one, category), at_ns, at_ns, 0, flags)
        self.made += 1

    def figure(self, one: Watched, category: str, at_ns: int, value: float) -> None:
        self._recorder.span(self._id(one, category), at_ns, at_ns, 0, *_as_integer(_as_double(value)))
        self.made += 1

    def other(self, category: str, name: Name, at_ns: int, value: float) -> None:
        number = self._recorder.name(category, name.full, kind=KIND, value="figure")
        self._recorder.span(number, at_ns, at_ns, self._recorder.arguments(name.facts()), *_as_integer(_as_double(value)))
        self.made += 1

    def digest(self, one: Watched, at_ns: int, digest: int, of: str) -> None:
        self._recorder.span(self._id(one, "digest"), at_ns, at_ns, self._recorder.arguments({"of": of}), digest)
        self.made += 1

    def _id(self, one: Watched, category: str) -> int:
        found = one.ids.get(category)
        if found is None:
            value = _KEYS.get(category, "figure")
            found = one.ids[category] = self._recorder.name(category, one.name.full, kind=KIND, value=value)
        return found
