"""Which parameters an optimizer has, what is known of each, which of them are looked at in which
step; and how what is known is written into the trace plane: kind ``parameter``. Flags and what they
mean stand here once; ``voirkit_instruments.parameters.analyse`` reads them.
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


class Watched:
    """A parameter that an optimizer steps, or one of the models' that none does."""

    def __init__(self, parameter: Any, name: Name, where: tuple[int, int] | None) -> None:
        self.ref = weakref.ref(parameter)
        self.name = name
        self.where = where  # its group and place in it; None if no optimizer has it
        # (type, dtype, device, requires_grad, shape, is readable) as they were last; None: not seen
        # yet
        self.meta: Any = None
        self.state = -1  # the flags that were recorded last, of a step
        self.zeroed = -1  # those after zero_grad
        self.why_not = ""  # why its data is not looked at
        self.ids: dict[str, int] = {}  # interned names of its records, by category


class Plan:
    """The parameters that are watched in the steps of one optimizer, and when each is."""

    def __init__(self, ordinal: int, kind: str, every: int) -> None:
        self.ordinal = ordinal
        self.kind = kind
        self.every = every
        self.n = 0  # steps that it has made
        self.args = 0
        self.watched: list[Watched] = []
        self.none: list[bool] = []  # of each parameter, whether it had no gradient in the last step
        self.is_finite = True  # no NaN or Inf was in the last step
        self.alarms = 0  # how often there was one after there was none
        self.last_ns = 0  # when its last step began
        self.turns: list[list[int]] = []  # what is read in full, for each step of a round
        # how many models and optimizers were known when it was made
        self.n_models = self.n_optimizers = -1
        self._by_id: dict[int, Watched] = {}

    def is_of(self, parameters: Sequence[Any]) -> bool:
        """True if it was made for these very parameters."""
        if len(parameters) != len(self.watched):
            return False
        return all(map(operator.is_, parameters, [watched.ref() for watched in self.watched]))

    def adopt(
        self,
        parameters: Sequence[Any],
        wheres: Sequence[tuple[int, int] | None],
        name_of: Callable[[Any, Any], Name],
    ) -> None:
        """Watch these from now on; what was known of those that stay is kept."""
        previous, self._by_id, self.watched = self._by_id, {}, []
        for parameter, where in zip(parameters, wheres, strict=True):
            watched = previous.get(id(parameter))
            if watched is None or watched.ref() is not parameter:
                watched = Watched(parameter, name_of(parameter, where), where)
            elif watched.where != where:
                watched.where, watched.meta = where, None
            self.watched.append(watched)
            self._by_id[id(parameter)] = watched
        self.none = [False] * len(parameters)

    def tensors(self) -> list[Any]:
        """Those that are still there."""
        tensors = [watched.ref() for watched in self.watched]
        return [tensor for tensor in tensors if tensor is not None]

    def arrange(self, parameters: Sequence[Any]) -> None:
        """Have about as many bytes read in full in each step."""
        sizes = [
            0 if watched.why_not else parameter.numel() * parameter.element_size()
            for parameter, watched in zip(parameters, self.watched, strict=True)
        ]
        total, before = sum(sizes) or 1, 0.0
        self.turns = [[] for _ in range(self.every)]
        for index, (watched, size) in enumerate(zip(self.watched, sizes, strict=True)):
            turn = min(int((before + size / 2) / total * self.every), self.every - 1)
            before += size
            if not watched.why_not:
                self.turns[turn].append(index)

    def in_turn(self) -> list[int]:
        """The places of those that are read in full in this step."""
        return self.turns[self.n % self.every]


# Modules that stand around a model; what they call it is left out of names.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
_LEFT_OUT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Model(NamedTuple):
    """The names that a model can be called by."""

    number: int  # in the process
    kind: str  # its class, without what stands around it
    is_generic: bool  # it is a class of torch's, as Sequential, which says nothing of this model
    holder: str | None  # the attribute or variable of the program that has it


