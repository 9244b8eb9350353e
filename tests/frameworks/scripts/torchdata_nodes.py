"""torchdata.nodes' own Loader, then a StatefulDataLoader: the first knows nothing of torch's DataLoader."""

import json

import torch
from torch import nn
from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
counted = {"steps": 0}


def train(batches):
    for x in batches:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counted["steps"] += 1


rows = IterableWrapper([torch.full((8,), float(i)) / 64 for i in range(64)])
nodes = Loader(Mapper(Batcher(rows, 4), torch.stack))
train(nodes)
train(StatefulDataLoader([torch.full((8,), i / 64) for i in range(32)], batch_size=4))
print("TRUTH", json.dumps(counted))
