# cannot tell: missing-zero-grad never-updated graph-kept scheduler-before-optimizer
"""One step of an optimizer that does not hold the head."""

import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 8), nn.Linear(8, 2)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
scheduler.step()
head(body(torch.randn(8, 4))).pow(2).mean().backward()
optimizer.step()
print(body.weight.sum().item())
