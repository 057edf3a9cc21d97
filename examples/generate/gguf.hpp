// A model file in GGUF, versions 2 and 3, little-endian: named values and tensors. The whole file
// is read into memory, and nothing of it is believed before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "storage.hpp"

namespace generate {

// A number (bool as 0 or 1), a string, or an array of either.
using Value = std::variant<double, std::string, std::vector<double>, std::vector<std::string>>;

// Throws std::runtime_error, which names what is wrong and where.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  // Of a key; the second form gives what `otherwise` says where the file lacks the key. Throws for
  // a value of another type.
  const std::string& text(const std::string& key) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  // An integer in [least, 2^31).
  int integer(const std::string& key, int least) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const std::vector<double>& numbers(const std::string& key) const;
  bool has(const std::string& key) const { return values_.contains(key); }

  // Of this shape, or an exception. Each tensor may be asked for; unused() names those that were
  // not.
  const StoredTensor& tensor(const std::string& name, const std::vector<std::int64_t>& shape);
  bool has_tensor(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> unused() const;

 private:
  template <class T>
  const T& value(const std::string& key, const char* kind) const;

  std::unique_ptr<std::byte[]> bytes_{};
  std::map<std::string, Value> values_{};
  std::map<std::string, StoredTensor> tensors_{};
  std::map<std::string, bool> asked_for_{};
};

}  // namespace generate
