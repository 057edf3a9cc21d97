// attn generate: the files that a package installs beside the command.
#include "command/generate.hpp"

#include <fmt/format.h>

#include <array>
#include <memory>

#include "command/command.hpp"

namespace attn::command {

void add_generate(CLI::App& app, int&) {
  auto what = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand(
      "generate", "Print the man page, or the completions of a shell, made from these options");
  sub->add_option("what", *what, "man, bash, zsh or fish")
      ->check(CLI::IsMember({"man", "bash", "zsh", "fish"}))
      ->required();
  sub->footer(
      "Examples:\n"
      "  attn generate man > attn.1\n"
      "  source <(attn generate bash)");
  sub->callback([&app, what] {
    struct Kind {
      std::string_view name;
      std::string (*make)(const CLI::App&);
    };
    constexpr std::array<Kind, 4> kKinds{{{"man", man_page},
                                          {"bash", bash_completion},
                                          {"zsh", zsh_completion},
                                          {"fish", fish_completion}}};
    for (const Kind& kind : kKinds) {
      if (kind.name == *what) fmt::print("{}", kind.make(app));
    }
  });
}

}  // namespace attn::command
