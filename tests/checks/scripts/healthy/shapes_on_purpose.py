"""Losses whose inputs have several shapes on purpose: a least squares GAN's scalar target, quantiles, pairs of all with all, a ranking."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
quantiles = nn.Linear(4, 8)
optimizer = torch.optim.Adam([*model.parameters(), *quantiles.parameters()], lr=1e-2)
x = torch.randn(32, 4)
y = x.sum(1)
for step in range(8):
    score = model(x)
    real = F.mse_loss(score, torch.tensor(1.0))
    given, target = quantiles(x), (y[:, None] + torch.randn(32, 8)).detach()
    huber = F.smooth_l1_loss(given[:, :, None], target[:, None, :])
    pairs = F.l1_loss(score, y, reduction="none").min(1).values.mean()
    rank = F.softplus(-(score - score.T)[y[:, None] > y[None, :]]).mean()
    centred = ((score - score.mean()) ** 2).mean() + ((score - y[:, None]) ** 2).mean() + (score.squeeze(1) - y).abs().mean()
    loss = real + huber + pairs + rank + centred
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
