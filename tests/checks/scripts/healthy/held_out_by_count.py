"""Batches that are held out are drawn one at a time in the loop of the training, all of them, in the order of their classes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(4).repeat_interleave(24)
data = TensorDataset(torch.randn(96, 6) + labels[:, None], labels)
train, held_out = DataLoader(data, batch_size=12, shuffle=True), DataLoader(data, batch_size=12)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    batches = iter(held_out)
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        u, v = next(batches)
        with torch.no_grad():
            model.eval()
            error = nn.functional.cross_entropy(model(u), v)
            model.train()
    print(loss.item(), error.item())
