// The text form of expressions, and every reader of the trees that it gives (docs/expressions.md).
#include <array>

#include "attn/expr.hpp"
#include "fuzz.hpp"

namespace {

namespace expr = attn::expr;
namespace fuzz = attn::fuzz;
using attn::ErrorCode;
using attn::tensor;

const std::vector<expr::Buffer>& buffers() {
  static const std::array<float, 12> slopes{};
  static const std::array<std::int32_t, 8> ids{};
  static const std::vector<expr::Buffer> all{{"w", tensor(slopes.data(), {3, 4})},
                                             {"a", tensor(slopes.data(), {12})},
                                             {"ids", tensor(ids.data(), {8})},
                                             {"offset", tensor(&ids[3], {})},
                                             {"x", tensor(&slopes[3], {})}};
  return all;
}

void read_everything(const expr::Expr& e) {
  const std::string printed = expr::to_string(e);
  fuzz::require(expr::same(expr::parse(printed, buffers()), e),
                "a printed expression reads back as another one");
  expr::to_cuda(e);
  for (const std::int32_t at : {0, 7, INT32_MAX, INT32_MIN}) {
    const expr::Point point{1.5, at, 3, 1, 2, 9, 8};
    expr::evaluate<float>(e, point);
    expr::evaluate<double>(e, point);
  }
  if (e.type() == expr::Type::boolean && !expr::depends_on(e, expr::Op::score)) {
    const expr::Tile tile{0, 3, 2, 5, 0, 0, 1, 8, 8};
    const expr::Coverage coverage = expr::classify(e, tile);
    for (std::int32_t query = tile.query_min; query <= tile.query_max; ++query) {
      for (std::int32_t key = tile.key_min; key <= tile.key_max; ++key) {
        const expr::Point point{.query = query, .key = key, .seqlen_q = 8, .seqlen_k = 8};
        const bool seen = expr::evaluate<float>(e, point) != 0;
        fuzz::require(
            coverage == expr::Coverage::mixed || seen == (coverage == expr::Coverage::full),
            "classify contradicts evaluate");
      }
    }
  }
  if (e.type() == expr::Type::float32) {
    // The tree of a derivative may pass the limit on nodes.
    fuzz::accept_or_refuse({ErrorCode::invalid_argument}, [&] {
      expr::derivative(e);
      expr::load_derivatives(e, "w");
    });
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  expr::Expr e;
  fuzz::accept_or_refuse({ErrorCode::invalid_argument},
                         [&] { e = expr::parse(fuzz::text(data, size), buffers()); });
  if (!e.empty()) read_everything(e);
  return 0;
}
