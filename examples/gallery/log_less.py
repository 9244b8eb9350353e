"""Histograms of all parameters in every step; after: every 50 steps."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(64, 512)
logged = []
for step in range(150):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or sys.argv[1] == "before":
        counted = [torch.histc(parameter.detach(), 100).tolist() for parameter in model.parameters()]
        least = [sorted(parameter.detach().flatten()[:50_000].tolist())[:5] for parameter in model.parameters()]
        logged.append((counted, least))
