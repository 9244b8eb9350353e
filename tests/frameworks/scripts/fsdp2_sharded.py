"""Two ranks under torchrun, their parameters sharded by FSDP2: storage is freed between forward and backward."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(128, 16), torch.randn(128, 1))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
steps = items = 0
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        items += len(x)
if os.environ["RANK"] == "0":
    print("TRUTH", json.dumps({"steps": steps, "items": 2 * items, "ranks": 2, "not": "straggler"}))
dist.destroy_process_group()
