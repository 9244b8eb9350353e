"""Gradients of eight batches are to be accumulated, and are cleared before each. After: they are cleared after each step."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(4000, 20)
data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True) + 20 * torch.randn(4000, 1))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
used = 0
for _ in range(3):
    for at, (x, y) in enumerate(DataLoader(data, batch_size=5, shuffle=True)):
        if sys.argv[1] == "before":
            optimizer.zero_grad()
            used = 0
        (nn.functional.mse_loss(model(x), y) / 8).backward()
        used += 1
        if at % 8 == 7:
            optimizer.step()
            if sys.argv[1] == "after":
                optimizer.zero_grad()
print(f"the last step used the gradients of {used if sys.argv[1] == 'before' else 8} of 8 batches")
