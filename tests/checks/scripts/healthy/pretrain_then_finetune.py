"""First an autoencoder, then a classifier on its encoder: frozen at first, then trained too, by another optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 10)
y = (x[:, 0] + x[:, 1] > 0).long()
encoder = nn.Sequential(nn.Linear(10, 6), nn.ReLU())
decoder = nn.Linear(6, 10)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
for epoch in range(2):
    for (a,) in DataLoader(TensorDataset(x), batch_size=16, shuffle=True):
        loss = nn.functional.mse_loss(decoder(encoder(a)), a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("pretrain", loss.item())

head = nn.Linear(6, 2)
classifier = nn.Sequential(encoder, head)
encoder.requires_grad_(False)
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, classifier.parameters()), lr=0.1)
for epoch in range(4):
    if epoch == 2:
        encoder.requires_grad_(True)
        optimizer.add_param_group({"params": encoder.parameters(), "lr": 0.01})
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        loss = nn.functional.cross_entropy(classifier(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("finetune", loss.item())
