"""Fitted estimators as ONNX graphs: whole sequences of any length, or one step with the state going in and out.

Both are traced from what PyTorch runs: the network's own forward pass, in which each recurrent layer is made of the step of its
`reference.py`. In the graph of whole sequences each layer and direction is one ONNX `Scan`, whose body is the traced step:
nothing depends on the length that was traced.
"""

from mistrnn.estimators.export._onnx import export_onnx
from mistrnn.estimators.export._tracing import IR_VERSION, OPSET

__all__ = ["IR_VERSION", "OPSET", "export_onnx"]
