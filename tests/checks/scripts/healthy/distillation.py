"""A teacher in eval mode without gradients teaches a student: softmax goes into a divergence, not into a cross-entropy."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
T = 3.0
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
student = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4))
x = torch.randn(96, 8)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9)
teacher.eval()
student.train()
for epoch in range(3):
    for a, b in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(a) / T, dim=1)
        out = student(a)
        loss = F.kl_div(F.log_softmax(out / T, dim=1), soft, reduction="batchmean") * T * T + F.cross_entropy(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
