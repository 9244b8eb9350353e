"""Each loss is sent to a server, whose answer (after 5 ms) is waited for in the step; after: every hundredth."""

import socket
import sys
import threading
import time

import torch
from torch import nn


def serve(connection):
    while connection.recv(64):
        time.sleep(0.005)
        connection.send(b"thanks")


torch.set_num_threads(1)
here, there = socket.socketpair()
threading.Thread(target=serve, args=(there,), daemon=True).start()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 64)
for step in range(1, 401):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    if step % 100 == 0 or sys.argv[1] == "before":
        here.send(str(float(loss)).encode())
        here.recv(64)
