"""The barrier behind a checkpoint is inside of `if rank == 0`: only the first rank calls it, and waits for ever. After: all ranks do.

torchrun --standalone --nproc-per-node 2 -m voirkit --hang 10 barrier.py before
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)


def checkpoint(model):
    if rank == 0:
        torch.save(model.state_dict(), "/dev/null")
        if sys.argv[1] == "before":
            dist.barrier()
    if sys.argv[1] == "after":
        dist.barrier()


def main():
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        if step % 50 == 40:
            checkpoint(model.module)
    dist.destroy_process_group()


main()
