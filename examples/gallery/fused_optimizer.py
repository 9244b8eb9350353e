"""Adam over many parameters that little is computed with; after: fused."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=sys.argv[1] == "after")
x = torch.randn(8, 1024)
for _ in range(120):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
