"""Two views of each sample, made in workers by torch's generators; the loss is a cross-entropy over similarities."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, n=64):
        self.x = torch.randn(n, 10, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.view(self.x[i]), self.view(self.x[i])

    @staticmethod
    def view(x):
        return x * (torch.rand(10) > 0.2) + 0.1 * torch.randn(10)


torch.manual_seed(0)
loader = DataLoader(TwoViews(), batch_size=16, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
projector = nn.Linear(16, 8)
opt = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=1e-2)
for epoch in range(3):
    for a, b in loader:
        za, zb = F.normalize(projector(encoder(a)), dim=1), F.normalize(projector(encoder(b)), dim=1)
        similarity = za @ zb.T / 0.2
        target = torch.arange(len(a))
        loss = (F.cross_entropy(similarity, target) + F.cross_entropy(similarity.T, target)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, f"{loss.item():.6f}")
