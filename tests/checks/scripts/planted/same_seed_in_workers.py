# planted: same-augmentation
"""Each worker seeds numpy with the same number: sample 0 of worker 0 gets the same noise as sample 0 of worker 1."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + np.random.normal(0, 0.3, 8).astype(np.float32), i % 2


def seed(worker):
    np.random.seed(1234)


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Noisy(), batch_size=8, num_workers=2, shuffle=True, worker_init_fn=seed)
    model = nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:  # here
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(loss.item())
