"""Full garbage collections every 5 steps over many objects that live long; after: these are frozen."""

import gc
import sys

import torch
from torch import nn

torch.set_num_threads(1)
samples = [{"tokens": [k, k + 1], "label": {"id": k}} for k in range(300_000)]
if sys.argv[1] == "after":
    gc.freeze()
model = nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    x = torch.tensor(
        [[row["tokens"][0] / 300_000] * 64 for row in samples[step * 500 : step * 500 + 500]]
    )
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step % 5 == 0:
        gc.collect()
