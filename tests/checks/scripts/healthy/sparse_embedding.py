"""Words' vectors with sparse gradients: most rows of the table are not touched in a step, some never."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
centre, context = torch.randint(0, 50, (160,)), torch.randint(0, 50, (160,))
table, dense = nn.Embedding(500, 8, sparse=True), nn.Linear(8, 500)
sparse_optimizer = optim.SparseAdam(table.parameters(), lr=1e-2)
dense_optimizer = optim.Adam(dense.parameters(), lr=1e-2)
for epoch in range(2):
    for c, o in DataLoader(TensorDataset(centre, context), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(dense(table(c)), o)
        sparse_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        print(f"{loss.item():.6f}")
