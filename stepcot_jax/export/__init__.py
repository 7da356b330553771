"""A trained model as StableHLO and safetensors, with a loader that needs only jax and numpy."""
