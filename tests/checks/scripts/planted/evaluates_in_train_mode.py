# planted: train-while-evaluating
"""Validation with dropout and batch statistics on: eval() was forgotten."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 6)
y = x[:, :2].argmax(1)
train, valid = DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True), DataLoader(TensorDataset(x[64:], y[64:]), 8)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        correct = sum((model(a).argmax(1) == b).sum().item() for a, b in valid)  # here
    print(epoch, loss.item(), correct)
