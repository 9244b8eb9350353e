"""What ``--parameters`` says of parameters: changes, gradients, norms, NaN, in all the ways in which programs write and hold them."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from parameter_records import Watching
from torch import nn

from voirkit_instruments.parameters.record_look import Inspection
from voirkit_instruments.parameters.record_plan import Model, model_labels

# whether a step changed it


@pytest.mark.parametrize("way", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_of_every_kind_of_optimizer_is_a_change(way: dict[str, bool]) -> None:
    model = nn.Linear(4, 300)
    seen = Watching().train(model, torch.optim.SGD(model.parameters(), 0.1, **way)).kept
    assert seen.states("weight") == seen.states("bias") == [{"gradient", "changed"}]


def _through_data(weight: Any) -> None:
    weight.data[0, 2] += 1


def _through_numpy(weight: Any) -> None:
    weight.detach().numpy()[0, 2] += 1


def _another_storage(weight: Any) -> None:
    weight.data = weight.data + 1


def _by_one_ulp(weight: Any) -> None:
    flat = weight.data.view(torch.int32).view(-1)
    flat[1234 % len(flat)] += 1


def _signs(weight: Any) -> None:
    weight.data[:2].neg_()


def _rows(weight: Any) -> None:
    weight.data.copy_(weight.data.roll(1, 0))


@pytest.mark.parametrize(
    "write", [_through_data, _through_numpy, _another_storage, _by_one_ulp, _signs, _rows]
)
def test_a_step_that_writes_past_the_version_counter_is_a_change(write: Any) -> None:
    class Own(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    write(parameter)

    model = nn.Linear(40, 300, bias=False)
    optimizer, watching = Own(model.parameters(), {}), Watching()
    for _ in range(2):
        watching.step(optimizer, model)
    assert watching.kept.states("weight") == [{"no gradient", "changed"}]
    assert len(set(watching.kept.of("digest", "weight"))) == 2


def test_a_learning_rate_of_nought_changes_nothing_though_versions_grow() -> None:
    model = nn.Linear(4, 300)
    seen = Watching().train(model, torch.optim.Adam(model.parameters(), 0.0)).kept
    assert seen.states("weight") == [{"gradient", "same"}]
    assert seen.of("update_norm", "weight") == [0, 0, 0]


def test_what_is_written_between_two_steps_is_no_change_of_the_step_and_another_digest() -> None:
    model, watching = nn.Linear(4, 300), Watching()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    watching.train(model, optimizer, 1)
    model.weight.data[7, 1] += 1e-3
    watching.train(model, optimizer, 1)
    assert watching.kept.states("weight") == [{"gradient", "same"}]
    assert len(set(watching.kept.of("digest", "weight"))) == 2


@pytest.mark.parametrize(("rate", "state"), [(0.1, "changed"), (0.0, "same")])
def test_of_the_first_step_it_is_known_of_all_parameters_whether_it_changed_them(
    rate: float, state: str
) -> None:
    model = nn.Linear(4, 300)
    kept = Watching(1000).train(model, torch.optim.SGD(model.parameters(), rate)).kept
    assert kept.states("bias") == [{state}]
    assert len(kept.of("digest", "bias")) == 1


def test_between_two_full_reads_a_change_is_not_seen_and_the_digest_at_the_end_is_another() -> None:
    model, watching = nn.Linear(4, 300), Watching(1000)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    watching.train(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = 0.1
    watching.train(model, optimizer, 2)
    watching.watch.finish()
    assert watching.kept.states("bias") == [{"same"}]
    assert len(set(watching.kept.of("digest", "bias"))) == 2


def test_without_a_full_read_it_is_known_in_each_step_whether_there_is_a_gradient() -> None:
    model, watching = nn.Linear(4, 300), Watching(1000)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watching.train(model, optimizer, 3)
    watching.step(optimizer, model)
    assert watching.kept.states("bias") == [{"changed"}, {"changed", "no gradient"}]


# norms


def test_norms_are_those_of_the_data_before_the_step_of_the_gradient_and_of_the_update() -> None:
    model, watching = nn.Linear(4, 300), Watching()
    model(torch.ones(2, 4)).sum().backward()
    before, gradient = model.weight.detach().clone(), model.weight.grad.clone()
    watching.step(torch.optim.SGD(model.parameters(), 0.1), model)
    update = model.weight.detach() - before
    for category, tensor in (("norm", before), ("grad_norm", gradient), ("update_norm", update)):
        assert watching.kept.of(category, "weight") == [
            pytest.approx(tensor.norm().item(), rel=1e-6)
        ]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_norms_of_every_floating_type(kind: torch.dtype) -> None:
    weight = nn.Parameter(torch.full((300, 2), 1000.0, dtype=kind))
    weight.grad = torch.full_like(weight, 2000.0)
    watching = Watching()
    watching.step(torch.optim.SGD([weight], 1.0))
    seen = [watching.kept.of(category)[0] for category in ("norm", "grad_norm", "update_norm")]
    assert seen == [
        pytest.approx(1000 * 600**0.5, rel=1e-2),
        pytest.approx(2000 * 600**0.5, rel=1e-2),
        pytest.approx(2000 * 600**0.5, rel=1e-2),
    ]
    assert watching.kept.states("optimizer0.group0.0") == [{"gradient", "changed"}]


def test_squares_too_large_or_small_for_float32_are_no_inf_and_no_nought() -> None:
    large, small = nn.Parameter(torch.full((300,), 1e25)), nn.Parameter(torch.zeros(300))
    large.grad, small.grad = torch.full((300,), 1e25), torch.full((300,), 1e-25)
    watching = Watching()
    watching.step(torch.optim.SGD([large, small], 1.0))
    assert watching.kept.of("grad_norm") == [
        pytest.approx(1e25 * 300**0.5),
        pytest.approx(1e-25 * 300**0.5),
    ]
    assert (
        watching.kept.states("optimizer0.group0.0")
        == watching.kept.states("optimizer0.group0.1")
        == [{"gradient", "changed"}]
    )


def test_a_sparse_gradient_has_the_norm_of_what_it_adds_up_to() -> None:
    model, watching = nn.Embedding(1000, 8, sparse=True), Watching()
    model(torch.tensor([3, 3, 5])).sum().backward()
    watching.step(torch.optim.SGD(model.parameters(), 0.1), model)
    assert watching.kept.of("grad_norm", "weight") == [pytest.approx((8 * 4 + 8) ** 0.5)]
    assert watching.kept.states("weight") == [{"gradient", "changed"}]


def test_a_gradient_that_a_fused_step_unscales_itself_is_told_unscaled() -> None:
    weight = nn.Parameter(torch.zeros(300))
    weight.grad = torch.ones(300)
    optimizer, watching = torch.optim.SGD([weight], 0.0), Watching()
    optimizer.grad_scale = torch.tensor(4.0)  # type: ignore[attr-defined]  # as GradScaler does
    with watching.stepping(optimizer):
        pass
    assert watching.kept.of("grad_norm") == [pytest.approx(300**0.5 / 4)]


# gradients


def test_gradients_that_are_none_zero_and_not() -> None:
    parts = [nn.Parameter(torch.ones(300)) for _ in range(3)]
    parts[1].grad, parts[2].grad = torch.zeros(300), torch.zeros(300)
    parts[2].grad[299] = 1e-30
    watching = Watching()
    watching.step(torch.optim.SGD(parts, 0.1))
    states = [
        watching.kept.states(f"optimizer0.group0.{n}")[0] - {"changed", "same"} for n in range(3)
    ]
    assert states == [{"no gradient"}, {"gradient zero"}, {"gradient"}]


@pytest.mark.parametrize(("how", "flags"), [(True, 1), (False, 2)])
def test_what_zero_grad_leaves(how: bool, flags: int) -> None:
    model, watching = nn.Linear(4, 300), Watching()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        watching.step(optimizer, model)
        watching.zero_grad(optimizer, set_to_none=how)
    assert watching.kept.of("zeroed", "weight") == [flags]


def test_the_gradients_of_a_closure_are_those_of_its_last_call() -> None:
    torch.manual_seed(0)  # of some beginnings the last gradient is exactly zero
    model, watching = nn.Linear(4, 3), Watching()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        watching.watch.walked()
        return loss

    watching.step(optimizer, model, closure)
    assert watching.kept.states("weight") == [{"gradient", "changed"}]
    assert watching.kept.of("grad_norm", "weight") == [
        pytest.approx(model.weight.grad.norm().item(), rel=1e-5)
    ]


# NaN and Inf


@pytest.mark.parametrize("every", [1, 1000])
def test_the_layer_and_the_step_where_nan_began(every: int) -> None:
    model = nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 20), nn.Linear(20, 1))
    optimizer, watching = torch.optim.SGD(model.parameters(), 0.01), Watching(every)
    for n in range(5):
        model(torch.ones(2, 4)).sum().backward()
        if n == 2:
            model[1].weight.grad[3, 7] = math.nan
        watching.step(optimizer, model)
        watching.zero_grad(optimizer)
        if n == 2:
            watching.kept.records.append(("here", "", None))
    at = watching.kept.records.index(("here", "", None))
    first = [
        name for category, name, told in watching.kept.records if category == "state" and told & 128
    ]
    assert first[0] == "1.weight"
    assert {
        name
        for category, name, told in watching.kept.records[:at]
        if category == "state" and told & 128
    } <= {"1.weight"}


def test_nan_that_stays_is_looked_for_in_all_parameters_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarms = []
    look_for_it = Inspection._alarm
    monkeypatch.setattr(
        Inspection,
        "_alarm",
        lambda inspection, before: alarms.append(before) or look_for_it(inspection, before),  # type: ignore[func-returns-value]
    )
    model = nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 1))
    optimizer, watching = torch.optim.SGD(model.parameters(), 0.01), Watching(1000)
    watching.train(model, optimizer, 2)
    with torch.no_grad():
        model[1].weight[0, 7] = math.nan
    watching.train(model, optimizer, 4)
    assert alarms == [True, False]  # before and after the step
    assert watching.kept.states("1.weight")[-1] >= {"nan"}
    assert watching.kept.states("0.bias")[-1] >= {"gradient nan", "nan"}


def test_inf_is_told_from_nan() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([math.inf, 1.0, 1.0])
    watching = Watching()
    watching.step(torch.optim.SGD([weight], 0.1))
    assert watching.kept.states("optimizer0.group0.0") == [
        {"gradient", "gradient inf", "changed", "inf"}
    ]


# what is watched


def test_names_are_those_of_the_outermost_model_that_was_called() -> None:
    inner = nn.Linear(4, 3)
    model = nn.Sequential(inner, nn.Linear(3, 2))
    watching = Watching()
    watching.watch.called(inner)
    watching.train(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    assert [name for category, name, _ in watching.kept.records if category == "seen"] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


def test_what_stands_around_a_model_is_in_no_name() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x)

    model = DistributedDataParallel(torch.compile(nn.Linear(4, 3), backend="eager"))
    watching = Watching().train(
        nn.Sequential(), torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), 0
    )
    watching.watch.called(model)
    model.module.weight.grad = torch.ones(3, 4)
    watching.step(torch.optim.SGD(model.parameters(), 0.1), model)
    assert [name for category, name, _ in watching.kept.records if category == "seen"] == [
        "weight",
        "bias",
    ]
    assert watching.kept.of("seen")[0]["model"] == "Linear"


def test_two_models_with_the_same_names_and_two_optimizers() -> None:
    class Generator(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    one, other, watching = Generator(4, 3), Critic(4, 3), Watching()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (one, other)]
    for _ in range(2):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            model(torch.ones(2, 4)).sum().backward()
            watching.watch.called(model)
            watching.step(optimizer)
    seen = {
        name: told["optimizer"]
        for category, name, told in watching.kept.records
        if category == "seen"
    }
    assert seen == {"weight": 0, "bias": 0, "Critic.weight": 1, "Critic.bias": 1}


class Agent(nn.Module):
    """It is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 3))
        self.critic = nn.Sequential(nn.Linear(4, 1))

    def forward_both(self, watching: Watching) -> Any:
        watching.watch.called(self.actor)
        watching.watch.called(self.critic)
        return self.actor(torch.ones(2, 4)).sum() + self.critic(torch.ones(2, 4)).sum()


