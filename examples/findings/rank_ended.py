"""The second rank fails in its tenth step, and the first ends because it is gone. After: it does not.

torchrun --standalone --nproc-per-node 2 -m voirkit examples/findings/rank_ended.py before
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
lengths = [16] * 40
if sys.argv[1] == "before":
    lengths[9] = 15


def main():
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for length in lengths:
        optimizer.zero_grad()
        is_own = dist.get_rank() == 1
        model(torch.randn(8, length if is_own else 16)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
