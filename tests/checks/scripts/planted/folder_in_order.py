# planted: not-shuffled
"""A data set as a folder of images has it, class by class, read by a worker in order: the test loader's line was copied."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    classes = ("cat", "dog", "horse")

    def __init__(self, each=20):
        self.samples = [(f"{name}/{i}.jpg", k) for k, name in enumerate(self.classes) for i in range(each)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, target = self.samples[i]
        generator = torch.Generator().manual_seed(sum(path.encode()))
        return torch.randn(1, 8, 8, generator=generator) + target, target


torch.manual_seed(0)
train_loader = DataLoader(Folder(), batch_size=10, shuffle=False, num_workers=1)  # here
test_loader = DataLoader(Folder(4), batch_size=12, shuffle=False)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(2):
    net.train()
    for x, y in train_loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum().item() for x, y in test_loader)
    print(loss.item(), right)
