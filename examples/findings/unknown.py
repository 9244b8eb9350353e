"""Two steps, of which nothing can be said."""

import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.randn(2, 32, 8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
