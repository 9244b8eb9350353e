# planted: ranks-diverge
# ranks: 2
"""The model is wrapped, but called by its module: gradients are not averaged. Weights are alike at first."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 6)
data = TensorDataset(x, (x[:, 0] > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        loss = nn.functional.cross_entropy(ddp.module(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # here
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
