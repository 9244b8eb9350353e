"""A training script that calls everything it can by names that somebody has made up to harm who reads the report, and a summary full of them."""

from __future__ import annotations

import re
from typing import Any

# A tag, the end of an attribute, of a script, a style and a comment, an entity; then what a terminal obeys: title, clipboard, colour, erasing,
# the direction of text, a line of its own.
MARKUP = "\"'><img src=x onerror=document.title='owned'><script>document.title='owned'</script></style><!--&lt;"
OBEYED = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[31m\x1b[2J\x9b2J\u202eowned\u2066\rowned\nvoirkit: owned"
PAYLOAD = MARKUP + OBEYED
FILE = "\"'><img src=x onerror=document.title='owned'>.py"  # of files all but the slash

SCRIPT = f"""
import sys
import torch
PAYLOAD = {PAYLOAD!r}

class Transform:
    def __call__(self, x):
        return x * 2.0

Hostile = type(PAYLOAD, (Transform,), {{"__module__": "__main__", "__qualname__": PAYLOAD}})
Hostile.__call__ = lambda self, x: x * 2.0
Hostile.__call__.__name__ = Hostile.__call__.__qualname__ = PAYLOAD

class Data(torch.utils.data.Dataset):
    transform = Hostile()
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return self.transform(torch.full((4,), float(i))), torch.tensor([1.0])

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(PAYLOAD.replace(".", "_"), torch.nn.Linear(4, 1))
        self.never = torch.nn.Linear(4, 1)
    def forward(self, x):
        return next(iter(self.children()))(x)

Model.__name__ = Model.__qualname__ = PAYLOAD
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import voirkit, warnings
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(Data(), batch_size=4):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        voirkit.give(loss=loss.item())
raise RuntimeError(PAYLOAD)
"""


def planted(value: Any) -> Any:
    """A document with the payload behind each text, and behind each key that is a name and not one of voirkit's own words."""
    if isinstance(value, str):
        return value + PAYLOAD
    if isinstance(value, dict):
        return {
            key if re.fullmatch(r"[a-z_0-9]+", key) else key + PAYLOAD: planted(one)
            for key, one in value.items()
        }
    return [planted(one) for one in value] if isinstance(value, list) else value
