"""Validation every few steps within an epoch, some batches of it only; the best weights are kept and put back."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 6)
y = x[:, :2].argmax(1)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=8)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
best, kept = float("inf"), None


def validate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for i, (a, b) in enumerate(valid):
            if i == 2:
                break
            total += nn.functional.cross_entropy(model(a), b).item()
    model.train()
    return total / 2


step = 0
for epoch in range(2):
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            now = validate()
            print(step, loss.item(), now)
            if now < best:
                best, kept = now, copy.deepcopy(model.state_dict())
model.load_state_dict(kept)
print("best", best, validate())
