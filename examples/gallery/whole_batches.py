"""Small samples indexed one by one; after: whole batches."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WholeBatches(TensorDataset):
    def __getitems__(self, indices):
        return [tensor[indices] for tensor in self.tensors]


torch.set_num_threads(1)
tensors = torch.randn(60_000, 32), torch.randint(0, 4, (60_000,))
if sys.argv[1] == "after":
    loader = DataLoader(
        WholeBatches(*tensors), batch_size=256, shuffle=True, collate_fn=lambda batch: batch
    )
else:
    loader = DataLoader(TensorDataset(*tensors), batch_size=256, shuffle=True)
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
