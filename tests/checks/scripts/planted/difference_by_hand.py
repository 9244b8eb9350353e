# planted: loss-broadcast
"""A loss that is written by hand: (N, 1) less (N,) is N x N."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(32, 4)
y = x[:, 0] * 2
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()  # here
    optimizer.step()
print(loss.item())
