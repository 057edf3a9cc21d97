// Writes the C++ source that defines kCompiledExpressions (compiled.hpp). Argument: its path.
#include <cstdio>
#include <fstream>

#include "cases.hpp"
#include "cuda/codegen/expression_text.hpp"

namespace {

constexpr const char* kHead = R"(
#include <cstring>
#include "compiled.hpp"
#define __device__
#define __forceinline__ inline
// A warp of one lane: vectors are loaded on a GPU, and its text must compile.
struct { unsigned x; } constexpr threadIdx{0};
inline unsigned __shfl_xor_sync(unsigned, unsigned x, int) { return x; }
)";

constexpr const char* kCalls = R"(
namespace attn::test {
template <class Expressions>
Expressions from(const std::byte* bytes) {
  Expressions expressions;
  std::memcpy(static_cast<void*>(&expressions), bytes, sizeof(expressions));
  return expressions;
}
template <class E>
constexpr Compiled kCalls{
    [](const std::byte* e, const expr::Point& at) {
      return from<E>(e).mask(at.query, at.key, at.batch, at.head, at.seqlen_q, at.seqlen_k);
    },
    [](const std::byte* e, const expr::Point& at) {
      // A key is some steps after another.
      return E::kScoreFactor * from<E>(e).score(static_cast<float>(at.score), at.query, at.key - 3,
                                                at.batch, at.head, at.seqlen_q, at.seqlen_k, 3);
    },
    [](const std::byte* e, const expr::Point& at, float addend) -> Exponent {
      if constexpr (E::kHasExponent) {
        const E expressions = from<E>(e);
        typename E::RowShared shared;
        if constexpr (E::RowShared::kCount > 0) {
          expressions.share_row(shared, at.query, at.batch, at.head, at.seqlen_q, at.seqlen_k);
        }
        int room = 0x7fffffff, least = 0;
        const float y = expressions.exponent(shared, addend, room, static_cast<float>(at.score),
                                             at.query, at.key - 3, at.batch, at.head, at.seqlen_q,
                                             at.seqlen_k, 3);
        if constexpr (E::kHasSmallTanh) {
          const float end = expressions.small_tanh.least;
          least = __builtin_bit_cast(int, end);
        }
        return {y, true, room >= least};
      }
      return {};
    },
    [](const std::byte* e, const expr::Tile& t) {
      return static_cast<int>(from<E>(e).classify(t.query_min, t.query_max, t.key_min, t.key_max,
                                                  t.batch, t.head_min, t.head_max, t.seqlen_q,
                                                  t.seqlen_k));
    },
    sizeof(E)};
extern const Compiled kCompiledExpressions[] = {
)";

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: generate FILE\n"), 1;
  std::ofstream out(argv[1]);
  out << kHead;
  const auto all = attn::test::device_expressions();
  for (std::size_t i = 0; i < all.size(); ++i) {
    out << "#define Expressions Expressions" << i << "\n"
        << attn::cuda::print_expressions(all[i].mask, all[i].score) << "#undef Expressions\n";
  }
  out << kCalls;
  for (std::size_t i = 0; i < all.size(); ++i) {
    out << "    kCalls<device::Expressions" << i << ">,\n";
  }
  out << "};\nextern const std::size_t kNumCompiledExpressions = " << all.size()
      << ";\n}  // namespace attn::test\n";
  return out.flush() ? 0 : 1;
}
