"""A policy that is asked for one environment at a time, 64 times between two steps; after: for all 64 at once."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
state = torch.randn(64, 16)
for _ in range(150):
    with torch.no_grad():
        actions = (
            policy(state)
            if sys.argv[1] == "after"
            else torch.cat([policy(row[None]) for row in state])
        )
    rewards = actions.softmax(1).max(1).values
    optimizer.zero_grad()
    loss = -(policy(state).log_softmax(1).max(1).values * rewards).mean()
    loss.backward()
    optimizer.step()
