"""Steps of so little work that to record every call of torch takes longer than the calls."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.randn(3000, 1, 4):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
