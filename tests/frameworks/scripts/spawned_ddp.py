"""Two ranks that the script starts itself, with torch.multiprocessing.spawn."""

import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def work(rank, size, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(128, 8), torch.randint(0, 2, (128,)))
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = items = 0
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            items += len(x)
    if rank == 0:
        print("TRUTH", json.dumps({"steps": steps, "items": items * size, "ranks": size}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(2, os.path.join(folder, "meeting")), nprocs=2)