def model_labels(models: Sequence[Model]) -> dict[int, str]:
    """The labels that tell the models of a process apart, by their numbers; empty for a single one.

    It is the class, if it is the program's and of one model only; else who holds it; else the class
    with a number.
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


def unused(label: str, labels: Collection[str]) -> str:
    """A label with the first number, from 2 on, that makes it differ from others; without, if it
    does so already."""
    numbered = label
    for n in count(2):
        if numbered not in labels:
            break
        numbered = f"{label}{n}"
    return numbered


def prefixed(label: str, path: str) -> str:
    """The name of a parameter or buffer: that in its model, behind what its model is told apart
    by."""
    return f"{label}.{path}" if label else path


class Name:
    """The names of a parameter or buffer: in the whole run, its model, if one is known, its name in
    that model, and another one there if it is tied."""

    def __init__(
        self, full: str, model: Model | None = None, path: str = "", alias: str | None = None
    ) -> None:
        self.full = full
        self.model = model
        self.path = path
        self.alias = alias

    def facts(self) -> dict[str, Any]:
        """As they stand in records; ``model_of`` reads them."""
        if self.model is None:
            return {"model": None}
        facts: dict[str, Any] = {
            "model": self.model.kind,
            "model_number": self.model.number,
            "path": self.path,
        }
        if self.model.is_generic:
            facts["generic"] = True
        if self.model.holder is not None:
            facts["holder"] = self.model.holder
        return facts


def model_of(facts: Mapping[str, Any]) -> Model | None:
    """The model of a parameter or buffer that a record has facts of; None in runs of 0.1, and where
    none is known."""
    if "model_number" not in facts:
        return None
    return Model(
        facts["model_number"], facts["model"], facts.get("generic", False), facts.get("holder")
    )


class Models:
    """The outermost modules that were called, or that a caller has them in: as ``named_parameters``
    of these has it, parameters are named. Modules are kept weakly; their tables are read, no method
    of theirs is called."""

    def __init__(self) -> None:
        self._models = IdentityMap()  # of a module its ``Model``
        self._labels = IdentityMap()  # of a model what goes before its names
        self._owners: dict[str, int] = {}  # by name: the number of the model that has it
        self.changes = 0

    def called(self, module: Any) -> None:
        """A module was called, not from inside of another."""
        if self._models.get(module) is not None:
            return
        owner = find_owner(module, _contains) if _has_parameters(module) else Owner(module, None)
        for model in (owner.module, module):
            if self._models.get(model) is None:
                self._models[model] = self._describe(model, owner.name)
                self.changes += 1

    def _describe(self, module: Any, holder: str | None) -> Model:
        kind = type(_bare(module))
        is_generic = kind.__module__.partition(".")[0] == "torch"
        return Model(self.changes, kind.__name__, is_generic, holder)

    def __iter__(self) -> Iterator[Any]:
        """Those that live and are in no other, in the order in which they were called first."""
        alive = self._models.items()
        inside = [
            {id(inner) for inner, _ in _modules(module)} - {id(module)} for module, _ in alive
        ]
        for module, _ in sorted(alive, key=lambda pair: pair[1].number):
            if not any(id(module) in inner for inner in inside):
                yield module

    def parameters(self) -> list[Any]:
        """All of theirs, each once."""
        by_id = {}
        for module in self:
            for _, tensor in tensors(module, "_parameters"):
                by_id[id(tensor)] = tensor
        return list(by_id.values())

    def buffers(self) -> list[tuple[Name, Any]]:
        """Their buffers with their names, each once."""
        labels = self._current_labels()
        buffers: dict[int, tuple[Name, Any]] = {}
        for module in self:
            model: Model = self._models.get(module)
            label = labels.get(model.number, "")
            for path, tensor in tensors(module, "_buffers"):
                name = Name(prefixed(label, path), model, path)
                buffers.setdefault(id(tensor), (name, tensor))
        return list(buffers.values())

    def names(self) -> dict[int, Name]:
        labels = self._current_labels()
        names: dict[int, Name] = {}
        for module in self:
            paths_of: dict[int, list[str]] = {}
            for path, tensor in tensors(module, "_parameters"):
                paths_of.setdefault(id(tensor), []).append(path)
            all_paths = [path for paths in paths_of.values() for path in paths]
            model: Model = self._models.get(module)
            label = self._label(module, model, labels.get(model.number, ""), all_paths)
            for key, paths in paths_of.items():
                if key not in names:
                    alias = paths[1] if len(paths) > 1 else None
                    names[key] = Name(prefixed(label, paths[0]), model, paths[0], alias)
        return names

    def _current_labels(self) -> dict[int, str]:
        """The labels that tell the models apart that have parameters now."""
        return model_labels(
            [self._models.get(module) for module in self if _has_parameters(module)]
        )

    def _label(self, module: Any, model: Model, label: str, paths: list[str]) -> str:
        """What goes before the names of a model's parameters in records, so that none is another
        model's name; it stays as it was while it lives, though models that come later may need
        another one in reports."""
        previous: str | None = self._labels.get(module)
        candidates = [] if previous is None else [previous]
        candidates += [label, model.kind, *(f"{model.kind}{n}" for n in range(2, 1000))]
        for candidate in candidates:
            if all(
                self._owners.get(prefixed(candidate, path), model.number) == model.number
                for path in paths
            ):
                break
        self._labels[module] = candidate
        self._owners.update((prefixed(candidate, path), model.number) for path in paths)
        return candidate


def _has_parameters(module: Any) -> bool:
    return next(tensors(module, "_parameters"), None) is not None


def _contains(outer: Any, module: Any) -> bool:
    """True if a module is a part of another one."""
    return any(inner is module for inner, _ in _modules(outer))


def tensors(module: Any, table: str) -> Iterator[tuple[str, Any]]:
    """Names and tensors of one of a module's tables, and those of the modules in it; under all
    names that a tensor has."""
    for inner, path in _modules(module, repeated=True):
        for name, tensor in list(getattr(inner, table).items()):
            if tensor is not None:
                yield f"{path}{name}", tensor


def _modules(module: Any, repeated: bool = False) -> Iterator[tuple[Any, str]]:
    """A module and those in it with what their names begin with, in the order of ``named_modules``;
    none in itself. ``repeated``: under all names that it has."""
    visited: set[int] = set()
    stack: list[tuple[Any, str, frozenset[int]]] = [(module, "", frozenset())]
    while stack:
        outer, path, above = stack.pop()
        if id(outer) in above or (not repeated and id(outer) in visited):
            continue
        visited.add(id(outer))
        yield outer, path
        is_wrapper = type(outer).__name__ in _WRAPPERS
        for name, inner in reversed(list(outer._modules.items())):
            if inner is None:
                continue
            is_left_out = name in _LEFT_OUT or (is_wrapper and name == "module")
            inner_path = path if is_left_out else f"{path}{name}."
            stack.append((inner, inner_path, above | {id(outer)}))


def _bare(module: Any) -> Any:
    """The model itself, without what stands around it."""
    for _ in range(8):
        if len(module._modules) != 1 or module._parameters:
            break
        ((name, inner),) = module._modules.items()
        is_wrapped = name in _LEFT_OUT or (name == "module" and type(module).__name__ in _WRAPPERS)
        if inner is None or not is_wrapped:
            break
        module = inner
    return module


class More:
    """The tensors that ``--parameters-of`` adds to each step: ``buffers`` of the models, ``state``
    that optimizers keep for parameters, or both."""

    def __init__(self, kinds: Collection[str], models: Models, torch: Any) -> None:
        self._kinds = kinds
        self._models = models
        self._torch = torch
        self._buffers: list[tuple[Name, Any]] = []  # names, and weakly what they are
        self._buffers_of = -1

    def tensors(
        self, plan: Plan, parameters: Mapping[int, Any], optimizer: Any
    ) -> Iterator[tuple[str, Name, Any]]:
        """Of the step that has just been made: category, name, tensor."""
        if "state" in self._kinds:
            for index, parameter in parameters.items():
                yield from self._state(plan.watched[index].name, optimizer, parameter)
        if "buffers" in self._kinds and plan.ordinal == 0:
            yield from self._buffers_in_turn(plan)

    def _state(self, name: Name, optimizer: Any, parameter: Any) -> Iterator[tuple[str, Name, Any]]:
        for key, value in list(dict.get(optimizer.state, parameter, {}).items()):
            if self._is_plain(value):
                state_name = Name(f"{name.full}:{key}", name.model, f"{name.path}:{key}")
                yield "state_norm", state_name, value

    def _buffers_in_turn(self, plan: Plan) -> Iterator[tuple[str, Name, Any]]:
        if self._buffers_of != self._models.changes:
            self._buffers_of = self._models.changes
            self._buffers = [(name, weakref.ref(buffer)) for name, buffer in self._models.buffers()]
        for index, (name, ref) in enumerate(self._buffers):
            if plan.n == 0 or index % plan.every == plan.n % plan.every:
                buffer = ref()
                if self._is_plain(buffer):
                    yield "buffer_norm", name, buffer

    def _is_plain(self, value: Any) -> bool:
        torch = self._torch
        if type(value) is not torch.Tensor and type(value).__name__ != "Buffer":
            return False
        return is_readable(torch, value) and value.numel() > 0 and value.dtype.is_floating_point


KIND = "parameter"
# Flags of a state: what was true of a step. Without any of a row's it is not known.
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
        self.n_records = 0

    def optimizer(self, plan: Plan, identity: int, every: int) -> None:
        plan.args = self._recorder.arguments(
            {"optimizer": plan.ordinal, "class": plan.kind, "id": identity, "every": every}
        )

    def step(self, plan: Plan, start_ns: int, end_ns: int, n: int) -> None:
        self._recorder.span(self._step, start_ns, end_ns, plan.args, n)
        self.n_records += 1

    def zero_grad(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        self._recorder.span(self._zero_grad, start_ns, end_ns, plan.args, plan.n)
        self.n_records += 1

    def metadata(self, plan: Plan, watched: Watched, parameter: Any, at_ns: int) -> None:
        """The facts of a parameter, when it is seen first and when they have changed."""
        kind, dtype, device, requires_grad, shape = watched.meta[:5]
        facts: dict[str, Any] = {
            "shape": ",".join(map(str, shape)),
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(device),
            "requires_grad": requires_grad,
            **watched.name.facts(),
            "optimizer": None if watched.where is None else plan.ordinal,
        }
        if watched.where is not None:
            facts.update(group=watched.where[0], at=watched.where[1])
        if watched.name.alias is not None:
            facts["alias"] = watched.name.alias
        if watched.why_not:
            facts["not_watched"] = watched.why_not
        if kind.__name__ not in ("Parameter", "Tensor"):
            facts["class"] = kind.__name__
        args = self._recorder.arguments(facts)
        self._recorder.span(self._id(watched, "seen"), at_ns, at_ns, args, id(parameter))
        self.n_records += 1

    def flags(self, watched: Watched, category: str, at_ns: int, flags: int) -> None:
        """``state`` or ``zeroed``."""
        self._recorder.span(self._id(watched, category), at_ns, at_ns, 0, flags)
        self.n_records += 1

    def figure(self, watched: Watched, category: str, at_ns: int, value: float) -> None:
        self._recorder.span(
            self._id(watched, category), at_ns, at_ns, 0, *_as_integer(_as_double(value))
        )
        self.n_records += 1

    def other(self, category: str, name: Name, at_ns: int, value: float) -> None:
        number = self._recorder.name(category, name.full, kind=KIND, value="figure")
        self._recorder.span(
            number,
            at_ns,
            at_ns,
            self._recorder.arguments(name.facts()),
            *_as_integer(_as_double(value)),
        )
        self.n_records += 1

    def digest(self, watched: Watched, at_ns: int, digest: int, of: str) -> None:
        self._recorder.span(
            self._id(watched, "digest"), at_ns, at_ns, self._recorder.arguments({"of": of}), digest
        )
        self.n_records += 1

    def _id(self, watched: Watched, category: str) -> int:
        number = watched.ids.get(category)
        if number is None:
            value = _KEYS.get(category, "figure")
            number = self._recorder.name(category, watched.name.full, kind=KIND, value=value)
            watched.ids[category] = number
        return number
