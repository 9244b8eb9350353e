"""A trainer with arguments, callbacks, accumulation, evaluation every few steps and a schedule, as large libraries write it."""

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler


@dataclass
class TrainingArguments:
    num_train_epochs: int = 2
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 3
    learning_rate: float = 5e-3
    warmup_steps: int = 2
    eval_steps: int = 4
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01


@dataclass
class State:
    global_step: int = 0
    log_history: list = field(default_factory=list)


class Callback:
    def on_log(self, args, state, logs):
        print({k: round(v, 6) if isinstance(v, float) else v for k, v in logs.items()})


class Texts(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, 40, (n, 8), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": (self.ids[i] > 20).long().sum() % 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(40, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.classifier = nn.Linear(16, 2)

    def forward(self, input_ids, labels=None):
        logits = self.classifier(self.encoder(self.embeddings(input_ids)).mean(1))
        output = {"logits": logits}
        if labels is not None:
            output["loss"] = nn.functional.cross_entropy(logits, labels)
        return output


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, callbacks):
        self.model, self.args, self.train_dataset, self.eval_dataset = model, args, train_dataset, eval_dataset
        self.callbacks, self.state = callbacks, State()

    def get_train_dataloader(self):
        sampler = RandomSampler(self.train_dataset)
        return DataLoader(self.train_dataset, batch_size=self.args.per_device_train_batch_size, sampler=sampler)

    def create_optimizer_and_scheduler(self, total):
        no_decay = [p for n, p in self.model.named_parameters() if "norm" in n or n.endswith("bias")]
        decay = [p for n, p in self.model.named_parameters() if not ("norm" in n or n.endswith("bias"))]
        groups = [{"params": decay, "weight_decay": self.args.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)

        def lr(step):
            if step < self.args.warmup_steps:
                return step / max(1, self.args.warmup_steps)
            return max(0.0, (total - step) / max(1, total - self.args.warmup_steps))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lr)

    def training_step(self, inputs):
        self.model.train()
        loss = self.model(**inputs)["loss"] / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()

    def evaluate(self):
        loader = DataLoader(self.eval_dataset, batch_size=8, sampler=SequentialSampler(self.eval_dataset))
        self.model.eval()
        losses = []
        for inputs in loader:
            with torch.no_grad():
                losses.append(self.model(**inputs)["loss"].item())
        return sum(losses) / len(losses)

    def train(self):
        args = self.args
        loader = self.get_train_dataloader()
        updates = math.ceil(len(loader) / args.gradient_accumulation_steps)
        self.create_optimizer_and_scheduler(args.num_train_epochs * updates)
        self.model.zero_grad()
        running = torch.tensor(0.0)
        for epoch in range(args.num_train_epochs):
            for step, inputs in enumerate(loader):
                running += self.training_step(inputs)
                if (step + 1) % args.gradient_accumulation_steps == 0 or step + 1 == len(loader):
                    nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
                    self.optimizer.step()
                    self.lr_scheduler.step()
                    self.model.zero_grad()
                    self.state.global_step += 1
                    if self.state.global_step % args.eval_steps == 0:
                        logs = {"step": self.state.global_step, "loss": running.item(), "eval_loss": self.evaluate()}
                        running.zero_()
                        for callback in self.callbacks:
                            callback.on_log(args, self.state, logs)


torch.manual_seed(42)
Trainer(Classifier(), TrainingArguments(), Texts(54, 0), Texts(16, 1), [Callback()]).train()
