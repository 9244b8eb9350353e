"""The parameters of an optimizer: their state, the steps in which each is read, their names, and
their records in the trace plane.

The records are of the kind ``parameter``. Their flags are defined here only, and read by
``voirkit_instruments.parameters.analyse``.
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
    """The state of a parameter that is read: of an optimizer, or of a model if no optimizer holds
    it."""

    def __init__(self, parameter: Any, name: Name, where: tuple[int, int] | None) -> None:
        self.ref = weakref.ref(parameter)
        self.name = name
        self.where = where  # (group, index in the group); None if no optimizer holds it
        # the last (type, dtype, device, requires_grad, shape, is readable); None before the first
        self.meta: Any = None
        self.state = -1  # flags of the last ``state`` record; -1 if there is none
        self.zeroed = -1  # flags of the last ``zeroed`` record, after zero_grad; -1 if none
        self.why_not = ""  # the reason why its data cannot be read; empty if it can
        self.ids: dict[str, int] = {}  # interned names of its records, by category


class Plan:
    """The parameters that are read in the steps of one optimizer, and the steps in which each is
    read in full."""

    def __init__(self, ordinal: int, kind: str, every: int) -> None:
        self.ordinal = ordinal
        self.kind = kind
        self.every = every
        self.n = 0  # number of steps so far
        self.args = 0
        self.watched: list[Watched] = []
        self.is_finite = True  # True if the last step had no NaN or Inf
        self.alarms = 0  # how often NaN or Inf was seen after all had been finite
        self.last_ns = 0  # the time at which the last step began
        self.turns: list[list[int]] = []  # for each of ``every`` steps: indices read in full
        # ``Models.changes``, and the number of plans, when parameters without an optimizer were
        # last searched for
        self.n_models = self.n_optimizers = -1
        self._by_id: dict[int, Watched] = {}

    def is_of(self, parameters: Sequence[Any]) -> bool:
        """True if the plan was made for these parameter objects, in this order."""
        if len(parameters) != len(self.watched):
            return False
        return all(map(operator.is_, parameters, [watched.ref() for watched in self.watched]))

    def adopt(
        self,
        parameters: Sequence[Any],
        wheres: Sequence[tuple[int, int] | None],
        name_of: Callable[[Any, Any], Name],
    ) -> None:
        """Replace the watched parameters; the state of a parameter that was watched before is
        kept."""
        previous, self._by_id, self.watched = self._by_id, {}, []
        for parameter, where in zip(parameters, wheres, strict=True):
            watched = previous.get(id(parameter))
            if watched is None or watched.ref() is not parameter:
                watched = Watched(parameter, name_of(parameter, where), where)
            elif watched.where != where:
                watched.where, watched.meta = where, None
            self.watched.append(watched)
            self._by_id[id(parameter)] = watched

    def tensors(self) -> list[Any]:
        """Return the watched parameters that are still alive."""
        tensors = [watched.ref() for watched in self.watched]
        return [tensor for tensor in tensors if tensor is not None]

    def arrange(self, parameters: Sequence[Any]) -> None:
        """Spread the reading so that each step reads about the same number of bytes in full."""
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
        """Return the indices of the parameters that are read in full in this step."""
        return self.turns[self.n % self.every]


# Classes that wrap a model in their attribute ``module``, and other attributes that hold a wrapped
# model. The paths of parameters omit these attributes.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}
_LEFT_OUT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Model(NamedTuple):
    """The names that a model can be called by."""

    number: int  # number of the model in the process
    kind: str  # name of the model's class, without wrappers
    is_generic: bool  # True for a class of torch, such as Sequential, which identifies no model
    holder: str | None  # the name of the program's attribute or variable that holds it


def model_labels(models: Sequence[Model]) -> dict[int, str]:
    """Return a dict from number to label, for the models of a process. The labels distinguish the
    models; the label of a single model is empty.

    A label is the name of the class, if it is the program's and only one model has it. Otherwise it
    is the holder, if only this model has it. Otherwise it is the class, with a number if needed.
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
    """Return a label that is not among ``labels``: unchanged if possible, otherwise with the first
    number, from 2 on, that makes it unique."""
    numbered = label
    for n in count(2):
        if numbered not in labels:
            break
        numbered = f"{label}{n}"
    return numbered


def prefixed(label: str, path: str) -> str:
    """Return the name of a parameter or buffer: the label of its model, if any, and its path in the
    model."""
    return f"{label}.{path}" if label else path


