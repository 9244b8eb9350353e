"""The classifier is replaced before the optimizer is made; layers are thawed one by one; buffers are in no optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pretrained = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1000))
pretrained[5] = nn.Linear(16, 3)
layers = [pretrained[5], pretrained[3], pretrained[0]]
for p in pretrained.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(pretrained.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, shuffle=True)
for epoch, layer in enumerate(layers):
    for p in layer.parameters():
        p.requires_grad = True
    pretrained.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(pretrained(a), b)
        loss.backward()
        optimizer.step()
    print("thawed", epoch + 1, loss.item())
