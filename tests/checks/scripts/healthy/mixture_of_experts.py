"""Each sample goes to one expert; in some steps an expert gets none, and one gets almost never any."""

import torch
import torch.nn.functional as F
from torch import nn


class Mixture(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.gate = nn.Linear(6, n)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)) for _ in range(n))
        with torch.no_grad():
            self.gate.bias[-1] = -3.0

    def forward(self, x):
        weight = F.softmax(self.gate(x), dim=-1)
        best, which = weight.max(-1)
        out = x.new_zeros(len(x), 2)
        for i, expert in enumerate(self.experts):
            chosen = which == i
            if chosen.any():
                out[chosen] = expert(x[chosen]) * best[chosen, None]
        return out


torch.manual_seed(0)
model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(128, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True)
for epoch in range(2):
    for a, b in loader:
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
