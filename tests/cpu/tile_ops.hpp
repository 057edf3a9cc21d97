// What the tests of the tile verbs share: every table that this machine can run, and fresh aligned
// data.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workspace.hpp"

#if defined(__x86_64__)
namespace attn::cpu {
extern const TileOps kAvx512Ops[2];
}
#endif

namespace attn::cpu::testing {

struct Table {
  InstructionSet isa;
  DType operand;
  const TileOps* ops;
  const char* variant = "";
};

inline std::vector<Table> tables() {
  std::vector<Table> list;
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (!info.available) continue;
#if defined(__x86_64__)
    // Whichever of the two this CPU would take.
    if (info.isa == InstructionSet::avx512) {
      list.push_back({info.isa, DType::f32, &kAvx512Ops[0], "_exp2_by_rounding"});
      list.push_back({info.isa, DType::f32, &kAvx512Ops[1], "_exp2_by_reduction"});
      continue;
    }
#endif
    list.push_back({info.isa, DType::f32, &tile_ops(info.isa, DType::f32)});
    if (has_bf16_products(info.isa, false)) {
      list.push_back({info.isa, DType::bf16, &tile_ops(info.isa, DType::bf16)});
    }
  }
  return list;
}

inline std::vector<Table> backward_tables() {
  std::vector<Table> list = tables();
  std::erase_if(list, [](const Table& t) { return !has_backward(*t.ops); });
  return list;
}

// The elementwise verbs of the backward pass, decoding and conversion know f32 only.
inline std::vector<Table> f32_tables() {
  std::vector<Table> list = tables();
  std::erase_if(list, [](const Table& t) { return t.operand != DType::f32; });
  return list;
}

inline std::vector<Table> decode_bf16_tables() {
  std::vector<Table> list = tables();
  std::erase_if(list, [](const Table& t) { return t.ops->decode.scores == nullptr; });
  return list;
}

inline std::string table_name(const ::testing::TestParamInfo<Table>& info) {
  return std::string(name(info.param.isa)) + "_" + std::string(name(info.param.operand)) +
         info.param.variant;
}

// An aligned array, poisoned with NaN.
class Floats {
 public:
  explicit Floats(std::size_t count) : count_(count), memory_(allocate(count * sizeof(float))) {
    for (std::size_t i = 0; i < count; ++i) data()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  float* data() { return reinterpret_cast<float*>(memory_.get()); }
  float& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_;
  AlignedBytes memory_;
};

class TileTest : public ::testing::TestWithParam<Table> {
 protected:
  const TileOps& ops() const { return *GetParam().ops; }
  const TileState state_{ops()};
  bool bf16() const { return GetParam().operand == DType::bf16; }

  float normal() { return normal_(random_); }
  void fill(Floats& x) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal();
  }
  // The value as the operand type holds it.
  float rounded(float x) const { return bf16() ? static_cast<float>(bfloat16(x)) : x; }

  std::mt19937 random_{20261121};
  std::normal_distribution<float> normal_;
};

// Rows of f32 values (rounded to bf16 first when the operand is bf16) in the dtype that a table
// packs from.
struct SourceRows {
  SourceRows(int count, int dim, bool bf16, const std::vector<float>& values)
      : f32(values), dtype(bf16 ? DType::bf16 : DType::f32) {
    if (bf16) {
      for (float x : values) b16.emplace_back(x);
    }
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i) * static_cast<std::size_t>(dim);
      rows.push_back(bf16 ? reinterpret_cast<const std::byte*>(b16.data() + at)
                          : reinterpret_cast<const std::byte*>(f32.data() + at));
    }
  }
  std::vector<float> f32;
  std::vector<bfloat16> b16;
  std::vector<const std::byte*> rows;
  DType dtype;
};

}  // namespace attn::cpu::testing
