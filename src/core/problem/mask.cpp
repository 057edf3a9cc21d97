// The shorthands for masks and scores of attn/mask.hpp, each as an ordinary expression.
#include "attn/mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attn/error.hpp"

namespace attn {
namespace {

using expr::Buffer;
using expr::Expr;
using expr::symbols;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Where the query stands among the keys.
const Expr& place(Alignment alignment) {
  switch (alignment) {
    case Alignment::bottom_right:
      return symbols().position;
    case Alignment::top_left:
      return symbols().query;
  }
  refuse(fmt::format("alignment is {}; accepted are the enumerators of Alignment",
                     static_cast<int>(alignment)));
}

// A query before the first key sees nothing: what is read at its position means nothing.
Expr among_keys(const Expr& mask, Alignment alignment) {
  return alignment == Alignment::bottom_right ? symbols().position >= 0 && mask : mask;
}

void require(const char* argument, const Tensor& tensor, bool fits, const char* accepted) {
  if (!fits) refuse(fmt::format("{}: {}; accepted is {}", argument, to_string(tensor), accepted));
}

// ids[at] or ids[batch, at].
Expr document_of(const char* name, const Tensor& ids, const Expr& at) {
  require(name, ids, ids.dtype == DType::i32 && (ids.rank == 1 || ids.rank == 2),
          "i32 [seqlen] or [batch, seqlen]");
  const Buffer buffer(name, ids);
  return ids.rank == 1 ? buffer[at] : buffer({symbols().batch, at});
}

std::int64_t blocks(std::int64_t seqlen, std::int64_t block) {
  return seqlen / block + (seqlen % block != 0 ? 1 : 0);
}

constexpr std::int32_t kWordBits = 32;  // bits of a word of a tree

}  // namespace

Expr causal(Alignment alignment) { return symbols().key <= place(alignment); }

Expr window(std::int32_t left, std::int32_t right, Alignment alignment) {
  // Differences are compared with the bounds, not sums with bounds, so that large bounds mean
  // "far" and cannot wrap.
  const Expr& key = symbols().key;
  Expr mask = true;
  if (left >= 0) mask = mask && place(alignment) - key <= left;
  if (right >= 0) mask = mask && key - place(alignment) <= right;
  return mask;
}

Expr prefix(std::int32_t n, Alignment alignment) {
  if (n < 0) refuse(fmt::format("prefix: n = {}; accepted is n >= 0", n));
  return symbols().key < n || causal(alignment);
}

Expr documents(const Tensor& ids, Alignment alignment) {
  const Expr same =
      document_of("ids", ids, place(alignment)) == document_of("ids", ids, symbols().key);
  return among_keys(same, alignment);
}

Expr documents(const Tensor& ids_q, const Tensor& ids_k) {
  const auto& s = symbols();
  return document_of("ids_q", ids_q, s.query) == document_of("ids_k", ids_k, s.key);
}

Expr tree_mask(const Tensor& words) {
  require("tree", words, words.dtype == DType::i32 && words.rank == 3,
          "i32 [batch, seqlen_q, ceil(seqlen_q / 32)]");
  const auto& s = symbols();
  const Expr draft = s.key - (s.seqlen_k - s.seqlen_q);
  const Expr word = Buffer("tree", words)({s.batch, s.query, draft / kWordBits});
  // First what needs no word: interval arithmetic then stops there.
  return draft < 0 || ((word >> draft % kWordBits) & 1) != 0;
}

std::vector<std::int32_t> tree_words(std::span<const std::int32_t> parents, std::int64_t seqlen_q) {
  const auto count = static_cast<std::int64_t>(parents.size());
  constexpr std::int64_t kMaxRows = 1 << 14;  // 32 MiB of words
  const std::int64_t rows = seqlen_q == 0 ? count : seqlen_q;
  if (rows < count || rows > kMaxRows) {
    refuse(
        fmt::format("tree_words: seqlen_q = {} for {} parents; accepted are rows for each, at "
                    "most {}",
                    seqlen_q, count, kMaxRows));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t parent = parents[static_cast<std::size_t>(i)];
    if (parent < -1 || parent >= i) {
      refuse(fmt::format("tree_words: parents[{}] = {}; accepted are -1 and tokens before it", i,
                         parent));
    }
  }
  const std::int64_t width = blocks(rows, kWordBits);
  std::vector<std::int32_t> words(static_cast<std::size_t>(rows * width));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = words.begin() + i * width;
    const std::int32_t parent = parents[static_cast<std::size_t>(i)];
    if (parent >= 0) std::copy_n(words.begin() + parent * width, width, row);
    row[i / kWordBits] |= static_cast<std::int32_t>(std::uint32_t{1} << (i % kWordBits));
  }
  return words;
}

