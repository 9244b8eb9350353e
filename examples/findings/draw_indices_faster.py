"""A sampler that shuffles all indices again for each batch; after: once for each epoch."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Batches:
    def __iter__(self):
        for at in range(len(self)):
            if at == 0 or sys.argv[1] == "before":
                indices = random.sample(range(40_000), 40_000)
            yield indices[100 * at : 100 * (at + 1)]

    def __len__(self):
        return 60


torch.set_num_threads(1)
data = TensorDataset(torch.randn(40_000, 64), torch.randint(0, 4, (40_000,)))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for x, y in DataLoader(data, batch_sampler=Batches()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
