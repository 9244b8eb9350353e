"""Gradients of four small batches make one update; what is left at the end of an epoch makes one too."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


def main():
    torch.manual_seed(1)
    x = torch.randn(72, 6)
    y = x.sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    opt.zero_grad(set_to_none=True)
    for epoch in range(3):
        total = 0.0
        for i, (xb, yb) in enumerate(loader):
            loss = nn.functional.mse_loss(model(xb), yb)
            (loss / ACCUMULATE).backward()
            total += loss.item()
            if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=True)
        print(epoch, total / len(loader))


if __name__ == "__main__":
    main()
