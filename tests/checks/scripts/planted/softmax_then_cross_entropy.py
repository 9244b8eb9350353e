# planted: softmax-before-cross-entropy
"""The model ends in a softmax, the loss takes logits."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=1))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(a), b)  # here
        loss.backward()
        optimizer.step()
    print(loss.item())
