"""Samples with holes: NaN is masked before it gets anywhere, and a masked attention uses minus infinity."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(80, 6)
x[torch.rand(80, 6) < 0.1] = float("nan")
y = torch.nan_to_num(x).sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
query = nn.Parameter(torch.randn(6))
opt = torch.optim.Adam([*net.parameters(), query], lr=1e-2)
for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True):
    hole = a.isnan()
    a = torch.where(hole, torch.zeros_like(a), a)
    weight = (a * query).masked_fill(hole, float("-inf")).softmax(1)
    loss = nn.functional.mse_loss(net(torch.cat([a * weight, hole.float()], 1)), b)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
