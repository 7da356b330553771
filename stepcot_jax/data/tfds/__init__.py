"""Step-CoT as a tensorflow_datasets dataset, without tensorflow: `builder` prepares it, `source` opens it.

The rest of the package imports this lazily, since tensorflow_datasets is optional.
"""
