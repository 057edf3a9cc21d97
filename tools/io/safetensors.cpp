#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "attn/error.hpp"
#include "io/output_file.hpp"
#include "io/safetensors_header.hpp"

namespace attn::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read without byte swapping");

// The header of the largest published models takes well under 1 MiB.
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kLengthBytes = sizeof(std::uint64_t);

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  if (file_.size() < kLengthBytes) {
    fail(path, fmt::format("has {} bytes, but a safetensors file begins with the 8-byte length of "
                           "its header",
                           file_.size()));
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  file_.read(0, length_bytes);
  const auto length = std::bit_cast<std::uint64_t>(length_bytes);
  if (length > file_.size() - kLengthBytes || length > kMaxHeaderBytes) {
    fail(path, fmt::format("the header claims {} bytes, but at most {} are accepted in this file",
                           length, std::min(file_.size() - kLengthBytes, kMaxHeaderBytes)));
  }
  std::string json(length, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  data_ = kLengthBytes + length;
  SafetensorsHeader header = parse_safetensors_header(json, file_.size() - data_);
  if (!header.error.empty()) fail(path, header.error);
  entries_ = std::move(header.entries);
  std::sort(entries_.begin(), entries_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const SafetensorsEntry& e, std::string_view n) { return e.name < n; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

bool SafetensorsFile::contains(std::string_view name) const noexcept {
  return find(name) != nullptr;
}

Array SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    std::string names;
    for (const SafetensorsEntry& e : entries_) names += (names.empty() ? "" : ", ") + e.name;
    fail(file_.path(), fmt::format("has no tensor \"{}\"; it holds: {}", printable(name),
                                   names.empty() ? "none" : printable(names)));
  }
  const SafetensorsType* type = find_safetensors_type(entry->dtype);
  if (!type->readable) {
    fail(file_.path(), fmt::format("tensor \"{}\": dtype is {}, but F64, F32, BF16, F16, I64, I32 "
                                   "and U8 are accepted",
                                   printable(name), entry->dtype));
  }
  if (entry->shape.empty() || entry->shape.size() > kMaxRank) {
    fail(file_.path(), fmt::format("tensor \"{}\": rank is {}, but 1 to {} are accepted",
                                   printable(name), entry->shape.size(), kMaxRank));
  }
  Array array(type->dtype, entry->shape);
  file_.read(data_ + entry->begin, {array.data(), array.bytes()});
  return array;
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__" || header.contains(name)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor name is \"{}\", but names are unique and not __metadata__",
                              printable(name)));
    }
    const std::uint64_t end =
        offset + static_cast<std::uint64_t>(tensor.size()) * size_of(tensor.dtype);
    header[name] = {
        {"dtype", safetensors_name(tensor.dtype)},
        {"shape", std::vector(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that data of every type lies aligned

  OutputFile file(path);
  const auto length =
      std::bit_cast<std::array<std::byte, kLengthBytes>>(std::uint64_t{text.size()});
  file.write(length);
  file.write(text);
  for (const auto& [name, tensor] : tensors) {
    const Array contiguous = convert(tensor, tensor.dtype);
    file.write(std::span<const std::byte>(contiguous.data(), contiguous.bytes()));
  }
  file.commit();
}

}  // namespace attn::io
