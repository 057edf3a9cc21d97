// Man page and shell completions, made from the options themselves.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace attn::command {

// Each describes every subcommand of `app` and every option of these, hidden ones left out.
std::string man_page(const CLI::App& app);  // troff with the macros of man(7)
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace attn::command
