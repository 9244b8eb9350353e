# planted: no-gradient
"""Features are detached on their way to the head: the encoder, which is called and is to be trained, never gets a gradient."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        features = self.encoder(x).detach()
        return self.head(features)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(64, 10)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
    print(loss.item())
