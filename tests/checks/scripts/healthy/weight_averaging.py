"""Stochastic weight averaging: at the end batch normalisation is brought up to date in train mode, without gradients."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 5)
loader = DataLoader(TensorDataset(x, x.abs().sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
swa_scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
for epoch in range(5):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    if epoch >= 2:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    print(epoch, loss.item())
update_bn(loader, swa_model)
swa_model.eval()
with torch.no_grad():
    print(nn.functional.mse_loss(swa_model(x), x.abs().sum(1, keepdim=True)).item())
