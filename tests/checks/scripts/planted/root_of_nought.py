# planted: not-finite
"""The gradient of a square root at nought is infinite: from then on everything is NaN."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Length(nn.Module):
    def forward(self, x):
        return (x**2).sum(1, keepdim=True).sqrt()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), Length(), nn.Linear(1, 1))
x = torch.randn(64, 4)
x[20] = 0.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, x[:, :1]), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
