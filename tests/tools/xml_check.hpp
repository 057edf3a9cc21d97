// Whether a text is well-formed XML, as far as the plots need it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn {

// Empty, or what is wrong: tags that do not nest, attributes without quotes, a bare '<' or '&'.
inline std::string xml_error(std::string_view text) {
  std::vector<std::string> open;
  bool rooted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '&') {
      const std::string_view rest = text.substr(i, 5);
      if (!rest.starts_with("&lt;") && !rest.starts_with("&gt;") && rest != "&amp;")
        return "bare &";
    }
    if (text[i] != '<') continue;
    const std::size_t end = text.find('>', i);
    if (end == std::string_view::npos) return "a tag does not end";
    std::string_view tag = text.substr(i + 1, end - i - 1);
    i = end;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1))
        return "</" + std::string(tag) + " > closes";
      open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.remove_suffix(1);
    const std::string name(tag.substr(0, tag.find(' ')));
    std::size_t quotes = 0, equals = 0;
    for (const char c : tag) {
      quotes += c == '"';
      equals += c == '=' && quotes % 2 == 0;
      if (c == '<') return "< inside <" + name;
    }
    if (quotes != 2 * equals) return "attributes of <" + name;
    if (open.empty() && rooted) return "a second root <" + name;
    rooted = true;
    if (!closed) open.push_back(name);
  }
  if (!open.empty()) return "<" + open.back() + "> is not closed";
  return rooted ? "" : "no element";
}

}  // namespace attn
