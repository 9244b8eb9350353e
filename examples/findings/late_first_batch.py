"""A dataset that reads all of its file at its first sample of each epoch; after: once."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    rows = None

    def __iter__(self):
        if self.rows is None or sys.argv[1] == "before":
            time.sleep(0.8)  # a large file is read
            self.rows = torch.randn(640, 64)
        yield from self.rows


torch.set_num_threads(1)
loader = DataLoader(Lines(), batch_size=32)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    for x in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
