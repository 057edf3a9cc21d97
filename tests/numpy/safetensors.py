"""The safetensors format: u64 length, JSON header, bytes. A bf16 tensor is a pair ("bf16", f32)."""
import json

import numpy as np

from attention import round_to

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
         "uint8": "U8"}


def to_bytes(x):
    if isinstance(x, tuple):
        bits = round_to(x[1], "bf16").view(np.uint32) >> 16
        return "BF16", x[1].shape, bits.astype("<u2").tobytes()
    return NAMES[x.dtype.name], x.shape, x.tobytes()


def write(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        dtype, shape, raw = to_bytes(tensor)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def read(path):
    """{name: array}; bf16 as float32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    types = {v: k for k, v in NAMES.items()}
    result = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(raw, types[entry["dtype"]])
        result[name] = array.reshape(entry["shape"])
    return result
