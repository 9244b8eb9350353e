# planted: never-updated
"""The decoder gets gradients, and is in no optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 4), nn.Tanh())
        self.decoder = nn.Linear(4, 10)

    def forward(self, x):
        return self.decoder(self.encoder(x))


torch.manual_seed(0)
net = AutoEncoder()
optimizer = torch.optim.Adam(net.encoder.parameters(), lr=1e-2)
for epoch in range(3):
    for x in DataLoader(torch.randn(64, 10), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
