"""A schedule of ten epochs that is stepped with each batch. After: it is stepped once an epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(1280, 16)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
for _ in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if sys.argv[1] == "before":
            scheduler.step()
    if sys.argv[1] == "after":
        scheduler.step()
print(f"last loss {loss.item():.4f}, learning rate {scheduler.get_last_lr()[0]:.1e}")
