"""LinearLR, then CosineAnnealingLR, by SequentialLR; evaluation with another loader after each epoch."""

import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
make = lambda n: TensorDataset(torch.randn(n, 12), torch.randint(0, 4, (n,)))
train_dl, test_dl = DataLoader(make(64), 8, shuffle=True), DataLoader(make(24), 8)
model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.SiLU(), nn.Dropout(0.3), nn.Linear(24, 4))
optimizer = optim.SGD([{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1:].parameters()}], lr=0.05)
scheduler = lr_scheduler.SequentialLR(
    optimizer,
    [lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)],
    milestones=[2],
)
for epoch in range(5):
    model.train()
    for x, y in train_dl:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    right = 0
    with torch.inference_mode():
        for x, y in test_dl:
            right += (model(x).argmax(1) == y).sum().item()
    print(epoch, loss.item(), right, [g["lr"] for g in optimizer.param_groups])
