"""Monte Carlo dropout: the model is evaluated many times with its dropout on, to see how sure it is."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def enable_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


torch.manual_seed(0)
x = torch.linspace(-2, 2, 64)[:, None]
train = DataLoader(TensorDataset(x, x.sin()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    model.eval()
    enable_dropout(model)
    with torch.no_grad():
        guesses = torch.stack([model(x) for _ in range(5)])
    print(epoch, loss.item(), guesses.std(0).mean().item())
model.train()
with torch.no_grad():
    print(torch.stack([model(x) for _ in range(5)]).std(0).mean().item())
