"""Two ranks share sentences that are sorted by length: the second has the long ones. After: each takes every other sentence.

torchrun --standalone --nproc-per-node 2 -m voirkit late_rank.py before
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
lengths = list(range(10, 170))  # words of each of 160 sentences
mine = lengths[rank::2] if sys.argv[1] == "after" else lengths[80 * rank : 80 * rank + 80]
network = nn.GRU(32, 64, batch_first=True)
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for length in mine:
        optimizer.zero_grad()
        output, _ = model(torch.randn(8, length, 32))
        output.square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