BlockMask::BlockMask(std::int64_t blocks_q, std::int64_t blocks_k, std::int32_t block_q,
                     std::int32_t block_k)
    : blocks_q_(blocks_q), blocks_k_(blocks_k), block_q_(block_q), block_k_(block_k) {
  if (blocks_q < 0 || blocks_k < 0 || block_q < 1 || block_k < 1) {
    refuse(
        fmt::format("BlockMask: {} x {} blocks of {} x {}; counts must not be negative, sizes "
                    "must be positive",
                    blocks_q, blocks_k, block_q, block_k));
  }
  // A byte each: 1 GiB, as for 2^20 keys in blocks of 32.
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;
  if (blocks_k > 0 && blocks_q > kMaxBlocks / blocks_k) {
    refuse(fmt::format("BlockMask: {} x {} blocks; accepted are at most {} blocks of a byte each",
                       blocks_q, blocks_k, kMaxBlocks));
  }
  try {
    bytes_ =
        std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(blocks_q * blocks_k));
  } catch (const std::exception&) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("BlockMask: {} x {} blocks need {} bytes, which could not be allocated",
                            blocks_q, blocks_k, blocks_q * blocks_k));
  }
}

BlockMask BlockMask::butterfly(std::int64_t rows, std::int64_t seqlen_k, std::int32_t block) {
  if (rows < 0 || seqlen_k < 0 || block < 1) {
    refuse(
        fmt::format("butterfly: rows = {}, seqlen_k = {}, block = {}; lengths must not be "
                    "negative, block must be positive",
                    rows, seqlen_k, block));
  }
  BlockMask mask(blocks(rows, block), blocks(seqlen_k, block), block, block);
  for (std::int64_t i = 0; i < mask.blocks_q_; ++i) {
    if (i < mask.blocks_k_) mask.at(i, i) = 1;
    for (std::int64_t bit = 1; bit < std::max(mask.blocks_q_, mask.blocks_k_); bit *= 2) {
      if ((i ^ bit) < mask.blocks_k_) mask.at(i, i ^ bit) = 1;
    }
  }
  return mask;
}

std::uint8_t& BlockMask::at(std::int64_t i, std::int64_t j) {
  if (i < 0 || i >= blocks_q_ || j < 0 || j >= blocks_k_) {
    refuse(fmt::format("BlockMask::at: block ({}, {}); accepted are blocks below ({}, {})", i, j,
                       blocks_q_, blocks_k_));
  }
  return (*bytes_)[static_cast<std::size_t>(i * blocks_k_ + j)];
}

std::uint8_t BlockMask::at(std::int64_t i, std::int64_t j) const {
  return const_cast<BlockMask&>(*this).at(i, j);
}

double BlockMask::density() const noexcept {
  if (bytes_->empty()) return 0;
  const auto zeros = std::count(bytes_->begin(), bytes_->end(), std::uint8_t{0});
  return 1.0 - static_cast<double>(zeros) / static_cast<double>(bytes_->size());
}

Expr BlockMask::mask(Alignment alignment) const {
  const Buffer buffer("block_mask", tensor(bytes_->data(), DType::u8, {blocks_q_, blocks_k_}),
                      bytes_);
  const Expr mask = buffer({place(alignment) / block_q_, symbols().key / block_k_}) != 0;
  // A negative position lies in a negative block, which reads 0, but for a dimension of size 1.
  return blocks_q_ == 1 ? among_keys(mask, alignment) : mask;
}

Expr softcap(float cap) {
  if (!(cap > 0) || !std::isfinite(cap)) {
    refuse(fmt::format("softcap: cap = {}; accepted are finite values above 0", cap));
  }
  return cap * tanh(symbols().score / cap);
}

Expr alibi(const Tensor& slopes, Alignment alignment) {
  require("slopes", slopes, slopes.dtype == DType::f32 && slopes.rank == 1, "f32 [heads_q]");
  const auto& s = symbols();
  return s.score - Buffer("slopes", slopes)[s.head] * abs(place(alignment) - s.key);
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  constexpr std::int64_t kMaxHeads = std::numeric_limits<std::int32_t>::max();  // of a problem
  if (heads < 1 || heads > kMaxHeads) {
    refuse(fmt::format("alibi_slopes: heads = {}; accepted are 1 to {}", heads, kMaxHeads));
  }
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < heads; ++h) {
    slopes.push_back(static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads))));
  }
  return slopes;
}

Expr bias(const Tensor& bias, Alignment alignment) {
  const bool loads =
      bias.dtype == DType::f32 || bias.dtype == DType::bf16 || bias.dtype == DType::f16;
  require("bias", bias, loads && (bias.rank == 2 || bias.rank == 4),
          "f32, bf16 or f16 [query, key] or [batch, head, query, key]");
  const auto& s = symbols();
  const Buffer buffer("bias", bias);
  const Expr& row = place(alignment);
  return s.score + (bias.rank == 2 ? buffer({row, s.key}) : buffer({s.batch, s.head, row, s.key}));
}

Expr compose(const Expr& outer, const Expr& inner) {
  if (outer.empty()) return inner;
  if (inner.empty()) return outer;
  return substitute(outer, expr::Op::score, inner);
}

}  // namespace attn
