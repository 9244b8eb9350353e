# planted: not-finite
"""A learning rate that is far too large: the loss grows until it is none."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 4)
y = x.sum(1, keepdim=True) * 10
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=20.0)
for step in range(20):
    pick = torch.randperm(256)[:32]
    loss = nn.functional.mse_loss(model(x[pick]), y[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
