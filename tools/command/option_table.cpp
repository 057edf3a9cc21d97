#include "command/option_table.hpp"

namespace attn::command {
namespace {

// "a", "b" of a type such as "TEXT:{a,b}".
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> choices;
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return choices;
  for (std::size_t begin = open + 1; begin <= close;) {
    const std::size_t end = std::min(type.find(',', begin), close);
    choices.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

}  // namespace

std::vector<OptionEntry> option_table(const CLI::App& app) {
  std::vector<OptionEntry> table;
  for (const CLI::Option* option : app.get_options()) {
    OptionEntry entry;
    entry.positional = option->get_positional();
    entry.name = entry.positional ? option->get_name(true) : "--" + option->get_lnames().front();
    if (option->get_items_expected_max() > 0) {
      entry.choices = choices_of(option->get_type_name());
      entry.value = entry.choices.empty() ? option->get_type_name() : "VALUE";
      entry.default_text = option->get_default_str();
    }
    entry.description = option->get_description();
    table.push_back(std::move(entry));
  }
  return table;
}

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::string escaped(const std::string& text, const std::string& special,
                    const std::string& before) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) result += before;
    result += c;
  }
  return result;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace attn::command
