"""Twice as many other processes as processors compute all the time while the model trains; after: none."""

import os
import subprocess
import sys

import torch
from torch import nn

torch.set_num_threads(1)
number = 2 * os.cpu_count() if sys.argv[1] == "before" else 0
endless = [
    sys.executable,
    "-c",
    "import time\nend = time.time() + 60\nwhile time.time() < end: pass",
]
others = [subprocess.Popen(endless, start_new_session=True) for _ in range(number)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(400):
    x, y = torch.randn(64, 256), torch.randint(0, 8, (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
for other in others:
    other.kill()