class Name:
    """The names of a parameter or buffer.

    Args:
        full: Its name in the run.
        model: Its model; None if it is not known.
        path: Its name in the model.
        alias: Another name in the model, for a tied parameter; otherwise None.
    """

    def __init__(
        self, full: str, model: Model | None = None, path: str = "", alias: str | None = None
    ) -> None:
        self.full = full
        self.model = model
        self.path = path
        self.alias = alias

    def facts(self) -> dict[str, Any]:
        """Return the names as they are written in records; ``model_of`` reads them."""
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
    """Return the model of a parameter or buffer from the facts in its record; None if it is not
    known, and in runs of version 0.1."""
    if "model_number" not in facts:
        return None
    return Model(
        facts["model_number"], facts["model"], facts.get("generic", False), facts.get("holder")
    )


class Models:
    """The models of a process: the outermost modules that the program calls, or larger modules in
    the calling frames that contain them. Parameters are named as ``named_parameters`` of these
    modules names them.

    Modules are kept by weak references. Their tables are read; none of their methods is called."""

    def __init__(self) -> None:
        self._models = IdentityMap()  # module -> ``Model``
        self._labels = IdentityMap()  # module -> the prefix of its parameters' names
        self._owners: dict[str, int] = {}  # name of a parameter -> number of its model
        self.changes = 0

    def called(self, module: Any) -> None:
        """Note that the program calls a module, from outside of any other module."""
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
        """Yield the modules that still exist and are in no other one, in order of first calls."""
        alive = self._models.items()
        inside = [
            {id(inner) for inner, _ in _modules(module)} - {id(module)} for module, _ in alive
        ]
        for module, _ in sorted(alive, key=lambda pair: pair[1].number):
            if not any(id(module) in inner for inner in inside):
                yield module

    def parameters(self) -> list[Any]:
        """Return all parameters of the modules, each once."""
        by_id = {}
        for module in self:
            for _, tensor in tensors(module, "_parameters"):
                by_id[id(tensor)] = tensor
        return list(by_id.values())

    def buffers(self) -> list[tuple[Name, Any]]:
        """Return the buffers of the modules with their names, each once."""
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
        """Return the labels that distinguish the models that have parameters now."""
        return model_labels(
            [self._models.get(module) for module in self if _has_parameters(module)]
        )

    def _label(self, module: Any, model: Model, label: str, paths: list[str]) -> str:
        """Return a prefix that distinguishes a model's parameters from other models' in records.

        It does not change while the model exists. Reports may use another one, since later models
        can make other labels necessary."""
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
    """Yield the names and tensors in a table (``_parameters``, ``_buffers``) of a module and of the
    modules in it. A tensor with several names is yielded under each."""
    for inner, path in _modules(module, repeated=True):
        for name, tensor in list(getattr(inner, table).items()):
            if tensor is not None:
                yield f"{path}{name}", tensor


def _modules(module: Any, repeated: bool = False) -> Iterator[tuple[Any, str]]:
    """Yield a module and the modules in it, each with the prefix of its tensors' names, in the
    order of ``named_modules``. ``repeated``: yield a module under each of its names."""
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
    """Return the model itself, without its wrappers."""
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
    of the optimizers, or both."""

    def __init__(self, kinds: Collection[str], models: Models, torch: Any) -> None:
        self._kinds = kinds
        self._models = models
        self._torch = torch
        self._buffers: list[tuple[Name, Any]] = []  # names of buffers, and weak references to them
        self._buffers_of = -1

    def tensors(
        self, plan: Plan, parameters: Mapping[int, Any], optimizer: Any
    ) -> Iterator[tuple[str, Name, Any]]:
        """Yield (category, name, tensor) for the optimizer step that has just ended."""
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
# Flags of a parameter in a step. The gradient is unknown if none of GRAD_NONE, GRAD_ZERO and
# GRAD_NOT_ZERO is set. A change of the data is unknown if neither CHANGED nor SAME is set.
GRAD_NONE, GRAD_ZERO, GRAD_NOT_ZERO = 1, 2, 4
GRAD_NAN, GRAD_INF = 8, 16
GRAD_BITS = GRAD_NONE | GRAD_ZERO | GRAD_NOT_ZERO | GRAD_NAN | GRAD_INF
CHANGED, SAME = 32, 64
NAN, INF = 128, 256

_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack
_KEYS = {"seen": "id", "state": "flags", "zeroed": "flags", "digest": "digest"}


class Records:
    """Writes the records of parameters into the trace plane."""

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
        """Write the facts of a parameter (shape, dtype ...): at first, and whenever they change."""
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
        """Write flags, of the category ``state`` or ``zeroed``."""
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
