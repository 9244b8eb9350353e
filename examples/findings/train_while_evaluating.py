"""The model is evaluated without eval(): its dropout works there, and the loss that is printed is too high. After: with it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(640, 16)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
held_out = DataLoader(TensorDataset(inputs[:64], inputs[:64].sum(1, keepdim=True)), batch_size=32)
model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    model.train()
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if sys.argv[1] == "after":
        model.eval()
    with torch.no_grad():
        losses = [float(nn.functional.mse_loss(model(x), y)) for x, y in held_out]
print(f"loss {sum(losses) / len(losses):.3f} on held-out data")
