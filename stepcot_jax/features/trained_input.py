"""The input of an image encoder that a run trains; apart from `inputs`, which imports the whole data pipeline."""

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.settings.run_settings import Settings


def trained_preprocessing(settings: Settings) -> Preprocessing:
    """Return the preprocessing of images for an encoder that is trained."""
    encoder = settings.image_encoder
    mean, std = encoder.mean, encoder.std
    return Preprocessing(size=encoder.image_size, mean=mean, std=std, fit=encoder.fit)  # type: ignore[arg-type]