def test_parts_of_a_module_that_calls_them_are_named_as_that_module_names_them() -> None:
    agent, watching = Agent(), Watching()
    agent.forward_both(watching).backward()
    watching.step(torch.optim.SGD(agent.parameters(), 0.1))
    seen = [
        (name, told["model"])
        for category, name, told in watching.kept.records
        if category == "seen"
    ]
    assert seen == [(name, "Agent") for name, _ in agent.named_parameters()]


class Trainer:
    """It is not a module."""

    def __init__(self) -> None:
        self.policy, self.value = nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 1))

    def forward_both(self, watching: Watching) -> Any:
        watching.watch.called(self.policy)
        watching.watch.called(self.value)
        return self.policy(torch.ones(2, 4)).sum() + self.value(torch.ones(2, 4)).sum()


def test_models_of_one_class_are_named_by_the_attributes_that_hold_them() -> None:
    trainer, watching = Trainer(), Watching()
    trainer.forward_both(watching).backward()
    watching.step(torch.optim.SGD([*trainer.policy.parameters(), *trainer.value.parameters()], 0.1))
    names = [name for category, name, _ in watching.kept.records if category == "seen"]
    assert names == ["policy.0.weight", "policy.0.bias", "value.0.weight", "value.0.bias"]


def train_one_of_two(watching: Watching) -> None:
    """Without an assertion: pytest makes one of ``locals()``, and functions that ask for that are not looked into."""
    behaviour, target = nn.Linear(4, 3), nn.Linear(4, 3)
    for model in (behaviour, target):
        watching.watch.called(model)
    behaviour(torch.ones(2, 4)).sum().backward()
    watching.step(torch.optim.SGD(behaviour.parameters(), 0.1))


