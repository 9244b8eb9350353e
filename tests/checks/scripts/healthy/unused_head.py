"""A model with an auxiliary head for another task, which this training does not use."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.classify = nn.Linear(16, 2)
        self.reconstruct = nn.Linear(16, 8)

    def forward(self, x, task="classify"):
        hidden = torch.relu(self.trunk(x))
        return self.classify(hidden) if task == "classify" else self.reconstruct(hidden)


torch.manual_seed(7)
x = torch.randn(80, 8)
y = (x[:, 0] > 0).long()
dl = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
net = TwoHeads()
opt = torch.optim.SGD(net.parameters(), lr=0.2)
for _ in range(2):
    for xb, yb in dl:
        opt.zero_grad()
        loss = nn.functional.nll_loss(net(xb).log_softmax(1), yb)
        loss.backward()
        opt.step()
        print(loss.item())
