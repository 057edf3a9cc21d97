// Man page and completions: every option of every subcommand's help is in them.
#include <unistd.h>

#include <regex>

#include "command_test_util.hpp"

namespace attn::io {
namespace {

class Generate : public Command {
 protected:
  std::string generated(const std::string& what) const {
    const Result result = attn("generate " + what);
    EXPECT_EQ(result.code, 0) << result.text();
    return result.out;
  }
  // Names of options in the help of a subcommand.
  std::vector<std::string> options(const std::string& sub) const {
    const std::string help = attn(sub + " --help").out;
    const std::regex option("\n  (?:-[a-z],)?(--[a-z-]+)");
    std::vector<std::string> names;
    for (std::sregex_iterator it(help.begin(), help.end(), option), end; it != end; ++it) {
      names.push_back((*it)[1]);
    }
    EXPECT_GE(names.size(), 1U) << help;
    return names;
  }
  // Runs a line of bash; its exit code, and what it prints.
  Result bash(const std::string& line) const {
    store("line.sh", line);
    const int status = std::system(fmt::format("bash '{}' >'{}' 2>'{}'", path("line.sh").native(),
                                               path("out").native(), path("err").native())
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, load(path("out")), load(path("err"))};
  }
  bool is_here(const std::string& program) const { return bash("command -v " + program).code == 0; }
};

constexpr const char* kSubcommands[] = {"info",   "run",     "check", "bench",   "io",
                                        "matmul", "compile", "dist",  "explain", "generate"};

TEST_F(Generate, EveryOptionIsEverywhere) {
  const std::string man = generated("man");
  const std::string bash = generated("bash"), zsh = generated("zsh"), fish = generated("fish");
  for (const std::string sub : kSubcommands) {
    const std::size_t man_part = man.find(".SH attn " + sub + "\n");
    ASSERT_NE(man_part, std::string::npos) << sub;
    const std::string man_of_sub = man.substr(man_part, man.find("\n.SH", man_part + 1) - man_part);
    for (const std::string& option : options(sub)) {
      std::string troff = option;
      for (std::size_t at = 0; (at = troff.find('-', at)) != std::string::npos; at += 2) {
        troff.replace(at, 1, "\\-");
      }
      EXPECT_NE(man_of_sub.find("\\fB" + troff + "\\fR"), std::string::npos) << sub << option;
      EXPECT_TRUE(std::regex_search(bash, std::regex("    " + sub + "\\) words='[^']*" + option)))
          << sub << option;
      const std::size_t zsh_part = zsh.find("        " + sub + ")\n");
      ASSERT_NE(zsh_part, std::string::npos) << sub;
      EXPECT_LT(zsh.find("'*" + option + "[", zsh_part), zsh.find("return ;;", zsh_part))
          << sub << option;
      EXPECT_NE(fish.find("__fish_seen_subcommand_from " + sub + "' -l " + option.substr(2) + " "),
                std::string::npos)
          << sub << option;
    }
  }
}

TEST_F(Generate, BashCompletes) {
  store("attn.bash", generated("bash"));
  const auto complete = [&](const std::string& words, int at) {
    return bash(fmt::format("source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _attn; echo "
                            "\"${{COMPREPLY[@]}}\"",
                            path("attn.bash").native(), words, at))
        .out;
  };
  EXPECT_EQ(complete("attn ''", 1),
            "info run check bench io matmul compile dist explain generate --help --version\n");
  EXPECT_EQ(complete("attn ch", 1), "check\n");
  EXPECT_EQ(complete("attn run --see", 2), "\n");
  EXPECT_EQ(complete("attn run --back", 2), "--backward --backend\n");
  EXPECT_EQ(complete("attn check --phase b", 3), "backward both\n");
  EXPECT_EQ(complete("attn run --dtype ''", 3), "f32 bf16 f16 f64\n");
  EXPECT_EQ(complete(fmt::format("attn run --input {}", path("attn.b").native()), 3),
            path("attn.bash").native() + "\n");
  EXPECT_EQ(complete(fmt::format("attn bench @{}", path("attn.b").native()), 2),
            "@" + path("attn.bash").native() + "\n");
}

TEST_F(Generate, ShellsAndManReadThem) {
  struct Reader {
    const char *program, *what, *line;
  };
  std::string absent;
  for (const Reader& reader : {Reader{"bash", "bash", "bash -n '{}'"},
                               {"zsh", "zsh", "zsh -n '{}'"},
                               {"fish", "fish", "fish -n '{}'"},
                               {"groff", "man", "groff -man -ww -z '{}'"}}) {
    if (!is_here(reader.program)) {
      absent += std::string(" ") + reader.program;
      continue;
    }
    store("text", generated(reader.what));
    const Result result = bash(fmt::format(fmt::runtime(reader.line), path("text").native()));
    EXPECT_EQ(result.code, 0) << reader.program << result.text();
    EXPECT_EQ(result.err, "") << reader.program;
  }
  if (!absent.empty()) GTEST_SKIP() << "not installed, so not asked:" << absent;
}

}  // namespace
}  // namespace attn::io
