# planted: not-shuffled
"""shuffle was forgotten, and the data set holds one class after another."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(4).repeat_interleave(24)
data = TensorDataset(torch.randn(96, 6) + labels[:, None], labels)
loader = DataLoader(data, batch_size=12)  # here
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item())
