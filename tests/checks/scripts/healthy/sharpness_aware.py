"""SAM: two passes an update, the first of which moves the weights uphill; an optimizer of one's own around torch's."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad, alpha=group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1)
x = torch.randn(60, 5)
y = (x.sum(1) > 0).long()
for a, b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=6, shuffle=True):
    loss = nn.functional.cross_entropy(net(a), b)
    loss.backward()
    optimizer.first_step()
    nn.functional.cross_entropy(net(a), b).backward()
    optimizer.second_step()
    print(loss.item())
