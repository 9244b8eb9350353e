"""Samples that wait for a disk (4 ms each), loaded by one worker; after: by four, for waiting takes no processor."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class FromDisk(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((64,), index / 1000), index % 4


def main(workers):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(FromDisk(), batch_size=16, num_workers=workers):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(4 if sys.argv[1] == "after" else 1)
