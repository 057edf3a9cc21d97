// attn.1, in the macros of man(7).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attn/version.hpp"
#include "command/generate.hpp"
#include "command/option_table.hpp"

namespace attn::command {
namespace {

// Text that troff shows as it is: a line that begins with a dot or a quote is a request to it.
std::string text(const std::string& plain) {
  std::string result = replaced(replaced(plain, "\\", "\\e"), "-", "\\-");
  result = replaced(replaced(result, "\n.", "\n\\&."), "\n'", "\n\\&'");
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

std::string option_text(const OptionEntry& option) {
  std::string value;
  if (!option.choices.empty()) {
    value = fmt::format(" {}", fmt::join(option.choices, "|"));
  } else if (!option.value.empty()) {
    value = fmt::format(" {}", option.value);
  }
  std::string description = option.description;
  if (!option.default_text.empty()) {
    description += fmt::format(" (default: {})", option.default_text);
  }
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", text(option.name), text(value), text(description));
}

}  // namespace

std::string man_page(const CLI::App& app) {
  std::string page = fmt::format(".TH ATTN 1 \"\" \"attn {}\"\n", ATTN_VERSION_STRING);
  page += fmt::format(".SH NAME\nattn \\- {}\n", text(app.get_description()));
  page += ".SH SYNOPSIS\n";
  for (const CLI::App* sub : subcommands(app)) {
    std::string arguments = " [options]";
    for (const OptionEntry& option : option_table(*sub)) {
      if (option.positional) arguments += " [" + option.name + "...]";
    }
    page += fmt::format(".B attn {}\n{}\n.br\n", text(sub->get_name()), text(arguments.substr(1)));
  }
  page += fmt::format(".SH DESCRIPTION\n{}\n", text(app.get_footer()));
  for (const CLI::App* sub : subcommands(app)) {
    std::string title = "attn " + sub->get_name();
    page += fmt::format(".SH {}\n{}.\n", replaced(title, "-", "\\-"), text(sub->get_description()));
    for (const OptionEntry& option : option_table(*sub)) page += option_text(option);
    page += fmt::format(".PP\n.nf\n{}\n.fi\n", text(sub->get_footer()));
  }
  return page;
}

}  // namespace attn::command
