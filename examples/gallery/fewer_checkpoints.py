"""A checkpoint after every step; after: every 20."""

import os
import sys
import tempfile

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
x = torch.randn(8, 1024)
every = 20 if sys.argv[1] == "after" else 1
with tempfile.TemporaryDirectory() as folder:
    for step in range(60):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step % every == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                os.path.join(folder, "last.pt"),
            )
