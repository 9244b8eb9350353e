"""An evaluation without ``torch.no_grad``: all that a backward pass would need is kept. After: with it."""

import contextlib
import resource
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(2000, 256), torch.randint(0, 4, (2000,)))
model = nn.Sequential(
    *[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())], nn.Linear(256, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=50):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
model.eval()
outputs = []
with torch.no_grad() if sys.argv[1] == "after" else contextlib.nullcontext():
    for x, _ in DataLoader(data, batch_size=50):
        outputs.append(model(x))
print(
    f"{len(torch.cat(outputs))} outputs, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB"
)
