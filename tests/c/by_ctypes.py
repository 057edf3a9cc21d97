"""The C interface from Python's ctypes, whose structures are read from the header.

  python3 tests/c/by_ctypes.py LIBRARY HEADER
"""

import ctypes
import math
import random
import re
import sys

library = ctypes.CDLL(sys.argv[1])
with open(sys.argv[2]) as file:
    text = re.sub(r"//[^\n]*", "", file.read())
text = text[text.index("typedef DLTensor attn_tensor;") :]

SCALARS = {"uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "double": ctypes.c_double,
           "uint8_t": ctypes.c_uint8, "uint16_t": ctypes.c_uint16}  # fmt: skip
structures = {}


def member(declaration):
    """The name and type of a member of a structure."""
    declaration = " ".join(declaration.split())
    function = re.match(r"void \(\*(\w+)\)\(", declaration)
    if function:
        return function.group(1), ctypes.c_void_p
    kind, name = declaration.rsplit(" ", 1) if "*" not in declaration else declaration.rsplit("* ", 1)
    if "*" not in declaration:
        array = re.match(r"(\w+)\[(\d+)\]", name)
        if array:
            return array.group(1), ctypes.c_char * int(array.group(2))
        return name, SCALARS.get(kind) or structures[kind]
    return name, ctypes.c_char_p if "char" in kind else ctypes.c_void_p


for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", text, re.S):
    fields = [member(part) for part in body.split(";") if part.strip()]
    structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
library.attn_last_error.restype = ctypes.c_char_p
library.attn_status_name.restype = ctypes.c_char_p
library.attn_version.restype = ctypes.c_char_p
for name in re.findall(r"ATTN_C_API attn_status (\w+)\(", text):
    getattr(library, name).restype = ctypes.c_int32
Tensor, NamedTensor = structures["attn_tensor"], structures["attn_named_tensor"]


def made(name, **members):
    """A structure whose tensors are given as such."""
    whole = structures["attn_" + name]()
    whole.kept = members
    whole.struct_size = ctypes.sizeof(whole)
    for key, value in members.items():
        setattr(whole, key, ctypes.addressof(value) if isinstance(value, Tensor) else value)
    return whole


def tensor(data, *shape):
    whole = Tensor()
    whole.kept = data, (ctypes.c_int64 * len(shape))(*shape)
    whole.data, whole.shape = map(ctypes.addressof, whole.kept)
    whole.device.device_type, whole.ndim = 1, len(shape)
    whole.dtype.code, whole.dtype.bits, whole.dtype.lanes = 2, 32, 1
    return whole


def checked(status):
    if status != 0:
        raise RuntimeError(f"{library.attn_status_name(status).decode()}: {library.attn_last_error().decode()}")


def by_reference(structure):
    return None if structure is None else ctypes.byref(structure)


def forward(problem, inputs, outputs, options=None):
    checked(library.attn_forward(*map(by_reference, (problem, inputs, outputs, options)), None))


seed = random.randrange(1 << 30)
print("seed", seed)
draw = random.Random(seed)
batch, length, heads, dim = 2, 33, 3, 8
size = batch * length * heads * dim


def numbers(count):
    return (ctypes.c_float * count)(*(draw.gauss(0, 1) for _ in range(count)))


def poisoned(count):
    return (ctypes.c_float * count)(*([math.nan] * count))


q, k, v = (tensor(numbers(size), batch, length, heads, dim) for _ in range(3))
bias = tensor(numbers(heads), heads)
entries = (NamedTensor * 1)()
entries[0].name, entries[0].tensor = b"bias", ctypes.addressof(bias)
problem = made("problem", text=b"causal_score(score+bias[head])_buffer(bias:f32:3)", softmax_scale=0.5)
inputs = made("inputs", q=q, k=k, v=v, buffers=ctypes.addressof(entries), num_buffers=1)
results = []
for backend in (b"cpu", b"reference"):
    o, lse = tensor(poisoned(size), batch, length, heads, dim), tensor(poisoned(batch * heads * length), batch, heads, length)
    forward(problem, inputs, made("outputs", o=o, lse=lse), made("options", backend=backend))
    results.append((list(o.kept[0]), list(lse.kept[0])))
for got, expected in zip(*results):
    worst = max(abs(x - y) for x, y in zip(got, expected))
    assert worst < 1e-5, worst  # NaN is not less

# What is computed, by hand: row i of head h sees keys 0 to i.
q_, k_, v_ = (x.kept[0] for x in (q, k, v))
b, i, h = 1, 20, 2


def row(x, j):
    at = ((b * length + j) * heads + h) * dim
    return x[at : at + dim]


weights = [math.exp(0.5 * sum(x * y for x, y in zip(row(q_, i), row(k_, j))) + bias.kept[0][h]) for j in range(i + 1)]
for e, got in enumerate(row(results[0][0], i)):
    expected = sum(w * row(v_, j)[e] for j, w in enumerate(weights)) / sum(weights)
    assert abs(got - expected) < 1e-5, (got, expected)

# A plan, its members and its text.
plan = ctypes.c_void_p()
checked(library.attn_plan_make(by_reference(problem), 0, by_reference(inputs), None, None, ctypes.byref(plan)))
info = made("plan_info")
checked(library.attn_plan_get(plan, by_reference(info)))
assert (info.batch, info.seqlen_q, info.heads_k, info.head_dim, info.backend) == (batch, length, heads, dim, b"cpu")
needed = ctypes.c_size_t()
checked(library.attn_plan_text(plan, None, ctypes.c_size_t(0), ctypes.byref(needed)))
plan_text = ctypes.create_string_buffer(needed.value + 1)
checked(library.attn_plan_text(plan, plan_text, ctypes.c_size_t(len(plan_text)), None))
assert len(plan_text.value) == needed.value and b"causal" in plan_text.value
again = tensor(poisoned(size), batch, length, heads, dim)
checked(library.attn_run_forward(plan, by_reference(inputs), by_reference(made("outputs", o=again)), None))
assert list(again.kept[0]) == results[0][0]  # bit for bit, without NaN
library.attn_plan_free(plan)

# A refusal says what and why, and writes nothing.
poison = tensor(poisoned(size), batch, length, heads, dim)
try:
    forward(made("problem", text=b"cusal"), inputs, made("outputs", o=poison))
except RuntimeError as error:
    assert str(error).startswith("invalid_argument") and "cusal" in str(error), error
else:
    raise AssertionError("a problem that no one knows was computed")
assert all(map(math.isnan, poison.kept[0]))
print("attn", library.attn_version().decode(), "by ctypes: correct")
