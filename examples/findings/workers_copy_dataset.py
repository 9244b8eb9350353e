"""A list of two million names: each worker copies its pages as it counts references. After: one array of numbers."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def own_memory():
    """What this process has for itself alone, in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1e3


class Names(Dataset):
    """Each sample looks at 200 names."""

    def __init__(self):
        self.names = [f"folder/picture-{number:09}.jpg" for number in range(2_000_000)]
        if sys.argv[1] == "after":
            self.names = torch.tensor(list(map(len, self.names)))

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        names = self.names[200 * index : 200 * index + 200]
        lengths = (
            torch.tensor(list(map(len, names)), dtype=torch.float)
            if isinstance(names, list)
            else names.float()
        )
        return lengths, own_memory() if index % 500 == 499 else 0.0


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(200, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    most = 0.0
    for lengths, memory in DataLoader(
        Names(), batch_size=50, num_workers=2, multiprocessing_context="fork"
    ):
        optimizer.zero_grad()
        model(lengths).square().mean().backward()
        optimizer.step()
        most = max(most, memory.max().item())
    print(f"a worker has {most:.0f} MB for itself")


if __name__ == "__main__":
    main()
