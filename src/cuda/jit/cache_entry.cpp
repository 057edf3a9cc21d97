#include "cuda/jit/cache_entry.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace attn::cuda {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "ATTNKERN";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 88;

class Writer {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void raw(std::string_view bytes) { bytes_ += bytes; }
  void text(std::string_view bytes) {
    number<std::uint64_t>(bytes.size());
    raw(bytes);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Every read is checked: past the end, everything is empty and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = raw(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view raw(std::uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  std::string_view text() { return raw(number<std::uint64_t>()); }
  std::string_view rest() const { return rest_; }
  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

std::string_view view(const Sha256::Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string payload_of(const Compiled& compiled) {
  const Report& report = compiled.report;
  Writer out;
  for (const int value : {report.registers, report.spill_store_bytes, report.spill_load_bytes,
                          report.local_bytes, report.shared_bytes}) {
    out.number<std::int32_t>(value);
  }
  out.number<std::uint32_t>(static_cast<std::uint32_t>(report.warnings.size()));
  for (const std::string& warning : report.warnings) out.text(warning);
  out.text({compiled.cubin.data(), compiled.cubin.size()});
  return out.bytes();
}

std::optional<Compiled> from_payload(std::string_view bytes) {
  Reader in(bytes);
  Compiled compiled;
  Report& report = compiled.report;
  for (int* value : {&report.registers, &report.spill_store_bytes, &report.spill_load_bytes,
                     &report.local_bytes, &report.shared_bytes}) {
    *value = in.number<std::int32_t>();
  }
  const auto warnings = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < warnings && in.ok(); ++i) report.warnings.emplace_back(in.text());
  const std::string_view cubin = in.text();
  compiled.cubin.assign(cubin.begin(), cubin.end());
  if (!in.ok() || !in.rest().empty()) return std::nullopt;
  return compiled;
}

}  // namespace

std::string to_cache_entry(const Sha256::Digest& key, const Compiled& compiled) {
  const std::string payload = payload_of(compiled);
  Writer out;
  out.raw(kMagic);
  out.number(kVersion);
  out.number<std::uint32_t>(0);
  out.raw(view(key));
  out.number<std::uint64_t>(payload.size());
  out.raw(view(sha256(payload)));
  out.raw(payload);
  return out.bytes();
}

std::optional<Compiled> from_cache_entry(const Sha256::Digest& key, std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  Reader in(bytes);
  if (in.raw(kMagic.size()) != kMagic || in.number<std::uint32_t>() != kVersion ||
      in.number<std::uint32_t>() != 0 || in.raw(key.size()) != view(key) ||
      in.number<std::uint64_t>() != bytes.size() - kHeaderBytes) {
    return std::nullopt;
  }
  const std::string_view checksum = in.raw(key.size());
  if (checksum != view(sha256(in.rest()))) return std::nullopt;
  return from_payload(in.rest());
}

}  // namespace attn::cuda
