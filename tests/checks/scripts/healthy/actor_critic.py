"""Deep Q learning with a replay buffer and a target network that is copied from time to time; acting in eval mode."""

import random
from collections import deque

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
q = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 2))
target = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 2))
target.load_state_dict(q.state_dict())
target.eval()
opt = torch.optim.Adam(q.parameters(), lr=5e-3)
memory = deque(maxlen=200)
position, speed = 0.0, 0.0
for t in range(60):
    state = torch.tensor([position, speed])
    q.eval()
    with torch.no_grad():
        action = random.randrange(2) if random.random() < 0.2 else int(q(state).argmax())
    speed = 0.9 * speed + (0.1 if action else -0.1)
    position += speed
    memory.append((state, action, -abs(position), torch.tensor([position, speed])))
    if len(memory) >= 16:
        s, a, r, n = zip(*random.sample(memory, 16))
        s, a, r, n = torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(n)
        q.train()
        value = q(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            wanted = r + 0.9 * target(n).max(1).values
        loss = nn.functional.smooth_l1_loss(value, wanted)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(q.parameters(), 1.0)
        opt.step()
        if t % 10 == 0:
            target.load_state_dict(q.state_dict())
            print(t, loss.item())
