"""A trained model as StableHLO and safetensors with its loader; the authors' checkpoints in and out.

The loader's files travel and import neither this package nor each other's rooms. Read `folder` first.
"""
