#include "cuda/codegen/wgmma_text.hpp"

#include <fmt/format.h>

#include <string_view>

namespace attn::cuda {
namespace {

// "%first, %first+1, ..." of asm operands.
std::string operands(int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}%{}", i > 0 ? ", " : "", first + i);
  return text;
}

// High word of every descriptor: 128-byte swizzle, 1024 bytes between groups of eight rows.
constexpr std::string_view kDescriptorHigh = "0x40000040";

// How the operands lie.
struct Operands {
  std::string_view name;
  bool a_in_registers;
  std::string_view transposed;  // the flags, of A if it is in shared memory, and B
};
constexpr Operands kSS{"ProductSS", false, "0, 0"}, kRS{"ProductRS", true, "1"},
    kST{"ProductST", false, "0, 1"}, kTS{"ProductTS", false, "1, 0"},
    kTT{"ProductTT", false, "1, 1"};

// What is multiplied: the device's type, those of A and B in PTX, steps of k, and what follows the
// scales.
struct Elements {
  std::string_view name, ptx;
  int depth;
  std::string flags;
};

std::string print_product(const Elements& elements, int columns, const Operands& kind) {
  const bool a_in_registers = kind.a_in_registers;
  const int count = columns / 2;
  const int a = count, b = a + (a_in_registers ? 4 : 1), add = b + 1;
  std::string accumulators;
  for (int i = 0; i < count; ++i) {
    accumulators += fmt::format("{}\"+f\"(d[{}])", i > 0 ? ", " : "", i);
  }
  const std::string descriptor_a =
      a_in_registers ? ""
                     : fmt::format("\"mov.b64 da, {{%{}, {}}};\\n\"\n        ", a, kDescriptorHigh);
  return fmt::format(
      "template <>\n"
      "struct {0}<{1}, {2}> {{\n"
      "  static __device__ __forceinline__ void run(float (&d)[{3}], {4} a, unsigned b, int add) "
      "{{\n"
      "    asm volatile(\n"
      "        \"{{\\n.reg .pred p;\\n.reg .b64 da, db;\\n\"\n"
      "        \"setp.ne.b32 p, %{5}, 0;\\nmov.b64 db, {{%{6}, {7}}};\\n\"\n"
      "        {8}\"wgmma.mma_async.sync.aligned.m64n{2}k{15}.f32.{9} \"\n"
      "        \"{{{10}}}, {11}, db, p, 1, 1{12};\\n}}\"\n"
      "        : {13}\n"
      "        : {14}, \"r\"(b), \"r\"(add));\n"
      "  }}\n"
      "}};\n",
      kind.name, elements.name, columns, count, a_in_registers ? "const unsigned*" : "unsigned",
      add, b, kDescriptorHigh, descriptor_a, elements.ptx, operands(0, count),
      a_in_registers ? "{" + operands(a, 4) + "}" : std::string("da"), elements.flags, accumulators,
      a_in_registers ? R"("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))" : R"("r"(a))",
      elements.depth);
}
std::string print_product(DType dtype, int columns, const Operands& kind) {
  const std::string flags = fmt::format(", {}", kind.transposed);
  if (dtype == DType::bf16)
    return print_product({"BFloat16", "bf16.bf16", 16, flags}, columns, kind);
  return print_product({"Float16", "f16.f16", 16, flags}, columns, kind);
}

}  // namespace

std::string print_product_ss(DType dtype, int columns) {
  return print_product(dtype, columns, kSS);
}
std::string print_product_rs(DType dtype, int columns) {
  return print_product(dtype, columns, kRS);
}
std::string print_product_st(DType dtype, int columns) {
  return print_product(dtype, columns, kST);
}
std::string print_product_ts(DType dtype, int columns) {
  return print_product(dtype, columns, kTS);
}
std::string print_product_tt(DType dtype, int columns) {
  return print_product(dtype, columns, kTT);
}

std::string print_product_float8(std::string_view element, std::string_view formats, int columns) {
  return print_product({element, formats, 32, ""}, columns, kSS);
}
std::string print_product_rs_float8(std::string_view element, std::string_view formats,
                                    int columns) {
  return print_product({element, formats, 32, ""}, columns, kRS);
}
std::string print_product_with_sums(std::string_view element, std::string_view formats,
                                    int columns) {
  constexpr int kSums = 4;
  const int count = columns / 2 + kSums;
  std::string accumulators;
  for (int i = 0; i < columns / 2; ++i) accumulators += fmt::format("\"+f\"(d[{}]), ", i);
  for (int i = 0; i < kSums; ++i) {
    accumulators += fmt::format("{}\"+f\"(sums[{}])", i > 0 ? ", " : "", i);
  }
  return fmt::format(
      "template <>\n"
      "struct ProductWithSums<{0}, {1}> {{\n"
      "  static __device__ __forceinline__ void run(float (&d)[{2}], float (&sums)[{3}],\n"
      "                                             const unsigned* a, unsigned b, int add) {{\n"
      "    asm volatile(\n"
      "        \"{{\\n.reg .pred p;\\n.reg .b64 db;\\n\"\n"
      "        \"setp.ne.b32 p, %{4}, 0;\\nmov.b64 db, {{%{5}, {6}}};\\n\"\n"
      "        \"wgmma.mma_async.sync.aligned.m64n{7}k32.f32.{8} \"\n"
      "        \"{{{9}}}, {{{10}}}, db, p, 1, 1;\\n}}\"\n"
      "        : {11}\n"
      "        : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b), \"r\"(add));\n"
      "  }}\n"
      "}};\n",
      element, columns, columns / 2, kSums, count + 5, count + 4, kDescriptorHigh, columns + 8,
      formats, operands(0, count), operands(count, 4), accumulators);
}

}  // namespace attn::cuda
