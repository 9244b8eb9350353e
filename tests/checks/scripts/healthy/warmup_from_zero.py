"""A linear warm-up that begins at a learning rate of nought, then a cosine."""

import math

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
WARMUP, TOTAL = 5, 24
x = torch.randn(96, 4)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)


def factor(step):
    return step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


scheduler = LambdaLR(optimizer, factor)
for epoch in range(2):
    for xb, yb in loader:
        loss = nn.functional.smooth_l1_loss(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"lr {scheduler.get_last_lr()[0]:.5f} loss {loss.item():.6f}")
