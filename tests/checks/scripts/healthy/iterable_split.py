"""A stream that each worker reads its own part of."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        first, by = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.n, by):
            generator = torch.Generator().manual_seed(i)
            x = torch.randn(6, generator=generator)
            yield x, x.sum().unsqueeze(0)


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Stream(96), batch_size=8, num_workers=2)
    model = nn.Linear(6, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
