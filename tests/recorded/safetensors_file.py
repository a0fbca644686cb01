"""Writes a safetensors file: u64 header length (little-endian), JSON header, data without gaps."""
import json
import struct

import torch

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def save(path: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    header: dict[str, object] = {"__metadata__": metadata}
    data = bytearray()
    # Wide elements first: without gaps, every tensor is then aligned to its own element size.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        raw = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
