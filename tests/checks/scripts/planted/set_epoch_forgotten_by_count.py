# planted: same-order
"""``set_epoch`` was forgotten, and an epoch is over when as many batches were drawn as the loader has, with one drawn ahead."""

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 4, (96,)))
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
loader = DataLoader(data, batch_size=12, sampler=sampler)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    batches = iter(loader)
    following = next(batches)
    for at in range(len(loader)):
        x, y = following
        if at + 1 < len(loader):
            following = next(batches)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
