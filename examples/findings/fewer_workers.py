"""Fourteen loader workers more than there are processors, which they take from each other and from the training; after: one worker."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.rand(20_000, 64)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.rows[index].mean()


def main(workers):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Rows(), batch_size=32, num_workers=workers):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x)[:, 0], y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(1 if sys.argv[1] == "after" else len(os.sched_getaffinity(0)) + 14)
