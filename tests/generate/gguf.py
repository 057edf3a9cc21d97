"""Writes GGUF files, and rounds numbers to what they store: f32, f16, bf16, q8_0, q4_0, q4_1."""
import struct

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}


def _bf16_bits(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def store(x, kind):
    """x [..., n] as bytes [..., bytes of a row], and the numbers that these stand for."""
    x = np.asarray(x, np.float32)
    if kind == "f32":
        return x.view(np.uint8), x
    if kind == "f16":
        half = x.astype(np.float16)
        return half.view(np.uint8), half.astype(np.float32)
    if kind == "bf16":
        bits = _bf16_bits(x)
        return bits.view(np.uint8), (bits.astype(np.uint32) << 16).view(np.float32)
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float64)
    least = np.zeros_like(blocks[..., :1])
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    if kind == "q8_0":
        scale, first, last = np.abs(largest) / 127, -128, 127
    elif kind == "q4_0":
        scale, first, last = largest / -8, -8, 7
    else:
        least = blocks.min(-1, keepdims=True)
        scale, first, last = (blocks.max(-1, keepdims=True) - least) / 15, 0, 15
    scale, least = scale.astype(np.float16), least.astype(np.float16)
    steps = np.divide(blocks - least, scale, out=np.zeros_like(blocks), where=scale != 0)
    numbers = np.rint(steps).clip(first, last)
    value = numbers * scale.astype(np.float64) + least
    packed = [scale, least] if kind == "q4_1" else [scale]
    if kind == "q8_0":
        packed.append(numbers.astype(np.int8))
    else:
        nibbles = (numbers - first).astype(np.uint8)
        packed.append(nibbles[..., :16] | nibbles[..., 16:] << 4)
    rows = np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in packed], -1)
    return rows.reshape(*x.shape[:-1], -1), value.reshape(x.shape).astype(np.float32)


def _text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], (str, bytes)):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    kind, code = (5, "i") if isinstance(value[0], int) else (6, "f")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)


def write(values, tensors):
    """The bytes of a file. values: {key: value}; tensors: {name: (array, kind)}."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
    head += b"".join(_text(key) + _value(value) for key, value in values.items())
    data = b""
    for name, (array, kind) in tensors.items():
        stored = store(array, kind)[0].tobytes()
        shape = array.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[kind],
                                          len(data))
        data += stored + bytes(-len(stored) % 32)
    return head + bytes(-len(head) % 32) + data
