"""A large table of words whose optimizer goes through all of it after each small batch; after: one step for two batches."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
every = 2 if sys.argv[1] == "after" else 1
model = nn.Sequential(nn.Embedding(100_000, 64), nn.Linear(64, 8))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for step in range(60):
    x = torch.randint(0, 100_000, (256,))
    (nn.functional.cross_entropy(model(x), x % 8) / every).backward()
    if (step + 1) % every == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
