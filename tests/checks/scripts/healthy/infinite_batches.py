"""Training by steps, not epochs: the loader is begun anew whenever it ends, and left in the middle when enough was done."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def forever(loader):
    while True:
        yield from loader


torch.manual_seed(0)
x = torch.randn(50, 4)
labelled = DataLoader(TensorDataset(x, x[:, 0] * 3), batch_size=8, shuffle=True)
unlabelled = DataLoader(torch.randn(300, 4), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, ((a, b), u) in enumerate(zip(itertools.islice(forever(labelled), 17), forever(unlabelled))):
    loss = nn.functional.mse_loss(model(a).squeeze(1), b) + 0.1 * (model(u) - model(u + 0.01)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
