// GGUF files.
#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "model_file.hpp"

namespace generate {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Reads what stands one after the other, and no byte past the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  const std::byte* skip(std::uint64_t count, const char* what) {
    if (count > left()) {
      fail(std::string("the file ends within ") + what + " at byte " + std::to_string(at_));
    }
    const std::byte* begin = bytes_.data() + at_;
    at_ += count;
    return begin;
  }
  template <class T>
  T read(const char* what) {
    T x;
    std::memcpy(&x, skip(sizeof(T), what), sizeof x);
    return x;
  }
  std::string text(const char* what) {
    const auto count = read<std::uint64_t>(what);
    const auto* begin = reinterpret_cast<const char*>(skip(count, what));
    return {begin, begin + count};
  }
  // How many things of at least `bytes` each follow; more than the file has room for are refused.
  std::uint64_t count(std::uint64_t bytes, const char* what) {
    const auto n = read<std::uint64_t>(what);
    if (n > left() / bytes) {
      fail(std::string("there are said to be ") + std::to_string(n) + " " + what +
           ", more than the file has room for");
    }
    return n;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

constexpr std::uint32_t kString = 8, kArray = 9;

double read_number(Cursor& in, std::uint32_t type, const std::string& key) {
  switch (type) {
    case 0:
    case 7:  // bool
      return in.read<std::uint8_t>("a value");
    case 1:
      return in.read<std::int8_t>("a value");
    case 2:
      return in.read<std::uint16_t>("a value");
    case 3:
      return in.read<std::int16_t>("a value");
    case 4:
      return in.read<std::uint32_t>("a value");
    case 5:
      return in.read<std::int32_t>("a value");
    case 6:
      return double{in.read<float>("a value")};
    case 10:
      return static_cast<double>(in.read<std::uint64_t>("a value"));
    case 11:
      return static_cast<double>(in.read<std::int64_t>("a value"));
    case 12:
      return in.read<double>("a value");
    default:
      fail("the value of " + key + " has type " + std::to_string(type) + "; accepted are 0 to 12");
  }
}

Value read_value(Cursor& in, const std::string& key) {
  const auto type = in.read<std::uint32_t>("the type of a value");
  if (type == kString) return in.text("a string");
  if (type != kArray) return read_number(in, type, key);
  const auto of = in.read<std::uint32_t>("the type of an array");
  if (of == kArray) fail("the value of " + key + " is an array of arrays, which no model needs");
  if (of == kString) {
    std::vector<std::string> texts(in.count(8, "strings of an array"));
    for (std::string& text : texts) text = in.text("a string");
    return texts;
  }
  std::vector<double> numbers(in.count(1, "numbers of an array"));
  for (double& x : numbers) x = read_number(in, of, key);
  return numbers;
}

// Shape and place; `data` is still an offset from where the tensors begin.
StoredTensor read_tensor(Cursor& in, std::uint64_t& offset) {
  StoredTensor t;
  t.name = in.text("a tensor's name");
  const auto rank = in.read<std::uint32_t>("a tensor's rank");
  if (rank < 1 || rank > 4) {
    fail("tensor " + t.name + " has " + std::to_string(rank) + " dimensions; accepted are 1 to 4");
  }
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto size = in.read<std::uint64_t>("a tensor's shape");
    if (size < 1 || size > (std::uint64_t{1} << 40) / elements) {
      fail("tensor " + t.name + " has a dimension of " + std::to_string(size) +
           "; accepted are 1 and up, and 2^40 elements together");
    }
    elements *= size;
    t.shape.insert(t.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = in.read<std::uint32_t>("a tensor's type");
  const auto found = std::find_if(storages().begin(), storages().end(),
                                  [&](const StorageInfo& s) { return s.number == type; });
  if (found == storages().end()) {
    std::string names;
    for (const StorageInfo& s : storages())
      names += std::string(names.empty() ? "" : ", ") + s.name;
    fail("tensor " + t.name + " has type " + std::to_string(type) + "; accepted are " + names);
  }
  t.storage = found->storage;
  if (t.shape.back() % found->elements != 0) {
    fail("tensor " + t.name + " has rows of " + std::to_string(t.shape.back()) +
         " elements; accepted in " + found->name + " are multiples of 32");
  }
  offset = in.read<std::uint64_t>("a tensor's offset");
  return t;
}

}  // namespace

ModelContents read_gguf(const std::string& path) {
  ModelContents all;
  static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");
  const std::span<const std::byte> bytes = read_whole(path, all);
  const std::size_t size = bytes.size();
  Cursor in(bytes);
  if (std::memcmp(in.skip(4, "the first word"), "GGUF", 4) != 0)
    fail("it does not begin with GGUF");
  const auto version = in.read<std::uint32_t>("the version");
  if (version != 2 && version != 3) {
    fail("its version is " + std::to_string(version) + "; accepted are 2 and 3");
  }
  const std::uint64_t tensors = in.count(32, "tensors"), values = in.count(12, "values");
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string key = in.text("a key");
    if (!all.values.emplace(key, read_value(in, key)).second)
      fail("the key " + key + " stands twice");
  }
  std::vector<std::pair<StoredTensor, std::uint64_t>> read(tensors);
  for (auto& [t, offset] : read) t = read_tensor(in, offset);

  const auto found = all.values.find("general.alignment");
  const double standard = 32, wrong = 0;
  const double* const given =
      found == all.values.end() ? &standard : std::get_if<double>(&found->second);
  const double alignment = given == nullptr ? wrong : *given;
  if (!(alignment >= 8 && alignment <= 65536 && std::has_single_bit(std::size_t(alignment)))) {
    fail("general.alignment is " + std::to_string(alignment) +
         "; accepted are powers of two from 8 to 65536");
  }
  const auto step = static_cast<std::uint64_t>(alignment);
  const std::uint64_t begin = (in.at() + step - 1) / step * step;
  for (auto& [t, offset] : read) {
    std::uint64_t need = static_cast<std::uint64_t>(row_bytes(t));
    for (std::size_t i = 0; i + 1 < t.shape.size(); ++i) need *= std::uint64_t(t.shape[i]);
    if (offset % step != 0 || begin > size || offset > size - begin ||
        need > size - begin - offset) {
      fail("tensor " + t.name + " lies at offset " + std::to_string(offset) + " with " +
           std::to_string(need) + " bytes; the file has " +
           std::to_string(size - std::min<std::uint64_t>(begin, size)) +
           " of tensors, aligned to " + std::to_string(step));
    }
    t.data = bytes.data() + begin + offset;
    const std::string name = t.name;
    if (!all.tensors.emplace(name, std::move(t)).second) fail("tensor " + name + " stands twice");
  }
  return all;
}

}  // namespace generate
