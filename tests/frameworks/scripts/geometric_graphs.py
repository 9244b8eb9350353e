"""PyG: a loader of graphs, then full-batch training of one graph without a loader."""

import json
import warnings

warnings.simplefilter("ignore")
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(0)
edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
graphs = [Data(x=torch.randn(4, 8), edge_index=edges, y=torch.tensor([i % 2])) for i in range(64)]
counted = {"steps": 0}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(8, 2)

    def forward(self, x, edge_index, batch=None):
        x = self.conv(x, edge_index)
        return x if batch is None else global_mean_pool(x, batch)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for batch in DataLoader(graphs, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
        optimizer.step()
        counted["steps"] += 1
whole = graphs[0]
for epoch in range(20):
    optimizer.zero_grad()
    model(whole.x, whole.edge_index).square().mean().backward()
    optimizer.step()
    counted["steps"] += 1
print("TRUTH", json.dumps(counted))
