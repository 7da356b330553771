"""Step-CoT as a dataset of tensorflow_datasets, without tensorflow: `builder` prepares it, `source` reads it.

Nothing here is imported by the rest of the package, since tensorflow_datasets is optional.
"""
