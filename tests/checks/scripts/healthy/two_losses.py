"""Two tasks, two backward passes before one step; a module whose gradients are cleared by setting them to None."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long(), x[:, 1:2]), batch_size=8, shuffle=True)
trunk, classify, regress = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 2), nn.Linear(16, 1)
everything = nn.ModuleDict({"trunk": trunk, "classify": classify, "regress": regress})
opt = torch.optim.AdamW(everything.parameters(), lr=5e-3)
for epoch in range(2):
    for a, label, value in loader:
        for p in everything.parameters():
            p.grad = None
        hidden = trunk(a)
        first = nn.functional.cross_entropy(classify(hidden), label)
        second = nn.functional.mse_loss(regress(hidden), value)
        first.backward(retain_graph=True)
        second.backward()
        opt.step()
    print(first.item(), second.item())
