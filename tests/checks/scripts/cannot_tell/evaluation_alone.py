# cannot tell: missing-zero-grad skipped-steps same-augmentation not-finite ranks-diverge
"""Nothing is trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
        print(model(x).mean().item())
