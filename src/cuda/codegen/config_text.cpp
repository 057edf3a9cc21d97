#include "cuda/codegen/config_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"

namespace attn::cuda {

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "BFloat16";
    case DType::f16:
      return "Float16";
    case DType::f32:
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      return "Float32";
  }
  return {};
}

std::string_view float8_element(CacheType type) {
  return type == CacheType::e5m2 ? "Float8E5M2" : "Float8E4M3";
}

ConfigText::ConfigText(DType dtype) : ConfigText(element_type(dtype)) {}
ConfigText::ConfigText(std::string_view element) { type("Element", element); }

void ConfigText::type(std::string_view name, std::string_view value) {
  lines_.emplace_back(name, fmt::format("  using {} = {};\n", name, value));
}

void ConfigText::constant(std::string_view type, std::string_view name, std::string_view value) {
  lines_.emplace_back(name, fmt::format("  static constexpr {} {} = {};\n", type, name, value));
}

std::string ConfigText::text() const {
  std::string text = "struct Config {\n";
  for (const auto& [name, line] : lines_) text += line;
  return text + "};\n";
}

std::string ConfigText::text_of(const std::vector<std::string_view>& names) const {
  std::string text = "struct Config {\n";
  for (const std::string_view name : names) {
    const auto found = std::ranges::find(
        lines_, name, [](const auto& line) -> const std::string& { return line.first; });
    if (found == lines_.end()) {
      throw Error(ErrorCode::internal, fmt::format("no constant {} is printed", name));
    }
    text += found->second;
  }
  return text + "};\n";
}

}  // namespace attn::cuda
