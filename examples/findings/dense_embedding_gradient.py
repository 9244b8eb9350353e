"""A table of 200,000 rows of which a batch uses 64, with a dense gradient. After: a sparse one."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
is_sparse = sys.argv[1] == "after"
data = TensorDataset(torch.randint(0, 200_000, (3200,)), torch.randn(3200, 1))
table, head = nn.Embedding(200_000, 32, sparse=is_sparse), nn.Linear(32, 1)
make = torch.optim.SparseAdam if is_sparse else torch.optim.Adam
optimizers = [make(list(table.parameters()), lr=0.01), torch.optim.Adam(head.parameters(), lr=0.01)]
for ids, y in DataLoader(data, batch_size=64, shuffle=True):
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.mse_loss(head(table(ids)), y).backward()
    for optimizer in optimizers:
        optimizer.step()
