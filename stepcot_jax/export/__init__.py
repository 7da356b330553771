"""A trained model as StableHLO and safetensors, with a loader that needs jax and numpy alone."""
