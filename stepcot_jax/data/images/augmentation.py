"""Light augmentation of training images: small changes of position and exposure.

No flips: left and right of a chest differ (the heart's apex points to the patient's left), and answers about location
may name the side.
"""

import dataclasses
import math

import numpy as np
from PIL import Image

from stepcot_jax.data.images.pixels import CompactPixels


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Limits of the changes; each change is uniform between minus and plus its limit.

    Attributes:
      degrees: of rotation about the centre.
      shift: along each axis, as a share of the side.
      scale: of the size, as a share.
      brightness: added to every pixel, as a share of full scale.
      contrast: of the distance from mid grey, as a share.
    """

    degrees: float = 5.0
    shift: float = 0.03
    scale: float = 0.05
    brightness: float = 0.05
    contrast: float = 0.1


LIGHT = Augmentation()


def augment_image(
    pixels: CompactPixels, generator: np.random.Generator, augmentation: Augmentation = LIGHT
) -> CompactPixels:
    """Return a changed copy of an image; pixels from beyond its edges are black.

    Args:
      pixels: uint8 [size, size] or [size, size, 3].
      generator: draws the changes; the number of draws is constant.
      augmentation: limits of the changes.

    Returns:
      An array like `pixels`.
    """
    turn, right, down, growth, brightness, contrast = generator.uniform(-1.0, 1.0, 6)
    slope = 1.0 + augmentation.contrast * contrast
    values = (np.arange(256) - 127.5) * slope + 127.5 + 255.0 * augmentation.brightness * brightness
    exposed = np.clip(np.round(values), 0, 255).astype(np.uint8)[pixels]
    height, width = pixels.shape[:2]
    angle = math.radians(augmentation.degrees * turn)
    factor = 1.0 / (1.0 + augmentation.scale * growth)
    cosine, sine = factor * math.cos(angle), factor * math.sin(angle)
    # Pillow wants the inverse transform: from each output pixel to its source.
    centre_x, centre_y = width / 2, height / 2
    from_x, from_y = centre_x + augmentation.shift * width * right, centre_y + augmentation.shift * height * down
    rows = (
        *(cosine, sine, centre_x - cosine * from_x - sine * from_y),
        *(-sine, cosine, centre_y + sine * from_x - cosine * from_y),
    )
    image = Image.fromarray(exposed)
    return np.array(image.transform(image.size, Image.Transform.AFFINE, rows, Image.Resampling.BICUBIC, fillcolor=0))
