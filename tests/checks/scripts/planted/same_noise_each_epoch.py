# planted: same-augmentation
"""Workers are told apart, but their seeds are the same in each epoch, and with them the augmentation."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flipped(Dataset):
    def __init__(self):
        self.x = torch.randn(48, 8)

    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = self.x[i]
        return (x.flip(0) if np.random.rand() < 0.5 else x), torch.tensor(i % 2)


torch.manual_seed(0)
loader = DataLoader(Flipped(), batch_size=6, num_workers=2, shuffle=True, worker_init_fn=lambda worker: np.random.seed(worker))
model = nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
