"""The gradient of a square root at 0 is NaN: two equal samples in one batch spoil all parameters. After: a small number under the root."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
left, right = torch.randn(4000, 16), torch.randn(4000, 16)
right[1234] = left[1234]  # the one pair of 4,000 that is a sample and its own copy
distance = (left - right).norm(dim=1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
small = 1e-8 if sys.argv[1] == "after" else 0.0
for epoch in range(3):
    for a, b, true in DataLoader(TensorDataset(left, right, distance), batch_size=40):
        optimizer.zero_grad()
        predicted = ((model(a) - model(b)).square().sum(1) + small).sqrt()
        loss = nn.functional.mse_loss(predicted, true)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
