# cannot tell: not-shuffled same-order samples-missed
"""Epochs of two batches, of six samples of which a sampler leaves out one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Most(Sampler):
    """All but the last."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n - 1))

    def __len__(self):
        return self.n - 1


torch.manual_seed(0)
data = TensorDataset(torch.randn(6, 4), torch.arange(6) // 3)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=3, sampler=Most(6))
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print(model.weight.sum().item())
