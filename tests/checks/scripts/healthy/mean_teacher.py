"""Mean teacher: a copy of the model follows it as a moving average and is in no optimizer."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
student = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
teacher = copy.deepcopy(student).eval()
for p in teacher.parameters():
    p.requires_grad = False
opt = torch.optim.Adam(student.parameters(), 1e-2)
x = torch.randn(120, 6)
y = x[:, :3].argmax(1)


@torch.no_grad()
def follow(decay=0.95):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(decay).add_(s, alpha=1 - decay)


for step in range(20):
    pick = torch.randperm(len(x))[:16]
    out = student(x[pick] + 0.05 * torch.randn(16, 6))
    with torch.no_grad():
        target = teacher(x[pick])
    loss = F.cross_entropy(out, y[pick]) + F.mse_loss(out.softmax(-1), target.softmax(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    follow()
    print(step, f"{loss.item():.6f}")
