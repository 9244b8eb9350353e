"""webdataset: samples from a tar file, batched before the loader."""

import io
import json
import tarfile
import tempfile

import numpy as np
import torch
import webdataset
from torch import nn

torch.manual_seed(0)
folder = tempfile.mkdtemp()
with tarfile.open(f"{folder}/shard-000.tar", "w") as shard:
    for i in range(64):
        buffer = io.BytesIO()
        np.save(buffer, np.full(8, i, dtype=np.float32))
        for name, content in ((f"{i:04}.npy", buffer.getvalue()), (f"{i:04}.cls", str(i % 2).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))
data = webdataset.WebDataset(f"{folder}/shard-000.tar", shardshuffle=False).decode().to_tuple("npy", "cls").batched(16)
loader = webdataset.WebLoader(data, batch_size=None, num_workers=0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
counted = {"steps": 0, "items": 0, "loader_items": 0}
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counted["steps"] += 1
        counted["items"] += len(x)
        counted["loader_items"] += len(x)
print("TRUTH", json.dumps(counted))
