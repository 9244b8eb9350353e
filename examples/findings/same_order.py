"""A DistributedSampler whose ``set_epoch`` is not called. After: it is."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
orders = set()
for epoch in range(5):
    if sys.argv[1] == "after":
        sampler.set_epoch(epoch)
    orders.add(tuple(sampler))
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
print(f"5 epochs in {len(orders)} orders")
