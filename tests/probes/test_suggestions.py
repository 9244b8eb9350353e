"""What a script offers for each reading, by the shapes in which public training scripts are written."""

from __future__ import annotations

from textwrap import dedent

import pytest

from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.suggestions import Candidates

BATCHES_THAT_A_FUNCTION_MAKES = """
    gradient_accumulation_steps = 4
    X, Y = get_batch("train")
    while True:
        if iter_num % eval_interval == 0:
            losses = estimate_loss()
        for micro_step in range(gradient_accumulation_steps):
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            X, Y = get_batch("train")
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        lossf = loss.item() * gradient_accumulation_steps
"""
AN_ITERATOR_IN_A_WHILE_LOOP = """
    class Trainer:
        def __init__(self, config, model, train_dataset):
            self.config, self.model, self.train_dataset = config, model, train_dataset

        def run(self):
            model = self.model
            train_loader = DataLoader(self.train_dataset, batch_size=self.config.batch_size)
            data_iter = iter(train_loader)
            while True:
                try:
                    batch = next(data_iter)
                except StopIteration:
                    data_iter = iter(train_loader)
                    batch = next(data_iter)
                x, y = [t.to(self.device) for t in batch]
                logits, self.loss = model(x, y)
                self.loss.backward()
                self.optimizer.step()
                if self.iter_num >= self.config.max_iters:
                    break
"""
AN_EVALUATION = """
    def eval_split(trainer, split, max_batches):
        dataset = {"train": train_dataset, "test": test_dataset}[split]
        loader = DataLoader(dataset, batch_size=100)
        for b, (x, y) in enumerate(loader):
            model(x)
"""
MINIBATCHES_CUT_OUT_OF_ROLLOUTS = """
    def main(args):
        agent = Agent(envs)
        optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate)
        for iteration in range(1, args.num_iterations + 1):
            for step in range(0, args.num_steps):
                action, logprob = agent.get_action_and_value(next_obs)
            b_inds = np.arange(args.batch_size)
            for epoch in range(args.update_epochs):
                np.random.shuffle(b_inds)
                for start in range(0, args.batch_size, args.minibatch_size):
                    end = start + args.minibatch_size
                    mb_inds = b_inds[start:end]
                    newlogprob, newvalue = agent.get_action_and_value(b_obs[mb_inds])
                    loss = policy_loss(newlogprob) + value_loss(newvalue)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
"""
BATCHES_OF_A_BUFFER = """
    def train(self, batch_size):
        for epoch in range(self.n_epochs):
            for rollout_data in self.rollout_buffer.get(batch_size):
                loss = self.policy(rollout_data)
                loss.backward()
                self.optimizer.step()
"""
SAMPLES_OF_A_MEMORY = """
    def main(args):
        for global_step in range(args.total_timesteps):
            action = policy.sample()
            if global_step > args.learning_starts:
                data = memory.sample(args.batch_size)
                loss = F.mse_loss(q_network(data.observations), data.returns)
                loss.backward()
                optimizer.step()
"""
INDICES_OF_A_SAMPLER = """
    def update(self):
        for indices in BatchSampler(SubsetRandomSampler(range(self.size)), self.mini_batch_size, False):
            loss = self.actor(self.states[indices])
            loss.backward()
            self.optimizer.step()
"""
A_LOSS_THAT_A_FUNCTION_DIVIDES = """
    def training_step(model, x):
        loss = model(x)
        loss = loss / 4
        loss.backward()

    def train(model, loader, optimizer):
        for x in loader:
            training_step(model, x)
            optimizer.step()
"""


def line(source: str, reading: str) -> str | None:
    return Candidates(catalogue(dedent(source), "main.py")).line(reading)


def given(selector: str) -> str:
    return f'ov.probe("{selector}").give()'


# loaders


@pytest.mark.parametrize(
    "source",
    [
        BATCHES_THAT_A_FUNCTION_MAKES,
        MINIBATCHES_CUT_OUT_OF_ROLLOUTS,
        BATCHES_OF_A_BUFFER,
        SAMPLES_OF_A_MEMORY,
        INDICES_OF_A_SAMPLER,
    ],
)
def test_a_loop_that_makes_its_batches_itself_has_no_loader(source: str) -> None:
    assert line(source, "loader") is None


