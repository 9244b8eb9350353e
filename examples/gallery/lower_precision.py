"""A large model in float32; after: bfloat16 by autocast."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(
    *[layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())], nn.Linear(1024, 8)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 1024), torch.randint(0, 8, (512,))
for _ in range(60):
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[1] == "after"):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
