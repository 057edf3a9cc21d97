#include "model_file.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace generate {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

}  // namespace

std::span<const std::byte> read_whole(const std::string& path, ModelContents& to) {
  if (!std::filesystem::is_regular_file(path)) fail("it is no file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff length = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (length < 0) fail("it cannot be opened");
  const auto size = static_cast<std::size_t>(length);
  std::byte* const bytes =
      to.bytes.emplace_back(std::make_unique_for_overwrite<std::byte[]>(size)).get();
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes), length)) fail("it cannot be read");
  return {bytes, size};
}

ModelFile::ModelFile(const std::string& path)
    : contents_(std::filesystem::is_directory(path) ? read_hugging_face(path) : read_gguf(path)) {
  for (const auto& [name, tensor] : contents_.tensors) asked_for_[name] = false;
}

template <class T>
const T& ModelFile::value(const std::string& key, const char* kind) const {
  const auto found = contents_.values.find(key);
  if (found == contents_.values.end()) fail("it has no value " + key);
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) fail("the value " + key + " is not " + kind);
  return *value;
}

const std::string& ModelFile::text(const std::string& key) const {
  return value<std::string>(key, "a string");
}
double ModelFile::number(const std::string& key) const { return value<double>(key, "a number"); }
double ModelFile::number(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}
int ModelFile::integer(const std::string& key, int least) const {
  const double x = number(key);
  if (!(x >= least && x <= std::numeric_limits<int>::max() && x == std::floor(x))) {
    fail("the value " + key + " is " + std::to_string(x) + "; accepted are integers from " +
         std::to_string(least));
  }
  return static_cast<int>(x);
}
const std::vector<std::string>& ModelFile::texts(const std::string& key) const {
  return value<std::vector<std::string>>(key, "an array of strings");
}
const std::vector<double>& ModelFile::numbers(const std::string& key) const {
  return value<std::vector<double>>(key, "an array of numbers");
}

const StoredTensor& ModelFile::tensor(const std::string& name,
                                      const std::vector<std::int64_t>& shape) {
  const auto found = contents_.tensors.find(name);
  if (found == contents_.tensors.end()) fail("it has no tensor " + name);
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

std::vector<std::string> ModelFile::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, asked] : asked_for_) {
    if (!asked) names.push_back(name);
  }
  return names;
}

}  // namespace generate
