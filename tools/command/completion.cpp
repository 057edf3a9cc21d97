// Completions of bash, zsh and fish.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command/generate.hpp"
#include "command/option_table.hpp"

namespace attn::command {
namespace {

bool is_file(const OptionEntry& option) {
  return option.value == "FILE" || option.value == "FOLDER" || option.value == "SOURCE";
}

// Inside single quotes of bash and zsh.
std::string quoted(const std::string& text) { return replaced(text, "'", "'\\''"); }

std::string names(const CLI::App& app) {
  std::vector<std::string> result;
  for (const CLI::App* sub : subcommands(app)) result.push_back(sub->get_name());
  return fmt::format("{}", fmt::join(result, " "));
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string values, options;
  for (const CLI::App* sub : subcommands(app)) {
    std::string list;
    for (const OptionEntry& option : option_table(*sub)) {
      if (option.positional) continue;
      list += (list.empty() ? "" : " ") + option.name;
      if (!option.choices.empty()) {
        values += fmt::format("    {},{}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n",
                              sub->get_name(), option.name, fmt::join(option.choices, " "));
      } else if (is_file(option)) {
        values += fmt::format("    {},{}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n",
                              sub->get_name(), option.name);
      } else if (!option.value.empty()) {
        values += fmt::format("    {},{}) return ;;\n", sub->get_name(), option.name);
      }
    }
    options += fmt::format("    {}) words='{}' ;;\n", sub->get_name(), list);
  }
  return fmt::format(R"(# bash completion of attn; made by: attn generate bash
_attn() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} word command= words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in -*|@*) ;; *) command=$word; break ;; esac
  done
  case $command,$prev in
{}  esac
  if [[ $cur == @* ]]; then
    COMPREPLY=($(compgen -P @ -f -- "${{cur#@}}"))
    return
  fi
  case $command in
{}    *) words='{} --help --version' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o filenames -F _attn attn
)",
                     values, options, names(app));
}

std::string zsh_completion(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* sub : subcommands(app)) {
    commands += fmt::format("    '{}:{}'\n", sub->get_name(), quoted(sub->get_description()));
    cases += fmt::format("        {})\n          _arguments \\\n", sub->get_name());
    for (const OptionEntry& option : option_table(*sub)) {
      if (option.positional) {
        cases += fmt::format("            '*:{}:_files -P @' \\\n", option.name);
        continue;
      }
      std::string value;
      if (!option.choices.empty()) {
        value = fmt::format(":value:({})", fmt::join(option.choices, " "));
      } else if (!option.value.empty()) {
        value = fmt::format(":{}:{}", option.value == "FOLDER" ? "folder" : "value",
                            is_file(option) ? "_files" : " ");
      }
      cases += fmt::format("            '*{}[{}]{}' \\\n", option.name,
                           quoted(escaped(option.description, "[]:\\", "\\")), value);
    }
    cases += "            && return ;;\n";
  }
  return fmt::format(R"(#compdef attn
# zsh completion of attn; made by: attn generate zsh
_attn() {{
  local -a commands=(
{})
  local context state line
  _arguments -C '--help[Print help]' '--version[Print the version]' '1: :->command' '*:: :->rest'
  case $state in
    command) _describe command commands ;;
    rest)
      case $line[1] in
{}      esac ;;
  esac
}}
_attn "$@"
)",
                     commands, cases);
}

std::string fish_completion(const CLI::App& app) {
  const auto quote = [](const std::string& text) { return "'" + escaped(text, "'\\", "\\") + "'"; };
  std::string script = fmt::format(
      "# fish completion of attn; made by: attn generate fish\n"
      "set -l commands {}\ncomplete -c attn -f\n"
      "complete -c attn -n \"not __fish_seen_subcommand_from $commands\" -l help\n"
      "complete -c attn -n \"not __fish_seen_subcommand_from $commands\" -l version\n",
      names(app));
  for (const CLI::App* sub : subcommands(app)) {
    script += fmt::format(
        "complete -c attn -n \"not __fish_seen_subcommand_from $commands\" -a {} -d {}\n",
        sub->get_name(), quote(sub->get_description()));
    for (const OptionEntry& option : option_table(*sub)) {
      if (option.positional) continue;
      std::string value;
      if (!option.choices.empty()) {
        value = fmt::format(" -x -a {}", quote(fmt::format("{}", fmt::join(option.choices, " "))));
      } else if (!option.value.empty()) {
        value = is_file(option) ? " -r -F" : " -x";
      }
      script +=
          fmt::format("complete -c attn -n '__fish_seen_subcommand_from {}' -l {}{} -d {}\n",
                      sub->get_name(), option.name.substr(2), value, quote(option.description));
    }
  }
  return script;
}

}  // namespace attn::command
