#include "json.hpp"

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace generate {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& what) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) fail(what + " is no object of JSON");
  return json;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string name = path.filename().string();
  if (!std::filesystem::is_regular_file(path) || !file) fail("it has no file " + name);
  return parse_json(std::string(std::istreambuf_iterator<char>(file), {}), name);
}

bool has(const nlohmann::json& object, const std::string& key) {
  return object.is_object() && object.contains(key) && !object[key].is_null();
}
const nlohmann::json& member(const nlohmann::json& object, const std::string& key) {
  if (!has(object, key)) fail("there is no " + key);
  return object[key];
}

const std::string& text(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_string()) fail(key + " is no string");
  return value.get_ref<const std::string&>();
}
std::string text(const nlohmann::json& object, const std::string& key, const char* otherwise) {
  return has(object, key) ? text(object, key) : otherwise;
}

double number(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& value = member(object, key);
  if (!value.is_number()) fail(key + " is no number");
  return value.get<double>();
}
double number(const nlohmann::json& object, const std::string& key, double otherwise) {
  return has(object, key) ? number(object, key) : otherwise;
}

bool flag(const nlohmann::json& object, const std::string& key, bool otherwise) {
  if (!has(object, key)) return otherwise;
  if (!object[key].is_boolean()) fail(key + " is neither true nor false");
  return object[key].get<bool>();
}

std::vector<std::int64_t> integers(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& array = member(object, key);
  if (!array.is_array() || array.size() > 4) fail(key + " is no array of up to 4 numbers");
  std::vector<std::int64_t> numbers;
  for (const nlohmann::json& x : array) {
    numbers.push_back(integer_below(x, std::int64_t{1} << 62, key));
  }
  return numbers;
}

std::int64_t integer_below(const nlohmann::json& value, std::int64_t end, const std::string& what) {
  const bool is_integer = value.is_number_unsigned();  // others are negative or fractions
  if (!is_integer || value.get<std::uint64_t>() >= static_cast<std::uint64_t>(end)) {
    fail(what + " has " +
         value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 60) +
         "; accepted are integers from 0 to " + std::to_string(end - 1));
  }
  return value.get<std::int64_t>();
}

}  // namespace generate
