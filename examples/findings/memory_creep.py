"""Scores of a model without training keep all outputs: memory grows for 70 s. After: the numbers alone are kept.

voirkit --monitor 0.5 examples/findings/memory_creep.py before
"""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SECONDS = 70

model = nn.Linear(256, 4096).eval()
kept = []
until = time.monotonic() + SECONDS
with torch.inference_mode():
    while time.monotonic() < until:
        scores = model(torch.randn(64, 256))
        kept.append(scores if sys.argv[1] == "before" else scores.mean().item())
        time.sleep(0.1)
