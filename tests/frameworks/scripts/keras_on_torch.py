"""Keras with torch as its back end, fitted on a DataLoader: its optimizers are none of torch's."""

import json
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch
from torch.utils.data import DataLoader, TensorDataset

keras.utils.set_random_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
counted = {"steps": 0}


class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        counted["steps"] += 1


model.fit(DataLoader(data, batch_size=8), epochs=2, verbose=0, callbacks=[Count()])
print("TRUTH", json.dumps({**counted, "items": counted["steps"] * 8, "optimizer": True}))
