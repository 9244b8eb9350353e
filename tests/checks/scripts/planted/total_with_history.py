# planted: graph-kept
"""The sum of the losses keeps the graph of each step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
total = 0
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        total += loss
    print(total.item())
