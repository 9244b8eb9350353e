# planted: misplaced-zero-grad
"""The gradients are thrown away between the backward pass and the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.zero_grad()  # here
        optimizer.step()
    print(loss.item())
