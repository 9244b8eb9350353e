# planted: samples-twice
"""Batches overlap: the batch sampler moves on by one less than a batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Batches:
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return -(-self.n // (self.size - 1))

    def __iter__(self):
        order = torch.randperm(self.n).tolist()
        for at in range(0, self.n, self.size - 1):
            yield order[at : at + self.size]


torch.manual_seed(0)
x = torch.randn(56, 5)
loader = DataLoader(TensorDataset(x, x[:, :1]), batch_sampler=Batches(56, 8))  # here
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
