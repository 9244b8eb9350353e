# ranks: 2
"""Two ranks without DistributedDataParallel: gradients are averaged by all_reduce, and parameters are sent from the first rank at the start."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(100 + rank)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
for p in model.parameters():
    dist.broadcast(p.data, 0)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
mine = torch.utils.data.Subset(torch.utils.data.TensorDataset(x, y), list(range(rank, 64, world)))
loader = torch.utils.data.DataLoader(mine, batch_size=8, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
    if rank == 0:
        print(epoch, loss.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
