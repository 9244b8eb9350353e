"""Draws the photographs that main.py trains on: JPEGs of several sizes in one folder per class, made from a seed.

Each class has a texture and a tint of its own, and neither is enough alone: the tints vary and overlap, the textures
are turned and scaled at random. What is there already is kept, so that a second run costs nothing.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
CLASSES = {  # name: mean tint, as red, green, blue between 0 and 1
    "checks": (0.65, 0.45, 0.40),
    "rings": (0.40, 0.60, 0.45),
    "stripes": (0.40, 0.45, 0.65),
    "waves": (0.60, 0.60, 0.40),
}


def texture(name, x, y, period):
    """The pattern of a class, between -1 and 1, at the given coordinates (in pixels)."""
    u, v = 2 * np.pi * x / period, 2 * np.pi * y / period
    if name == "checks":
        return np.sign(np.sin(u) * np.sin(v))
    if name == "rings":
        return np.sin(np.hypot(u, v))
    if name == "stripes":
        return np.sign(np.sin(u))
    return np.sin(u + 2 * np.sin(v / 2))


def draw(name, rng):
    """One photograph of a class, as a height x width x 3 array of bytes."""
    width, height = int(rng.integers(200, 801)), int(rng.integers(200, 601))
    angle, period = rng.uniform(0, 2 * np.pi), rng.uniform(0.08, 0.2) * min(width, height)
    x = np.arange(width) - rng.uniform(0, width)
    y = (np.arange(height) - rng.uniform(0, height))[:, None]
    pattern = texture(
        name, np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x, period
    )
    tint = np.array(CLASSES[name]) + rng.normal(0, 0.1, size=3)
    # Grain makes the files as large, and as slow to decode, as photographs of this size are.
    grain = rng.normal(0, 0.05, size=(height, width, 1))
    pixels = tint + 0.2 * pattern[:, :, None] + grain
    return (255 * pixels.clip(0, 1)).astype(np.uint8)


def make_images(folder, count, seed):
    """Make what is missing of ``count`` images in ``folder``; return how many were made."""
    made = 0
    names = sorted(CLASSES)
    for index in range(count):
        label = index % len(names)
        path = folder / names[label] / f"{index:05d}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # A generator per image: each is the same whatever was made before it.
        image = Image.fromarray(draw(names[label], np.random.default_rng([seed, index])))
        # Written under another name first, so that an interrupted run leaves no half of an image to be kept.
        part = path.with_suffix(".part")
        image.save(part, format="JPEG", quality=90)
        os.replace(part, path)
        made += 1
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=HERE / "images", help="folder to fill (%(default)s)"
    )
    parser.add_argument(
        "--count", type=int, default=384, help="number of images, over all classes (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed draws other images (%(default)s)"
    )
    args = parser.parse_args()

    made = make_images(args.data, args.count, args.seed)
    print(f"{args.data}: {made} images made, {args.count - made} already there")


if __name__ == "__main__":
    main()
