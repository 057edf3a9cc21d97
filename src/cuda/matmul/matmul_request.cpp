#include "cuda/matmul/matmul_request.hpp"

#include <fmt/format.h>

#include <charconv>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::cuda {

MatmulRequest parse_matmul_request(std::string_view text) {
  const std::size_t slash = text.find('/');
  MatmulRequest request{text.substr(0, slash), {}};
  if (slash == std::string_view::npos) return request;
  std::string_view rest = text.substr(slash + 1);
  bool read = true;
  const auto number = [&](std::string_view after) {
    if (!rest.starts_with(after)) return 0;
    int value = 0;
    const auto [end, error] =
        std::from_chars(rest.data() + after.size(), rest.data() + rest.size(), value);
    read = read && error == std::errc() && value > 0;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return value;
  };
  request.shape.rows = number("");
  request.shape.columns = number("x");
  if (rest.starts_with("_s")) request.shape.splits = number("_s");
  if (rest.starts_with("_w")) request.shape.warps = number("_w");
  if (rest.starts_with("_k")) request.shape.depth = number("_k");
  if (rest.starts_with("_r")) request.shape.stages = number("_r");
  if (!read || request.shape.columns == 0 || !rest.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the shape of rung '{}' is '{}'; accepted is ROWSxCOLUMNS_sPARTS, as in "
                    "64x192_s8, and of pipelined ROWSxCOLUMNS_wWARPS_kSTEPS_rSTAGES, of which "
                    "the last three may be left out",
                    core::echo(request.rung), core::echo(text.substr(slash + 1))));
  }
  return request;
}

}  // namespace attn::cuda
