# cannot tell: skipped-steps
"""A gradient scaler leaves out five steps of five."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
x = torch.randn(8, 8)
x[:, 3] = 1e38
for step in range(5):
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
print(scaler.get_scale())
