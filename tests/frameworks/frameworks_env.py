"""The environment of frameworks' scripts: nothing is fetched, nothing is sent, and no progress bar shows times."""

ENV = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_DISABLED": "true", "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "",
    "TQDM_DISABLE": "1", "YOLO_OFFLINE": "true", "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1",
}  # fmt: skip
