# planted: same-augmentation
"""The data set has a generator of its own, made once: each worker is forked with a copy of it, and begins each epoch with it."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cropped(Dataset):
    def __init__(self, n=48):
        self.x = torch.randn(n, 12)
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        at = int(self.rng.integers(0, 4))
        return self.x[i, at : at + 8], torch.tensor(i % 2)


torch.manual_seed(0)
loader = DataLoader(Cropped(), batch_size=6, num_workers=2, shuffle=True, multiprocessing_context="fork")
model = nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
