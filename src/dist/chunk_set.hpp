// Which chunks of keys somebody sees.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace attn::dist {

class ChunkSet {
 public:
  explicit ChunkSet(std::size_t chunks) : chunks_(chunks), words_((chunks + kBits - 1) / kBits) {}

  void clear() { std::fill(words_.begin(), words_.end(), 0); }

  void insert(std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end;) {
      const std::size_t bits = std::min(end, (at / kBits + 1) * kBits) - at;
      words_[at / kBits] |= (~std::uint64_t{0} >> (kBits - bits)) << (at % kBits);
      at += bits;
    }
  }

  void insert(const ChunkSet& other) {
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }

  bool contains(std::size_t chunk) const {
    return (words_[chunk / kBits] >> (chunk % kBits) & 1) != 0;
  }

  // visit(begin, end) of the chunks that follow each other, in order.
  template <class Visit>
  void visit_ranges(const Visit& visit) const {
    for (std::size_t begin = next(0, true); begin < chunks_;) {
      const std::size_t end = next(begin, false);
      visit(begin, end);
      begin = next(end, true);
    }
  }

 private:
  static constexpr std::size_t kBits = 64;

  // The first chunk from `from` on that is in the set, or is not; the number of chunks if none is.
  std::size_t next(std::size_t from, bool in_set) const {
    for (std::size_t at = from; at < chunks_; at = (at / kBits + 1) * kBits) {
      const std::uint64_t word = in_set ? words_[at / kBits] : ~words_[at / kBits];
      const std::uint64_t rest = word >> (at % kBits);
      if (rest != 0) {
        return std::min(chunks_, at + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
    return chunks_;
  }

  std::size_t chunks_;
  std::vector<std::uint64_t> words_;
};

}  // namespace attn::dist
