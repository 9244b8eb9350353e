# planted: softmax-before-cross-entropy
"""forward() returns F.softmax, and the loss is F.cross_entropy."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x):
        return F.softmax(self.b(torch.relu(self.a(x))), dim=-1)


torch.manual_seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(80, 6)
y = x[:, :4].argmax(1)
for step in range(12):
    pick = torch.randperm(80)[:16]
    out = net(x[pick])
    loss = F.cross_entropy(out, y[pick])  # here
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
