# planted: learning-rate-zero
"""A warm-up whose factor is an integer division: the rate is nought in every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 1000)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()  # here
        scheduler.step()
    print(loss.item())
