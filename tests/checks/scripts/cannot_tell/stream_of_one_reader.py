# cannot tell: samples-twice samples-missed not-shuffled same-order same-augmentation
"""An iterable data set, read once by the process that trains; it draws its noise from numpy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Each sample twice."""

    def __iter__(self):
        for n in range(32):
            for _ in range(2):
                yield torch.full((4,), float(n)) + float(np.random.normal())


torch.manual_seed(0)
np.random.seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
for x in DataLoader(Stream(), batch_size=8):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
print(model.weight.sum().item())