def test_models_of_one_class_that_no_object_holds_are_named_by_their_variables() -> None:
    watching = Watching()
    train_one_of_two(watching)
    names = [name for category, name, _ in watching.kept.records if category == "seen"]
    assert names == ["behaviour.weight", "behaviour.bias", "target.weight", "target.bias"]


def forget_a_batch(watching: Watching) -> bool:
    batch, model = torch.ones(2, 4), nn.Linear(4, 3)
    watching.watch.called(model)
    reference = weakref.ref(batch)
    del batch
    return reference() is None


def test_looking_for_who_holds_a_model_keeps_no_variable_alive() -> None:
    assert forget_a_batch(Watching())


NET, GENERATOR, CRITIC = (
    Model(0, "Net", False, "net"),
    Model(0, "Generator", False, None),
    Model(1, "Critic", False, None),
)
LABELS = {
    "a single model has none": ([NET], [""]),
    "classes of one model each": ([GENERATOR, CRITIC], ["Generator", "Critic"]),
    "a class of torch's says less than who holds it": (
        [Model(0, "Sequential", True, "actor"), CRITIC],
        ["actor", "Critic"],
    ),
    "of one class, who holds them": ([NET, Model(1, "Net", False, "target")], ["net", "target"]),
    "of one class in one variable, the class with a number": (
        [NET, NET._replace(number=1)],
        ["Net", "Net2"],
    ),
    "a class and a variable of one name": (
        [Model(0, "Sequential", True, "Critic"), CRITIC],
        ["Critic", "Critic2"],
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_models_are_told_apart(name: str) -> None:
    models, labels = LABELS[name]
    assert list(model_labels(models).values()) == labels


def test_a_parameter_whose_optimizer_comes_later_is_that_ones() -> None:
    one, other, watching = nn.Linear(4, 3), nn.Linear(4, 2), Watching()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (one, other)]
    watching.watch.called(other)
    for _ in range(3):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            model(torch.ones(2, 4)).sum().backward()
            watching.step(optimizer, model)
    owners = [told["optimizer"] for told in watching.kept.of("seen", "Linear.weight")]
    assert owners == [None, 1]
    assert len(watching.kept.of("update_norm", "Linear.weight")) == 1 + 3


def test_a_tied_parameter_is_one_with_two_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    seen = Watching().train(model, torch.optim.SGD(model.parameters(), 0.1), 1).kept.of("seen")
    assert [told["alias"] for told in seen] == ["1.weight"]


def test_a_frozen_parameter_that_no_optimizer_holds_is_watched_too() -> None:
    model = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))
    kept = Watching().train(model, torch.optim.SGD(model[1].parameters(), 0.1)).kept
    assert kept.of("seen", "0.weight")[0]["optimizer"] is None
    assert kept.states("0.weight") == [{"no gradient", "same"}]


