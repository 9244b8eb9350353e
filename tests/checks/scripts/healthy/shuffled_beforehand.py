"""The data was shuffled once, before it was split: the loader goes through it in order."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
labels = torch.arange(4).repeat_interleave(24)
points = torch.randn(96, 6) + labels[:, None]
full = TensorDataset(points, labels)
order = torch.randperm(len(full)).tolist()
train = DataLoader(Subset(full, order[:72]), batch_size=9, shuffle=False)
test = DataLoader(Subset(full, order[72:]), batch_size=24)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    net.train()
    for x, t in train:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), t)
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        accuracy = sum((net(x).argmax(1) == t).sum().item() for x, t in test) / 24
    print(epoch, loss.item(), accuracy)
