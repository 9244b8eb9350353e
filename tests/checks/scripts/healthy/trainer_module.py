"""The loop lives in another module."""

import torch
from parts.trainer import Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(nn.Linear(5, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 3))


def main():
    torch.manual_seed(6)
    x = torch.randn(120, 5)
    y = x[:, :3].argmax(1)
    train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
    valid = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
    model = build()
    Trainer(model, torch.optim.Adam(model.parameters(), lr=1e-2), train, valid).fit(3)


if __name__ == "__main__":
    main()
