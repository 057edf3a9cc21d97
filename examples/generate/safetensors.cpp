// The tensors of a folder of safetensors files: eight bytes that say how long the header is, the
// header in JSON, then the elements.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "json.hpp"
#include "model_file.hpp"

namespace generate {
namespace {

using Json = nlohmann::json;

Storage storage_of(const std::string& dtype, const std::string& name) {
  if (dtype == "F32") return Storage::f32;
  if (dtype == "F16") return Storage::f16;
  if (dtype == "BF16") return Storage::bf16;
  throw std::runtime_error("tensor " + name + " has dtype " + dtype +
                           "; accepted are F32, F16 and BF16");
}

// entry: {"dtype": .., "shape": [..], "data_offsets": [begin, end]}; bytes: of all elements.
StoredTensor read_tensor(const std::string& name, const Json& entry,
                         std::span<const std::byte> bytes) {
  StoredTensor t{.name = name, .storage = storage_of(text(entry, "dtype"), name)};
  const std::int64_t element = info(t.storage).bytes;
  const std::vector<std::int64_t> shape = integers(entry, "shape");
  const std::vector<std::int64_t> offsets = integers(entry, "data_offsets");
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 1 || size > (std::int64_t{1} << 40) / elements) {
      throw std::runtime_error("tensor " + name + " has a dimension of " + std::to_string(size) +
                               "; accepted are 1 and up, and 2^40 elements together");
    }
    elements *= size;
  }
  if (shape.empty() || offsets.size() != 2 || offsets[0] < 0 || offsets[1] > std::ssize(bytes) ||
      offsets[1] - elements * element != offsets[0]) {
    throw std::runtime_error("tensor " + name + " does not lie in the file with its " +
                             std::to_string(elements) + " elements");
  }
  t.shape = shape;
  t.data = bytes.data() + offsets[0];
  if (reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(element) != 0) {
    throw std::runtime_error("tensor " + name + " lies at offset " + std::to_string(offsets[0]) +
                             "; accepted are addresses that its elements' size divides");
  }
  return t;
}

void read_file(const std::string& path, ModelContents& to) {
  const std::span<const std::byte> file = read_whole(path, to);
  std::uint64_t length = 0;
  if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
  if (file.size() < sizeof length || length > file.size() - sizeof length) {
    throw std::runtime_error("its header is said to have " + std::to_string(length) +
                             " bytes; the file has " + std::to_string(file.size()));
  }
  const std::span<const std::byte> header = file.subspan(sizeof length, length);
  const Json entries =
      parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, "the header");
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    StoredTensor t = read_tensor(name, entry, file.subspan(sizeof length + length));
    if (!to.tensors.emplace(name, std::move(t)).second) {
      throw std::runtime_error("tensor " + name + " stands twice");
    }
  }
}

}  // namespace

ModelContents read_safetensors(const std::string& folder) {
  const std::filesystem::path in(folder);
  std::set<std::string> files{"model.safetensors"};
  const std::string index = "model.safetensors.index.json";
  if (!std::filesystem::exists(in / "model.safetensors")) {
    files.clear();
    const Json json = read_json(in / index);
    for (const auto& [name, file] : member(json, "weight_map").items()) {
      const std::string shard = file.is_string() ? file.get<std::string>() : "";
      // Names of files of this folder, and of no other.
      if (shard.empty() || shard.find_first_of("/\\") != shard.npos) {
        throw std::runtime_error(index + " has tensor " + name + " in '" + shard +
                                 "'; accepted are names of files of the folder");
      }
      files.insert(shard);
    }
  }
  ModelContents all;
  for (const std::string& file : files) {
    try {
      read_file(in / file, all);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(file + ": " + error.what());
    }
  }
  return all;
}

}  // namespace generate
