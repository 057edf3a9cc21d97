"""Prints the warpgroup products (PTX ISA, "wgmma") that the prototype uses as one header.

  python3 products.py > products.cuh

ProductSS<N, kTransposeA, kTransposeB>: A and B in shared memory. ProductRS<N, kTransposeB>: A in registers. A transposed
operand lies in memory with its long side along the product's rows (A) or columns (B)."""

DESCRIPTOR_HIGH = "0x40000040"  # 128-byte swizzle, 1024 bytes between groups of eight rows


def numbers(first, count):
    return ", ".join(f"%{first + i}" for i in range(count))


def product(columns, transpose_a, transpose_b):
    """transpose_a None: A is in registers."""
    count = columns // 2
    registers = transpose_a is None
    b = count + (4 if registers else 1)
    name = f"ProductRS<{columns}, {transpose_b}>" if registers else f"ProductSS<{columns}, {transpose_a}, {transpose_b}>"
    a_type = "const unsigned*" if registers else "unsigned"
    a_text = "{" + numbers(count, 4) + "}" if registers else "da"
    a_move = "" if registers else f"mov.b64 da, {{%{count}, {DESCRIPTOR_HIGH}}};\\n"
    flags = f"1, 1, {transpose_b}" if registers else f"1, 1, {transpose_a}, {transpose_b}"
    inputs = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if registers else '"r"(a)'
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""template <>
struct {name} {{
  static __device__ __forceinline__ void run(float (&d)[{count}], {a_type} a, unsigned b, int add) {{
    asm volatile(
        "{{\\n.reg .pred p;\\n.reg .b64 da, db;\\n"
        "setp.ne.b32 p, %{b + 1}, 0;\\nmov.b64 db, {{%{b}, {DESCRIPTOR_HIGH}}};\\n{a_move}"
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        "{{{numbers(0, count)}}}, {a_text}, db, p, {flags};\\n}}"
        : {outputs}
        : {inputs}, "r"(b), "r"(add));
  }}
}};
"""


print("#pragma once\n\nnamespace attn::device {\n")
print("template <int kColumns, int kTransposeA, int kTransposeB>\nstruct ProductSS;")
print("template <int kColumns, int kTransposeB>\nstruct ProductRS;\n")
for columns in (64, 128):
    for a, b in ((0, 0), (0, 1), (1, 1), (None, 1)):
        print(product(columns, a, b))
print("}  // namespace attn::device")
