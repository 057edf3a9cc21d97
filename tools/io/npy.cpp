#include "io/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "io/file.hpp"
#include "io/output_file.hpp"

namespace attn::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read without byte swapping");

constexpr std::string_view kMagic = "\x93NUMPY";
// A header of rank 4 takes under 200 bytes; NumPy pads to 64 and itself reads no more than 10,000.
constexpr std::uint64_t kMaxNpyHeaderBytes = 10'000;

struct NpyType {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<NpyType, 6> kNpyTypes{{{"<f2", DType::f16},
                                            {"<f4", DType::f32},
                                            {"<f8", DType::f64},
                                            {"<i4", DType::i32},
                                            {"<i8", DType::i64},
                                            {"|u1", DType::u8}}};

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Reads the Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }: a dict of
// the three keys in any order. Each function returns false where the text differs.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  std::optional<Header> parse() {
    if (!take('{')) return std::nullopt;
    bool descr = false, order = false, shape = false;
    while (!take('}')) {
      std::string key;
      if (!string(key) || !take(':')) return std::nullopt;
      bool* seen = nullptr;
      bool valid = false;
      if (key == "descr") {
        seen = &descr;
        valid = string(header_.descr);
      } else if (key == "fortran_order") {
        seen = &order;
        valid = boolean(header_.fortran_order);
      } else if (key == "shape") {
        seen = &shape;
        valid = tuple(header_.shape);
      }
      if (!valid || *seen) return std::nullopt;
      *seen = true;
      if (!take(',') && !at('}')) return std::nullopt;
    }
    skip_space();
    if (!rest_.empty() || !descr || !order || !shape) return std::nullopt;
    return header_;
  }

 private:
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
  }
  bool at(char c) {
    skip_space();
    return !rest_.empty() && rest_.front() == c;
  }
  bool take(char c) {
    if (!at(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool string(std::string& value) {
    const char quote = at('"') ? '"' : '\'';
    if (!take(quote)) return false;
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return false;
    value = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return true;
  }
  bool boolean(bool& value) {
    value = take("True");
    return value || take("False");
  }
  bool number(std::int64_t& value) {
    skip_space();
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }
  bool tuple(std::vector<std::int64_t>& values) {
    values.clear();
    if (!take('(')) return false;
    while (!take(')')) {
      if (!number(values.emplace_back())) return false;
      if (!take(',') && !at(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
  Header header_;
};

// The type that stands for dtype in the file at `path`.
const NpyType& npy_type(const std::filesystem::path& path, DType dtype) {
  const auto* type = std::find_if(kNpyTypes.begin(), kNpyTypes.end(),
                                  [dtype](const NpyType& t) { return t.dtype == dtype; });
  if (type == kNpyTypes.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: dtype is {}, but .npy holds f16, f32, f64, i32, i64 and u8; "
                            "safetensors holds bf16 as well",
                            printable(path.native()), name(dtype)));
  }
  return *type;
}

}  // namespace

Array read_npy(const std::filesystem::path& path) {
  const InputFile file(path);
  // Magic, version, and a header length of 2 bytes (1.0) or 4 (2.0, 3.0).
  std::array<char, 12> prefix{};
  const std::size_t present = std::min<std::size_t>(prefix.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(prefix).first(present)));
  const int version = static_cast<unsigned char>(prefix[6]);
  const std::size_t start = version == 1 ? 10 : 12;
  if (present < start || std::string_view(prefix.data(), kMagic.size()) != kMagic) {
    fail(path, "does not begin as an .npy file");
  }
  if (version < 1 || version > 3 || prefix[7] != 0) {
    fail(path, fmt::format("has .npy version {}.{}, but 1.0, 2.0 and 3.0 are accepted", version,
                           static_cast<unsigned char>(prefix[7])));
  }
  std::uint32_t length = 0;
  std::memcpy(&length, prefix.data() + 8, start - 8);
  if (length > file.size() - start || length > kMaxNpyHeaderBytes) {
    fail(path, fmt::format("the header claims {} bytes, but at most {} are accepted in this file",
                           length, std::min(file.size() - start, kMaxNpyHeaderBytes)));
  }
  std::string text(length, '\0');
  file.read(start, std::as_writable_bytes(std::span(text)));
  const std::optional<Header> header = HeaderParser(text).parse();
  if (!header) {
    fail(path, fmt::format("the header is \"{}\", but a dict of descr, fortran_order and shape is "
                           "expected",
                           printable(text)));
  }
  const auto* type = std::find_if(kNpyTypes.begin(), kNpyTypes.end(),
                                  [&](const NpyType& t) { return t.descr == header->descr; });
  if (type == kNpyTypes.end()) {
    fail(path, fmt::format("descr is \"{}\", but <f2, <f4, <f8, <i4, <i8 and |u1 are accepted",
                           printable(header->descr)));
  }
  if (header->fortran_order) fail(path, "is in Fortran order, but only C order is accepted");
  const std::vector<std::int64_t>& shape = header->shape;
  if (shape.empty() || shape.size() > kMaxRank) {
    fail(path, fmt::format("rank is {}, but 1 to {} are accepted", shape.size(), kMaxRank));
  }
  const std::uint64_t data_bytes = file.size() - start - length;
  std::uint64_t bytes = size_of(type->dtype);
  const bool valid = fits(shape, bytes);
  for (const std::int64_t dimension : shape) bytes *= static_cast<std::uint64_t>(dimension);
  if (!valid || bytes != data_bytes) {
    fail(path, fmt::format("the header is \"{}\", which does not match the {} bytes of data that "
                           "the file holds",
                           printable(text), data_bytes));
  }
  Array array(type->dtype, shape);
  file.read(start + length, {array.data(), array.bytes()});
  return array;
}

void check_npy(const std::filesystem::path& path, DType dtype) { npy_type(path, dtype); }

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  const NpyType& type = npy_type(path, tensor.dtype);
  std::string shape;
  for (std::int32_t d = 0; d < tensor.rank; ++d) {
    shape += fmt::format("{}, ", tensor.shape[static_cast<std::size_t>(d)]);
  }
  if (tensor.rank > 1) shape.resize(shape.size() - 2);  // (n,) keeps its comma
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type.descr, shape);
  // Version 1.0: magic, version and length take 10 bytes; data begins at a multiple of 64.
  constexpr std::size_t kPrefix = 10;
  header.resize((kPrefix + header.size() + 1 + 63) / 64 * 64 - kPrefix - 1, ' ');
  header += '\n';
  const auto length = static_cast<std::uint16_t>(header.size());

  OutputFile file(path);
  file.write(kMagic);
  file.write(std::string_view("\x01\x00", 2));
  file.write(std::bit_cast<std::array<std::byte, 2>>(length));
  file.write(header);
  const Array contiguous = convert(tensor, tensor.dtype);
  file.write(std::span<const std::byte>(contiguous.data(), contiguous.bytes()));
  file.commit();
}

}  // namespace attn::io
