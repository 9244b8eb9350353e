"""The whole table is converted from float64 in each step; after: once, before the training."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
table, weights = torch.randn(400_000, 32, dtype=torch.float64), torch.randn(32, 1)
model = nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if sys.argv[1] == "after":
    table = table.float()
for step in range(100):
    x = table.to(torch.float32)[4000 * (step % 100) :][:4000]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x @ weights).backward()
    optimizer.step()
