# cannot tell: train-while-evaluating
"""What is evaluated is a model that is not trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)).eval()
student = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        student(x).pow(2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(teacher(x).mean().item() for (x,) in loader))
