#include "gguf.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

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

GgufFile::GgufFile(const std::string& path) {
  static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");
  if (!std::filesystem::is_regular_file(path)) fail("it is no file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff length = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (length < 0) fail("it cannot be opened");
  const auto size = static_cast<std::size_t>(length);
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(size);
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes_.get()), length)) fail("it cannot be read");

  Cursor in({bytes_.get(), size});
  if (std::memcmp(in.skip(4, "the first word"), "GGUF", 4) != 0)
    fail("it does not begin with GGUF");
  const auto version = in.read<std::uint32_t>("the version");
  if (version != 2 && version != 3) {
    fail("its version is " + std::to_string(version) + "; accepted are 2 and 3");
  }
  const std::uint64_t tensors = in.count(32, "tensors"), values = in.count(12, "values");
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string key = in.text("a key");
    if (!values_.emplace(key, read_value(in, key)).second) fail("the key " + key + " stands twice");
  }
  std::vector<std::pair<StoredTensor, std::uint64_t>> read(tensors);
  for (auto& [t, offset] : read) t = read_tensor(in, offset);

  const double alignment = number("general.alignment", 32);
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
    t.data = bytes_.get() + begin + offset;
    asked_for_[t.name] = false;
    const std::string name = t.name;
    if (!tensors_.emplace(name, std::move(t)).second) fail("tensor " + name + " stands twice");
  }
}

template <class T>
const T& GgufFile::value(const std::string& key, const char* kind) const {
  const auto found = values_.find(key);
  if (found == values_.end()) fail("it has no value " + key);
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) fail("the value " + key + " is not " + kind);
  return *value;
}

const std::string& GgufFile::text(const std::string& key) const {
  return value<std::string>(key, "a string");
}
double GgufFile::number(const std::string& key) const { return value<double>(key, "a number"); }
double GgufFile::number(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}
int GgufFile::integer(const std::string& key, int least) const {
  const double x = number(key);
  if (!(x >= least && x <= std::numeric_limits<int>::max() && x == std::floor(x))) {
    fail("the value " + key + " is " + std::to_string(x) + "; accepted are integers from " +
         std::to_string(least));
  }
  return static_cast<int>(x);
}
const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  return value<std::vector<std::string>>(key, "an array of strings");
}
const std::vector<double>& GgufFile::numbers(const std::string& key) const {
  return value<std::vector<double>>(key, "an array of numbers");
}

const StoredTensor& GgufFile::tensor(const std::string& name,
                                     const std::vector<std::int64_t>& shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("it has no tensor " + name);
  if (found->second.shape != shape) {
    const auto print = [](const std::vector<std::int64_t>& sizes) {
      std::string text;
      for (const std::int64_t x : sizes) text += (text.empty() ? "" : ", ") + std::to_string(x);
      return "[" + text + "]";
    };
    fail("tensor " + name + " has shape " + print(found->second.shape) + "; accepted is " +
         print(shape));
  }
  asked_for_[name] = true;
  return found->second;
}

std::vector<std::string> GgufFile::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, asked] : asked_for_) {
    if (!asked) names.push_back(name);
  }
  return names;
}

}  // namespace generate
