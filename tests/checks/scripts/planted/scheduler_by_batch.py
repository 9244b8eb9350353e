# planted: scheduler-too-often
"""A schedule that is made for epochs steps with each batch: the rate is next to nothing after the second epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
for epoch in range(6):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        scheduler.step()  # here
    print(loss.item())
