// The options of a subcommand as its help shows them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace attn::command {

struct OptionEntry {
  std::string name;  // "--mask"; of a positional "descriptors"
  bool positional = false;
  std::string value;                 // what stands for it in the help: "FILE"; empty for a flag
  std::vector<std::string> choices;  // where the value is one of a list
  std::string default_text;          // empty: none is shown
  std::string description;
};

std::vector<OptionEntry> option_table(const CLI::App& app);
std::vector<const CLI::App*> subcommands(const CLI::App& app);

// `text` with each character of `special` behind `before`.
std::string escaped(const std::string& text, const std::string& special, const std::string& before);
std::string replaced(std::string text, const std::string& from, const std::string& to);

}  // namespace attn::command
