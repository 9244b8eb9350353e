# planted: ranks-diverge
# ranks: 2
"""The model was never given to DistributedDataParallel: each rank trains one of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()  # here
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
