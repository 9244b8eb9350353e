# planted: dead-units
"""A first step that is far too large leaves a ReLU layer below zero for good; the head goes on learning a constant."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
with torch.no_grad():
    model[0].bias.fill_(-60.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()  # here
        optimizer.step()
    print(loss.item())
