"""Momentum by hand: gradients are made less of between steps, not cleared."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.9)
    loss.backward()
    optimizer.step()
print(loss.item())
