# cannot tell: foreign-parameters never-updated loss-not-connected graph-kept dead-units
"""A graph of more nodes than are walked through."""

import torch

torch.manual_seed(0)
weight = torch.randn(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-3)
for step in range(4):
    x = weight
    for _ in range(31_000):
        x = x + 1
    optimizer.zero_grad()
    x.mean().backward()
    optimizer.step()
print(weight.sum().item())
