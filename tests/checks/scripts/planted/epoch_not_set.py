# planted: same-order
# ranks: 2
"""set_epoch() was forgotten: each rank sees its samples in the same order in each epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for a, b in loader:  # here
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