def test_the_loader_behind_an_iterator_of_a_while_loop_is_found() -> None:
    assert line(AN_ITERATOR_IN_A_WHILE_LOOP, "loader") == given(
        "//Trainer/run > train_loader as loader"
    )


def test_the_loader_of_an_evaluation_is_not_taken_for_that_of_the_training() -> None:
    assert line(AN_EVALUATION + AN_ITERATOR_IN_A_WHILE_LOOP, "loader") == given(
        "//Trainer/run > train_loader as loader"
    )
    assert line(AN_EVALUATION + MINIBATCHES_CUT_OUT_OF_ROLLOUTS, "loader") is None


def test_the_loader_of_an_evaluation_is_none_where_the_training_is_in_another_file() -> None:
    assert line(AN_EVALUATION, "loader") is None


def test_a_loader_that_is_handed_to_a_function_which_only_evaluates_is_none() -> None:
    source = """
        def score(batches):
            for x in batches:
                model(x)

        loader = DataLoader(held_out)
        trainer = Trainer(model)
        score(loader)
    """
    assert line(source, "loader") is None


def test_a_loader_that_a_library_trains_on_is_found_by_its_name() -> None:
    source = """
        train_loader = DataLoader(dataset)
        trainer.fit(model, train_loader)
    """
    assert line(source, "loader") == given("//<module> > train_loader as loader")


# steps


@pytest.mark.parametrize(
    ("source", "selector"),
    [
        (BATCHES_THAT_A_FUNCTION_MAKES, "//<module>(X as batch) > #endloop_micro_step as step"),
        (MINIBATCHES_CUT_OUT_OF_ROLLOUTS, "//main(mb_inds as batch) > #endloop_start as step"),
        (BATCHES_OF_A_BUFFER, "//train(rollout_data as batch) > #endloop_rollout_data as step"),
        (SAMPLES_OF_A_MEMORY, "//main(data as batch) > #endloop_global_step as step"),
        (INDICES_OF_A_SAMPLER, "//update(indices as batch) > #endloop_indices as step"),
    ],
)
def test_a_turn_with_the_batch_that_it_makes_is_a_step(source: str, selector: str) -> None:
    assert line(source, "step+batch") == given(selector)


def test_a_while_loop_leaves_its_steps_to_the_recorder() -> None:
    found = Candidates(catalogue(dedent(AN_ITERATOR_IN_A_WHILE_LOOP), "main.py")).find("step+batch")
    assert found is not None
    assert "voirkit's recorder gives the step" in found.obstacle


# losses that are set several times


def test_a_loss_that_is_divided_for_accumulation_is_given_once_a_turn() -> None:
    code = 'ov.probe("//<module>(loss) > #endloop_micro_step")["loss"].give("loss")'
    assert line(BATCHES_THAT_A_FUNCTION_MAKES, "loss") == code


def test_a_loss_that_a_function_divides_is_given_once_a_call() -> None:
    assert (
        line(A_LOSS_THAT_A_FUNCTION_DIVIDES, "loss")
        == 'ov.probe("//training_step(loss) > #exit")["loss"].give("loss")'
    )


def test_a_loss_that_is_divided_in_place_is_given_once_a_turn() -> None:
    source = """
        def train(model, loader):
            for x in loader:
                cost = model(x)
                cost /= 4
                cost.backward()
                optimizer.step()
    """
    assert (
        line(source, "loss")
        == 'ov.probe("//train(cost as loss) > #endloop_x")["loss"].give("loss")'
    )


def test_the_number_of_passes_is_no_turn_of_a_while_loop_in_them() -> None:
    source = """
        def train(model, loader):
            for epoch in range(3):
                batches = iter(loader)
                while True:
                    x = next(batches)
                    loss = model(x)
                    loss = loss / 4
                    loss.backward()
                    optimizer.step()
    """
    assert line(source, "loss") == given("//train > loss")
    assert line(source, "loader") == given("//train > loader")
