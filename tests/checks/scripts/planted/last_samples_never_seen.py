# planted: samples-missed
"""A batch sampler that forgets what does not fill a batch: the last five samples in order of length are never seen."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ByLength:
    def __init__(self, lengths, size):
        self.order, self.size = sorted(range(len(lengths)), key=lambda i: lengths[i]), size

    def __len__(self):
        return len(self.order) // self.size

    def __iter__(self):
        starts = list(range(0, len(self) * self.size, self.size))
        random.shuffle(starts)
        for at in starts:
            yield self.order[at : at + self.size]


random.seed(0)
torch.manual_seed(0)
x = torch.randn(69, 5)
loader = DataLoader(TensorDataset(x, x[:, :1]), batch_sampler=ByLength(torch.arange(69).tolist(), 8))  # here
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
