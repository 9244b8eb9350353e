"""A variational autoencoder: no labels, a loss of two parts, a sigmoid before a binary cross-entropy that wants one."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(16, 12)
        self.mu, self.logvar = nn.Linear(12, 3), nn.Linear(12, 3)
        self.dec = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


torch.manual_seed(8)
images = (torch.rand(80, 16) > 0.6).float()
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-2)
for epoch in range(4):
    total = 0.0
    for x in loader:
        again, mu, logvar = vae(x)
        loss = F.binary_cross_entropy(again, x, reduction="sum") - 0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp())
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"====> Epoch: {epoch} Average loss: {total / len(images):.4f}")
