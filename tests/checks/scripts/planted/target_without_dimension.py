# planted: loss-broadcast
"""The model gives (N, 1), the targets are (N,): mse_loss compares each with all."""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.manual_seed(0)
x = torch.randn(64, 6)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)  # here
        loss.backward()
        optimizer.step()
    print(loss.item())
