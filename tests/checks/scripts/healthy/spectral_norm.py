"""A critic with spectral normalisation, whose power iteration runs in train mode."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

torch.manual_seed(0)
critic = nn.Sequential(spectral_norm(nn.Linear(4, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 1)))
opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
good = torch.randn(128, 4) + 1
for step in range(16):
    critic.train()
    bad = torch.randn(16, 4)
    loss = critic(bad).mean() - critic(good[step * 8 : step * 8 + 16]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
critic.eval()
with torch.no_grad():
    print(critic(good).mean().item())
