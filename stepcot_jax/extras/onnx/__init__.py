"""Exports as ONNX graphs, with a loader that needs only numpy and onnxruntime."""
