"""Batches so small that calling operators is most of a step; after: eight times as large, and as many items."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WholeBatches(TensorDataset):
    def __getitems__(self, indices):
        return [tensor[indices] for tensor in self.tensors]


torch.set_num_threads(1)
data = WholeBatches(torch.randn(8_000, 32), torch.randint(0, 4, (8_000,)))
model = nn.Sequential(
    *[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    for x, y in DataLoader(
        data, batch_size=128 if sys.argv[1] == "after" else 16, collate_fn=lambda batch: batch
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
