"""Workers that start again for each of many short epochs; after: they stay."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(persistent_workers):
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(640, 64), torch.randint(0, 4, (640,)))
    loader = DataLoader(data, batch_size=32, num_workers=2, persistent_workers=persistent_workers)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1] == "after")
