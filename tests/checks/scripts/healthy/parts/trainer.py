"""A trainer, as a project keeps it in a module of its own."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, train_loader, valid_loader=None, log=print):
        self.model, self.optimizer = model, optimizer
        self.train_loader, self.valid_loader, self.log = train_loader, valid_loader, log
        self.criterion = nn.CrossEntropyLoss()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            losses = [self.training_step(batch) for batch in self.train_loader]
            self.log(f"epoch {epoch} train {sum(losses) / len(losses):.6f}")
            if self.valid_loader is not None:
                self.log(f"epoch {epoch} valid {self.evaluate():.6f}")

    def training_step(self, batch):
        x, y = batch
        loss = self.criterion(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.criterion(self.model(x), y).item() for x, y in self.valid_loader]
        return sum(losses) / len(losses)
