#include "core/text/token.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::core {

void Token::refuse(std::string_view accepted) const {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("descriptor token '{}' in '{}' cannot be read; accepted is {}",
                          echo(text), echo(descriptor), accepted));
}

void Token::take_no_value() const {
  if (!value.empty()) refuse(fmt::format("'{}' without a value", name));
}

std::int64_t Token::size() const {
  constexpr std::string_view kAccepted = "a whole number, 0 or more";
  const auto result = number<std::int64_t>(kAccepted);
  if (result < 0) refuse(kAccepted);
  return result;
}

std::vector<std::int64_t> Token::shape(std::string_view part) const {
  constexpr std::string_view kAccepted =
      "1 to 4 sizes joined by x whose product fits 2^62, as in 2x8x64";
  std::vector<std::int64_t> sizes;
  std::int64_t product = 1;
  for (const std::string_view number_text : split(part, 'x')) {
    sizes.push_back(number<std::int64_t>(number_text, kAccepted));
    if (sizes.back() < 0 || sizes.size() > kMaxRank) refuse(kAccepted);
    if (product > (std::int64_t{1} << 62) / std::max<std::int64_t>(1, sizes.back())) {
      refuse(kAccepted);
    }
    product *= std::max<std::int64_t>(1, sizes.back());
  }
  return sizes;
}

std::string_view Token::parenthesised(std::string_view accepted) const {
  if (value.size() < 2 || value.front() != '(' || value.back() != ')') refuse(accepted);
  return value.substr(1, value.size() - 2);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

Tensor shape_only(DType dtype, const std::vector<std::int64_t>& shape) {
  Tensor out;
  out.dtype = dtype;
  out.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    out.shape[axis] = shape[axis];
    out.strides[axis] = stride;
    stride *= shape[axis];
  }
  return out;
}

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace attn::core
