#include "io/safetensors_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace attn::io {
namespace {

constexpr std::array<SafetensorsType, 15> kTypes{{
    {"F64", 8, true, DType::f64},
    {"F32", 4, true, DType::f32},
    {"BF16", 2, true, DType::bf16},
    {"F16", 2, true, DType::f16},
    {"I64", 8, true, DType::i64},
    {"I32", 4, true, DType::i32},
    {"U8", 1, true, DType::u8},
    {"U64", 8, false, {}},
    {"U32", 4, false, {}},
    {"I16", 2, false, {}},
    {"U16", 2, false, {}},
    {"I8", 1, false, {}},
    {"BOOL", 1, false, {}},
    {"F8_E4M3", 1, false, {}},
    {"F8_E5M2", 1, false, {}},
}};

// Receives the parser's events. The format nests three levels and no more:
//   { "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] },
//     "__metadata__": { "key": "text" } }
class HeaderEvents {
 public:
  using Json = nlohmann::json;

  std::vector<SafetensorsEntry> entries;
  std::string error;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(Json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const std::string&) {
    return unexpected("a number that is not an integer below 2^64");
  }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (state_ == State::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return refuse("a dimension passes 2^63 - 1");
      }
      entries.back().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (++offsets_ > 2) return refuse("data_offsets has more than two numbers");
      (offsets_ == 1 ? entries.back().begin : entries.back().end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(std::string& value) {
    if (state_ == State::metadata) return true;
    if (state_ != State::entry || field_ != Field::dtype) return unexpected("a string");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) {
    if (state_ == State::start) {
      state_ = State::names;
      return true;
    }
    if (state_ != State::names) return unexpected("an object");
    if (is_metadata_) {
      state_ = State::metadata;
      return true;
    }
    state_ = State::entry;
    seen_ = 0;
    offsets_ = 0;
    return true;
  }

  bool key(std::string& text) {
    if (state_ == State::names) {
      if (!names_.insert(text).second) {
        return refuse(fmt::format("the name \"{}\" occurs twice", printable(text)));
      }
      is_metadata_ = text == "__metadata__";
      if (!is_metadata_) entries.emplace_back().name = text;
      return true;
    }
    if (state_ == State::metadata) {
      if (metadata_names_.insert(text).second) return true;
      error = fmt::format("__metadata__ has the key \"{}\" twice", printable(text));
      return false;
    }
    for (const auto& [name, field] : kFields) {
      if (text != name) continue;
      if ((seen_ & static_cast<unsigned>(field)) != 0) {
        return refuse(fmt::format("{} occurs twice", name));
      }
      seen_ |= static_cast<unsigned>(field);
      field_ = field;
      return true;
    }
    return refuse(
        fmt::format("has the key \"{}\", but only dtype, shape and data_offsets are "
                    "accepted",
                    printable(text)));
  }

  bool end_object() {
    if (state_ == State::entry && (seen_ != static_cast<unsigned>(Field::all) || offsets_ != 2)) {
      return refuse("needs dtype, shape and two data_offsets");
    }
    state_ = state_ == State::names ? State::done : State::names;
    return true;
  }

  bool start_array(std::size_t) {
    if (state_ == State::entry && field_ == Field::shape) {
      state_ = State::shape;
    } else if (state_ == State::entry && field_ == Field::offsets) {
      state_ = State::offsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    error = fmt::format("the header is not JSON at its byte {}", position);
    return false;
  }

 private:
  enum class State { start, names, entry, shape, offsets, metadata, done };
  enum class Field : unsigned { dtype = 1, shape = 2, offsets = 4, all = 7 };
  static constexpr std::array<std::pair<std::string_view, Field>, 3> kFields{
      {{"dtype", Field::dtype}, {"shape", Field::shape}, {"data_offsets", Field::offsets}}};

  bool refuse(std::string_view message) {
    const bool in_tensor = state_ != State::start && state_ != State::names && !entries.empty();
    error = in_tensor ? fmt::format("tensor \"{}\": {}", printable(entries.back().name), message)
                      : fmt::format("header: {}", message);
    return false;
  }

  bool unexpected(std::string_view what) {
    switch (state_) {
      case State::start:
        return refuse(fmt::format("is {}, but an object of tensors is expected", what));
      case State::names:
        return refuse(fmt::format("\"{}\" is {}, but an object is expected",
                                  is_metadata_ ? "__metadata__" : printable(entries.back().name),
                                  what));
      case State::metadata:
        error = fmt::format("__metadata__ contains {}, but only strings are accepted", what);
        return false;
      default:
        return refuse(fmt::format(
            "contains {}, but dtype is a string, shape and data_offsets are arrays of numbers",
            what));
    }
  }

  State state_ = State::start;
  Field field_ = Field::all;
  unsigned seen_ = 0;
  int offsets_ = 0;
  bool is_metadata_ = false;
  std::unordered_set<std::string> names_, metadata_names_;
};

// Empty when the entry's dtype, shape and offsets agree.
std::string check(const SafetensorsEntry& entry, std::uint64_t data_bytes) {
  const SafetensorsType* type = find_safetensors_type(entry.dtype);
  if (type == nullptr) {
    std::vector<std::string_view> names;
    for (const SafetensorsType& known : kTypes) names.push_back(known.name);
    return fmt::format("dtype is \"{}\", but one of {} is expected", printable(entry.dtype),
                       fmt::join(names, ", "));
  }
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return fmt::format("data_offsets are [{}, {}], but the data has {} bytes", entry.begin,
                       entry.end, data_bytes);
  }
  const std::string shape = printable(fmt::format("[{}]", fmt::join(entry.shape, ", ")));
  if (!fits(entry.shape, type->bytes)) {
    return fmt::format("shape is {}, which passes 2^63 - 1 bytes", shape);
  }
  std::uint64_t bytes = type->bytes;
  for (const std::int64_t dimension : entry.shape) bytes *= static_cast<std::uint64_t>(dimension);
  if (bytes != entry.end - entry.begin) {
    return fmt::format("shape {} of {} takes {} bytes, but data_offsets [{}, {}] span {}", shape,
                       entry.dtype, bytes, entry.begin, entry.end, entry.end - entry.begin);
  }
  return {};
}

// What stands around the JSON object, which the parser is more generous with than the format: it
// skips a byte order mark and white space, and takes a zero byte for the end. Empty when all is
// well; `json` then has no padding any more.
std::string check_surroundings(std::string_view& json) {
  const auto shown = [&](std::size_t at) {
    return fmt::format("the byte 0x{:02x}", static_cast<unsigned char>(json[at]));
  };
  if (json.empty()) return "the header is empty, but a JSON object is expected";
  if (json.front() != '{') {
    return fmt::format("the header begins with {}, but a JSON object begins with {{", shown(0));
  }
  const std::size_t padding = json.find_last_not_of(' ') + 1;
  if (json[padding - 1] != '}') {
    return fmt::format(
        "the header ends with {} before its padding, but a JSON object and then spaces alone are "
        "accepted",
        shown(padding - 1));
  }
  json = json.substr(0, padding);
  const std::size_t zero = json.find('\0');
  return zero == std::string_view::npos
             ? std::string()
             : fmt::format("the header is not JSON at its byte {}", zero + 1);
}

}  // namespace

const SafetensorsType* find_safetensors_type(std::string_view name) noexcept {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [name](const SafetensorsType& t) { return t.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

std::string_view safetensors_name(DType dtype) noexcept {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [dtype](const SafetensorsType& t) { return t.readable && t.dtype == dtype; })
      ->name;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes) {
  const std::string around = check_surroundings(json);
  if (!around.empty()) return {{}, around};
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json, &events)) return {{}, std::move(events.error)};
  std::vector<SafetensorsEntry>& entries = events.entries;
  for (const SafetensorsEntry& entry : entries) {
    const std::string error = check(entry, data_bytes);
    if (!error.empty()) {
      return {{}, fmt::format("tensor \"{}\": {}", printable(entry.name), error)};
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      return {{},
              fmt::format("tensor \"{}\": data_offsets begin at {}, but the tensors before it "
                          "end at {}; neither gap nor overlap is accepted",
                          printable(entry.name), entry.begin, covered)};
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return {{},
            fmt::format("the tensors end at byte {} of the data, but the file holds {}", covered,
                        data_bytes)};
  }
  return {std::move(entries), {}};
}

}  // namespace attn::io
