"""YOLOv8n from its yaml on generated images: its loader's iterator is kept over all epochs and is not made by DataLoader.__iter__."""

import json
import os
import tempfile

os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
os.environ.setdefault("YOLO_OFFLINE", "true")
import numpy as np
from PIL import Image
from ultralytics import YOLO, settings

settings.update(
    {name: False for name in ("wandb", "mlflow", "tensorboard", "comet", "clearml", "dvc", "neptune", "raytune", "hub") if name in settings}
)
folder = tempfile.mkdtemp()
random = np.random.default_rng(0)
for part, n in (("train", 24), ("val", 8)):
    os.makedirs(f"{folder}/images/{part}")
    os.makedirs(f"{folder}/labels/{part}")
    for i in range(n):
        Image.fromarray(random.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(f"{folder}/images/{part}/{i}.jpg")
        with open(f"{folder}/labels/{part}/{i}.txt", "w") as file:
            file.write("0 0.5 0.5 0.4 0.4\n")
with open(f"{folder}/data.yaml", "w") as file:
    file.write(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n")

counted = {"steps": 0, "items": 0}


def count(trainer):
    counted["steps"] += 1


model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", count)
model.train(data=f"{folder}/data.yaml", epochs=2, imgsz=64, batch=8, workers=0, device="cpu", project=folder, plots=False, val=False,
            save=False, verbose=False, amp=False, seed=0)  # fmt: skip
print("TRUTH", json.dumps({"steps": counted["steps"], "items": counted["steps"] * 8}))
