"""Schedules that step with each batch on purpose: a cosine over all of them, warm restarts, and milestones that are given in batches."""

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
epochs = 6
total = epochs * len(loader)
for make in (
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=total),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=len(loader)),
    lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [total // 3, total // 2, total * 2 // 3, total * 3 // 4], 0.1),
):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            scheduler.step()
    print(loss.item())
