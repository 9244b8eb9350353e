"""ReLUs that give zeros on purpose: hinge losses that are fulfilled, a sparse code, checkpointed layers; and a net in which a few units are dead."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
head, code, decode = nn.Linear(64, 8), nn.Linear(8, 32), nn.Linear(32, 8)
with torch.no_grad():
    body[0].bias[:20] = -50.0
parameters = [p for part in (body, head, code, decode) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
x = torch.randn(64, 6)
y = (x[:, 0] > 0).float() * 2 - 1
for step in range(40):
    features = head(body(x) if step % 2 else checkpoint(body, x, use_reentrant=False))
    hinge = torch.relu(0.1 - y[:, None] * 100 * features).mean()
    apart = F.relu(1e-3 - torch.cdist(features, features)).mean()
    sparse = F.relu(code(features))
    loss = hinge + apart + F.mse_loss(decode(sparse), features.detach()) + 1e-3 * sparse.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
