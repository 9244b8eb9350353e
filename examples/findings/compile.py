"""A chain of small operations on large tensors, for more than a minute; after: torch.compile makes one loop of them."""

import sys

import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        for _ in range(12):
            x = torch.tanh(self.scale * x) + 0.1 * x
        return x


torch.set_num_threads(1)
model = Chain()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
called = torch.compile(model) if sys.argv[1] == "after" else model
x = torch.randn(250_000)
for _ in range(2500):
    optimizer.zero_grad()
    called(x).square().mean().backward()
    optimizer.step()
