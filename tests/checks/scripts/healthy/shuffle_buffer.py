"""An endless stream with a shuffle buffer, a number of steps that the user names, one worker."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    def __iter__(self):
        generator, buffer = torch.Generator().manual_seed(0), []
        while True:
            x = torch.randn(4, generator=generator)
            buffer.append((x, x[:1] - x[1:2]))
            if len(buffer) > 20:
                yield buffer.pop(random.randrange(len(buffer)))


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    batches = iter(DataLoader(Endless(), batch_size=8, num_workers=1))
    for step in range(20):
        x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item())
