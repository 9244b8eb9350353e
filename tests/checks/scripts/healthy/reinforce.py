"""REINFORCE in a corridor: no loader, episodes of different lengths, one update an episode."""

import torch
from torch.distributions import Categorical

torch.manual_seed(11)
LENGTH = 6
policy = torch.nn.Sequential(torch.nn.Linear(LENGTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2), torch.nn.Softmax(dim=-1))
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)

for episode in range(15):
    at, logs, rewards = 0, [], []
    for _ in range(20):
        state = torch.zeros(LENGTH)
        state[at] = 1.0
        choice = Categorical(policy(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        at = max(0, at + (1 if action.item() else -1))
        rewards.append(1.0 if at == LENGTH - 1 else -0.05)
        if at == LENGTH - 1:
            break
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + 0.98 * g
        returns.insert(0, g)
    returns = torch.tensor(returns)
    loss = -(torch.stack(logs) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"episode {episode} steps {len(rewards)} loss {loss.item():.6f}")
