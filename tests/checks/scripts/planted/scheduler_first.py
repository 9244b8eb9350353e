# planted: scheduler-before-optimizer
"""The scheduler steps before the optimizer: the first rate is never used."""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.manual_seed(0)
x = torch.randn(64, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
for epoch in range(3):
    scheduler.step()  # here
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(loss.item())
