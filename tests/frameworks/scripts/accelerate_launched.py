"""What `accelerate launch` starts, once for each of two processes."""

import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.randn(128, 8), torch.randint(0, 2, (128,)))
model = nn.Linear(8, 2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=8))
steps = items = 0
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        steps += 1
        items += len(x)
if accelerator.is_main_process:
    print("TRUTH", json.dumps({"steps": steps, "items": items * accelerator.num_processes, "ranks": accelerator.num_processes}))
accelerator.end_training()
