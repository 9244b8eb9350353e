# planted: skipped-steps
"""Every gradient overflows, so that the scaler leaves out every step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
x = torch.randn(64, 8)
x[:, 3] = 1e38
for step in range(12):
    pick = torch.randint(0, 64, (8,))
    loss = model(x[pick]).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # here
    scaler.update()
    print(step, scaler.get_scale())
