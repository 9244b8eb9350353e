# planted: missing-zero-grad
"""zero_grad slipped out of the inner loop, in a trainer's method."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Learner:
    def __init__(self):
        self.net = nn.Linear(5, 3)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def epoch(self, loader):
        self.opt.zero_grad()
        for a, b in loader:
            loss = F.cross_entropy(self.net(a), b)
            loss.backward()  # here
            self.opt.step()
        return loss.item()


torch.manual_seed(0)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,))), batch_size=10, shuffle=True
)
learner = Learner()
for _ in range(3):
    print(learner.epoch(loader))
