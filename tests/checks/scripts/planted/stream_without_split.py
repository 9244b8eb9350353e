# planted: samples-twice
"""Two workers read the same stream from its beginning: each sample is seen twice in an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(48):
            x = torch.randn(6, generator=generator)
            yield x, x.sum().unsqueeze(0)


torch.manual_seed(0)
loader = DataLoader(Stream(), batch_size=8, num_workers=2, multiprocessing_context="fork")  # here
model = nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
