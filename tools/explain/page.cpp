#include "explain/page.hpp"

#include <fmt/format.h>

#include <string_view>

#include "attn/error.hpp"

namespace attn::explain {
namespace {

std::string_view file(std::string_view name) {
  const core::EmbeddedFiles& files = web_files();
  for (int i = 0; i < files.count; ++i) {
    if (name == files.begin[i].name) return files.begin[i].text;
  }
  throw Error(ErrorCode::internal, fmt::format("the page needs the file {}", name));
}

// Replaces every `before` NAME `after` by open + the text of the file NAME + close.
void put_inside(std::string& page, std::string_view before, std::string_view after,
                std::string_view open, std::string_view close) {
  for (std::size_t at = 0; (at = page.find(before, at)) != std::string::npos;) {
    const std::size_t name = at + before.size();
    const std::size_t end = page.find(after, name);
    const std::string text =
        fmt::format("{}{}{}", open, file(page.substr(name, end - name)), close);
    page.replace(at, end + after.size() - at, text);
    at += text.size();
  }
}

std::string escaped_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// JSON in which no text ends the element that holds it.
std::string inside_script(const Json& data) {
  std::string result;
  for (const char c : data.dump(-1, ' ', true)) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  return result;
}

void replace_mark(std::string& page, std::string_view mark, const std::string& text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

std::string page(const std::string& title, const Json& data) {
  std::string result(file("page.html"));
  put_inside(result, R"(<link rel="stylesheet" href=")", R"(">)", "<style>\n", "</style>");
  put_inside(result, R"(<script src=")", R"("></script>)", "<script>\n", "</script>");
  replace_mark(result, "%title%", escaped_html(title));
  replace_mark(result, "%data%", inside_script(data));
  return result;
}

}  // namespace attn::explain
