# cannot tell: learning-rate-zero
"""An optimizer whose groups have no lr."""

import torch
from torch import nn


class Descent(torch.optim.Optimizer):
    """Steepest descent."""

    def __init__(self, parameters, pace):
        super().__init__(parameters, {"pace": pace})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["pace"] * parameter.grad


torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = Descent(model.parameters(), 0.0)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print(model.weight.sum().item())
