"""Augmentation by numpy in workers, whose seeds are made from torch's."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if random.random() < 0.5:
            x = x[::-1].copy()
        return torch.from_numpy(x + np.random.normal(0, 0.1, 8).astype(np.float32)), torch.tensor(i % 2)


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


if __name__ == "__main__":
    torch.manual_seed(0)
    g = torch.Generator()
    g.manual_seed(0)
    loader = DataLoader(Augmented(), batch_size=8, num_workers=2, shuffle=True, worker_init_fn=seed_worker, generator=g)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.6f}")
