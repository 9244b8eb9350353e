"""Samples that wait for a disk (2 ms each) loaded in the training process; after: in worker processes."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class FromDisk(Dataset):
    def __len__(self):
        return 3000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((64,), index / 3000), index % 4


def main(workers):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(
        FromDisk(), batch_size=16, num_workers=workers, persistent_workers=workers > 0
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[2]) if sys.argv[1] == "after" else 0)
