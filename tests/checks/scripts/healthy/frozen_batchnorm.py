"""Batches are small, so that the statistics of batch normalisation stay fixed: those layers are in eval mode within a training."""

import torch
import torch.nn as nn


class ConvNet(nn.Module):
    def __init__(self, freeze_bn=True):
        super().__init__()
        self.freeze_bn = freeze_bn
        self.c1, self.b1 = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.c2, self.b2 = nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 3)

    def train(self, mode=True):
        super().train(mode)
        if self.freeze_bn:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def forward(self, x):
        x = torch.relu(self.b1(self.c1(x)))
        x = torch.relu(self.b2(self.c2(x)))
        return self.fc(x.mean((2, 3)))


torch.manual_seed(1)
net = ConvNet()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.rand(24, 1, 9, 9), torch.randint(0, 3, (24,)))
for epoch in range(3):
    net.train()
    for img, target in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True):
        loss = nn.functional.cross_entropy(net(img), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("loss =", loss.item())
