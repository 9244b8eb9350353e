"""Two ranks that share the gradients of each of four micro-batches; after: of the last alone, the others under no_sync()."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    is_last = step % 4 == 3
    x, y = torch.randn(4, 2048), torch.randint(0, 8, (4,))
    with contextlib.nullcontext() if is_last or sys.argv[1] == "before" else model.no_sync():
        nn.functional.cross_entropy(model(x), y).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
