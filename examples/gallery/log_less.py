"""Quantiles of all weights are logged in every step; after: every 30 steps."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(64, 512)
logged = []


def log(model):
    for name, parameter in model.named_parameters():
        weights = parameter.detach().flatten().sort().values
        logged.append((name, weights[:: len(weights) // 4].tolist()))


for step in range(60):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or sys.argv[1] == "before":
        log(model)
