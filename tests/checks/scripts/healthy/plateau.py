"""ReduceLROnPlateau on a validation loss, and early stopping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def run_epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    total = n = 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = nn.functional.l1_loss(model(x), y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total, n = total + loss.item() * len(x), n + len(x)
    return total / n


def main():
    torch.manual_seed(4)
    x = torch.randn(100, 5)
    train, valid = random_split(TensorDataset(x, x[:, :1] * 2), [80, 20])
    train_loader = DataLoader(train, batch_size=16, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=16)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.3)
    best, bad = float("inf"), 0
    for epoch in range(8):
        train_loss = run_epoch(model, train_loader, optimizer)
        valid_loss = run_epoch(model, valid_loader)
        scheduler.step(valid_loss)
        print(f"{epoch} {train_loss:.6f} {valid_loss:.6f}")
        best, bad = (valid_loss, 0) if valid_loss < best else (best, bad + 1)
        if bad > 2:
            break


main()
