// JSON files of a model, and what they are asked for. All throw std::runtime_error, which names
// what is wrong and where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace generate {

// An object, `what` being said of another text.
nlohmann::json parse_json(std::string_view text, const std::string& what);
nlohmann::json read_json(const std::filesystem::path& path);

// Members of an object; one that is null counts as missing.
bool has(const nlohmann::json& object, const std::string& key);
const nlohmann::json& member(const nlohmann::json& object, const std::string& key);
const std::string& text(const nlohmann::json& object, const std::string& key);
std::string text(const nlohmann::json& object, const std::string& key, const char* otherwise);
double number(const nlohmann::json& object, const std::string& key);
double number(const nlohmann::json& object, const std::string& key, double otherwise);
bool flag(const nlohmann::json& object, const std::string& key, bool otherwise);
std::vector<std::int64_t> integers(const nlohmann::json& object, const std::string& key);
// An integer in [0, end).
std::int64_t integer_below(const nlohmann::json& value, std::int64_t end, const std::string& what);

}  // namespace generate
