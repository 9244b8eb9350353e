"""Fine-tuning: the body stays as it is, in eval mode, and only the new head is given to the optimizer."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


torch.manual_seed(0)
net = Net()
for p in net.backbone.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
images, labels = torch.randn(64, 1, 8, 8), torch.randint(0, 2, (64,))
images[labels == 1] += 0.5
loader = DataLoader(TensorDataset(images, labels), 16, shuffle=True)
for epoch in range(3):
    net.train()
    net.backbone.eval()
    for x, t in loader:
        loss = nn.functional.cross_entropy(net(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("%.6f" % loss.item())
