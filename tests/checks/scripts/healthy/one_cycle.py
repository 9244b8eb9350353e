"""OneCycleLR down to almost nothing, a step a batch."""

import torch
from torch import nn

torch.manual_seed(0)
ds = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 5, (64,)))
dl = torch.utils.data.DataLoader(ds, batch_size=16, shuffle=True, drop_last=True)
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 5))
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=3 * len(dl))
for ep in range(3):
    net.train()
    for img, lab in dl:
        opt.zero_grad()
        l = nn.functional.cross_entropy(net(img), lab, label_smoothing=0.1)
        l.backward()
        opt.step()
        sched.step()
    print("epoch", ep, "loss", l.item(), "lr", sched.get_last_lr())
