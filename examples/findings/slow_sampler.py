"""Four million weighted draws for an epoch of which 2,000 samples are used. After: as many draws as are used."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(1_000_000, 8)
weights = torch.rand(len(inputs))
draws = 2_000 if sys.argv[1] == "after" else 4_000_000
sampler = WeightedRandomSampler(weights, num_samples=draws)
loader = DataLoader(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=100, sampler=sampler
)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    for at, (x, y) in enumerate(loader):
        if at == 20:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
