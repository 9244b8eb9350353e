# planted: ranks-same-data
# ranks: 2
"""Each rank shuffles the whole data set with the same seed: both do the same work."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)  # here
model = DistributedDataParallel(nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
