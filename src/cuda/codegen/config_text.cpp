#include "cuda/codegen/config_text.hpp"

#include <fmt/format.h>

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
ConfigText::ConfigText(std::string_view element) : text_("struct Config {\n") {
  type("Element", element);
}

void ConfigText::type(std::string_view name, std::string_view value) {
  text_ += fmt::format("  using {} = {};\n", name, value);
}

void ConfigText::constant(std::string_view type, std::string_view name, std::string_view value) {
  text_ += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
}

}  // namespace attn::cuda