def test_a_parameter_that_becomes_something_else_is_seen_again() -> None:
    model, watching = nn.Linear(4, 3), Watching()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watching.train(model, optimizer, 1)
    model.weight.requires_grad_(False)
    watching.train(model, optimizer, 1)
    model.bfloat16()
    watching.step(optimizer, model)
    assert [
        (told["dtype"], told["requires_grad"]) for told in watching.kept.of("seen", "weight")
    ] == [
        ("float32", True),
        ("float32", False),
        ("bfloat16", False),
    ]


def test_a_group_that_is_added_later_is_watched_from_then_on() -> None:
    model, more, watching = nn.Linear(4, 3), nn.Parameter(torch.ones(2)), Watching()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watching.train(model, optimizer, 2)
    optimizer.add_param_group({"params": [more]})
    watching.train(model, optimizer, 1)
    assert watching.kept.of("seen", "optimizer0.group1.0")
    assert len(watching.kept.of("seen", "weight")) == 1


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        (nn.Parameter(torch.ones(3, device="meta")), "it has no data (meta)"),
        (nn.UninitializedParameter(), "it is not initialized yet"),
        (type("Own", (nn.Parameter,), {})(torch.ones(3)), "it is of a class of its own"),
    ],
)
def test_what_can_not_be_looked_at_is_said(parameter: Any, why: str) -> None:
    watching = Watching()
    with watching.stepping(torch.optim.SGD([nn.Parameter(torch.ones(1)), parameter], 0.1)):
        pass
    assert watching.kept.of("seen", "optimizer0.group0.1")[0]["not_watched"].startswith(why)
    assert not watching.kept.of("state", "optimizer0.group0.1")


