"""Rare classes are drawn more often: samples come twice, others never."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
y = torch.cat([torch.zeros(90), torch.ones(10)]).long()
x = torch.randn(100, 4) + y[:, None]
weights = 1.0 / torch.bincount(y)[y].float()
sampler = WeightedRandomSampler(weights, num_samples=len(y), replacement=True)
loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=sampler)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
