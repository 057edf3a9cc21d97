// What a model file holds, whatever its format: named values and tensors, under the names of GGUF.
// The whole file is read into memory, and nothing of it is believed before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "storage.hpp"

namespace generate {

// A number (bool as 0 or 1), a string, or an array of either.
using Value = std::variant<double, std::string, std::vector<double>, std::vector<std::string>>;

struct ModelContents {
  std::vector<std::unique_ptr<std::byte[]>> bytes{};  // what tensors point into
  std::map<std::string, Value> values{};
  std::map<std::string, StoredTensor> tensors{};
};

// Reads a file as a whole; throws where it is none.
std::span<const std::byte> read_whole(const std::string& path, ModelContents& to);

// A GGUF file, of versions 2 and 3, little-endian.
ModelContents read_gguf(const std::string& path);
// A folder of Hugging Face: config.json, tokenizer.json, and model.safetensors or the files that
// model.safetensors.index.json names.
ModelContents read_hugging_face(const std::string& folder);
// Its tensors, by the names that they have there.
ModelContents read_safetensors(const std::string& folder);

// Throws std::runtime_error, which names what is wrong and where.
class ModelFile {
 public:
  explicit ModelFile(const std::string& path);  // a folder, or a GGUF file

  // Of a key; the second form gives what `otherwise` says where the file lacks the key. Throws for
  // a value of another type.
  const std::string& text(const std::string& key) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  // An integer in [least, 2^31).
  int integer(const std::string& key, int least) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const std::vector<double>& numbers(const std::string& key) const;
  bool has(const std::string& key) const { return contents_.values.contains(key); }

  // Of this shape, or an exception. Each tensor may be asked for; unused() names those that were
  // not.
  const StoredTensor& tensor(const std::string& name, const std::vector<std::int64_t>& shape);
  bool has_tensor(const std::string& name) const { return contents_.tensors.contains(name); }
  std::vector<std::string> unused() const;

 private:
  template <class T>
  const T& value(const std::string& key, const char* kind) const;

  ModelContents contents_{};
  std::map<std::string, bool> asked_for_{};
};

}  // namespace generate
