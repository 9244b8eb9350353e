# planted: missing-zero-grad
# step: 9
"""Gradients are cleared in a condition that holds in the first epoch only; nine steps and more lie between the looks then."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(72, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        if epoch == 0:
            optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
    print(loss.item())
