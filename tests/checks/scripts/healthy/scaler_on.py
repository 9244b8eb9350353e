"""A scaler that is on: its first scale is too large, so that it leaves out a step or two, as it is meant to."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000, backoff_factor=2.0**-60)
x = torch.randn(64, 8)
y = x[:, :1] - x[:, 1:2]
for step in range(24):
    at = torch.randint(0, 64, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(x[at]) - y[at]).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item(), scaler.get_scale())
