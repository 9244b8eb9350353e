"""Fine-tuning as many write it: the optimizer is given all parameters, of which those of the body are frozen."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
for param in body.parameters():
    param.requires_grad = False
model = nn.Sequential(body, nn.Linear(20, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
x = torch.randn(96, 10)
t = x[:, :4].argmax(1)
loader = DataLoader(TensorDataset(x, t), batch_size=12, shuffle=True)
for epoch in range(2):
    for xb, tb in loader:
        optimizer.zero_grad()
        out = model(xb)
        loss = nn.CrossEntropyLoss()(out, tb)
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
