# planted: loss-not-connected
"""The loss is put into a new tensor, "so that it can require gradients": nothing is learned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True):
        guess = model(a).argmax(1).float()
        loss = torch.tensor(nn.functional.mse_loss(guess, b.float()).item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
    print(loss.item())
