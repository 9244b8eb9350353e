"""A curriculum: the first epoch goes from short to long, as it is, the others are shuffled."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
noise = torch.linspace(0, 1, 96)[:, None]
x = torch.randn(96, 5)
y = (x[:, :1] > 0).float()
data = TensorDataset(x + noise * torch.randn(96, 5), y)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in DataLoader(data, batch_size=12, shuffle=epoch > 0):
        loss = nn.functional.binary_cross_entropy_with_logits(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