@pytest.mark.parametrize(
    "parameter",
    [
        nn.Parameter(torch.ones(0)),
        nn.Parameter(torch.ones(())),
        nn.Parameter(torch.ones(2, 3, 300, 5).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.ones(300, 40).t()),
        nn.Parameter(torch.ones(300, 40)[:, ::2]),
        nn.Parameter(torch.ones(1).expand(400), requires_grad=False),
        nn.Parameter(torch.ones(300, dtype=torch.int64), requires_grad=False),
        nn.Parameter(torch.ones(300, dtype=torch.bool), requires_grad=False),
        *(
            nn.Parameter(torch.ones(300).to(kind), requires_grad=False)
            for kind in (torch.float8_e4m3fn, torch.float8_e5m2)
        ),
    ],
)
@pytest.mark.parametrize("every", [1, 3])
def test_parameters_of_every_layout_and_type(parameter: Any, every: int) -> None:
    watching = Watching(every)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1)), parameter], 0.1)
    if parameter.requires_grad:
        parameter.grad = torch.ones(parameter.shape)
    for _ in range(4):
        watching.step(optimizer)
    assert watching.kept.of("digest", "optimizer0.group0.1")
    assert watching.kept.of("state", "optimizer0.group0.1")


# nothing else happens


def test_what_is_watched_is_let_go() -> None:
    model, watching = nn.Linear(4, 300), Watching()
    optimizer = torch.optim.Adam(model.parameters())
    watching.train(model, optimizer, 2)
    model(torch.ones(2, 4)).sum().backward()
    watching.step(optimizer, model)
    left = [weakref.ref(thing) for thing in (model, model.weight, model.weight.grad, optimizer)]
    del model, optimizer
    assert [ref() for ref in left] == [None] * 4
    watching.watch.finish()
    assert watching.warned == []


def test_versions_graphs_formats_and_random_numbers_are_as_they_were() -> None:
    model = nn.Conv2d(3, 40, 3).to(memory_format=torch.channels_last)
    model(torch.ones(1, 3, 8, 8)).sum().backward()
    watching, state = Watching(), torch.get_rng_state()
    facts = [
        (
            p._version,
            p.grad._version,
            p.stride(),
            p.grad.stride(),
            p.grad.data_ptr(),
            p.requires_grad,
            p.grad_fn,
        )
        for p in model.parameters()
    ]
    watching.watch.called(model)
    with watching.stepping(torch.optim.SGD(model.parameters(), 0.1)):
        pass
    after = [
        (
            p._version,
            p.grad._version,
            p.stride(),
            p.grad.stride(),
            p.grad.data_ptr(),
            p.requires_grad,
            p.grad_fn,
        )
        for p in model.parameters()
    ]
    assert after == facts
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("every", [1, 1000])
def test_the_program_may_still_resize_the_storage_of_a_parameter(every: int) -> None:
    model, watching = nn.Linear(4, 300), Watching(every)
    watching.train(model, torch.optim.SGD(model.parameters(), 0.1))
    watching.watch.finish()
    model.bias.untyped_storage().resize_(0)


def test_a_mode_of_the_program_sees_none_of_it() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError(function)

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError(function)

    weight, watching = nn.Parameter(torch.ones(300)), Watching()
    optimizer = torch.optim.SGD([weight], 0.1)
    with Functions(), watching.stepping(optimizer):
        pass
    watching.watch._warn = lambda text: watching.kept.records.append(("warned", text, None))
    with Operations(), watching.stepping(optimizer):
        pass
    assert len(watching.kept.of("step")) == 1
    assert len(watching.kept.of("warned")) == 1


def test_what_fails_is_told_once_and_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watching = nn.Linear(4, 3), Watching()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    monkeypatch.setattr(
        watching.watch._figures, "norms", torch.empty(0).max
    )  # as an error of a device
    for _ in range(3):
        watching.watch.before_step(optimizer)
        optimizer.step()
        watching.watch.after_step(optimizer)
    (warning,) = watching.warned
    assert warning.startswith("parameters: no more is recorded of them (TypeError: max()")
