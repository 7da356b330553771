"""Encoders without weights that count what they are asked, and images that say which they are."""

import hashlib

import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing, normalise
from stepcot_jax.features.encode import ImageItem, image_keys
from stepcot_jax.features.store import digest_pixels

PREPROCESSING = Preprocessing(size=4, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), fit="crop")
WIDTH = 6


class FakeImageEncoder:
    name, width, preprocessing, batch_size = "fake", WIDTH, PREPROCESSING, 32

    def __init__(self, digest="weights", visit=None):
        self.digest, self.visit = digest, visit
        self.shapes, self.images = [], []

    def encode(self, images):
        images = normalise(images, self.preprocessing) if images.dtype == np.uint8 else np.asarray(images)
        self.shapes.append(images.shape)
        numbers = np.rint((images[:, 0, 0, :2] * 0.5 + 0.5) * 255).astype(int) @ [1, 256]
        self.images += numbers.tolist()
        if self.visit is not None:
            self.visit(numbers.tolist())
        # Row by row, so that a feature does not depend on its batch.
        return np.stack([np.outer(np.arange(1, WIDTH + 1), row.ravel()).sum(axis=1) for row in images]).astype("f4")

    def encode_patches(self, images):
        features = self.encode(images)
        images = normalise(images, self.preprocessing) if images.dtype == np.uint8 else np.asarray(images)
        return features, images.reshape(len(images), 16, 3)

    def patch_shape(self):
        return 16, 3


class FakeTextEncoder:
    name, width, digest, max_tokens, num_parameters = "fake text", WIDTH, "text weights", 128, 5

    def __init__(self):
        self.texts = []

    def encode(self, texts, *, pooling):
        self.texts += texts
        return np.stack([np.frombuffer(hashlib.sha256(text.encode()).digest()[:WIDTH], "u1") for text in texts])


def draw(number):
    pixels = np.full((4, 4, 3), 7, np.uint8)
    pixels[0, 0, :2] = number % 256, number // 256
    return pixels


def make_items(numbers, encoder, reads=None):
    def read(number):
        if reads is not None:
            reads.append(number)
        return draw(number)

    return [
        ImageItem(
            image_keys(encoder, [digest_pixels(draw(number))])[0], lambda number=number: read(number), f"case {number}"
        )
        for number in numbers
    ]
