// The words of a text that byte-level BPE takes one by one. Models' makers define them by regular
// expressions over Unicode's categories:
//   gpt2       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   smollm     the same, between digits that stand alone
//   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//              | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// Past ASCII and Latin-1 categories are told by ranges, so rare characters may be split otherwise
// than a model has learnt.
#include <algorithm>
#include <array>
#include <cstddef>

#include "tokenizer.hpp"

namespace generate {
namespace {

enum class Kind : std::uint8_t { letter, digit, space, other, none };

struct Range {
  char32_t first, last;
};
template <std::size_t n>
bool within(char32_t c, const std::array<Range, n>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range& r) { return r.first <= c && c <= r.last; });
}

constexpr std::array<Range, 10> kSpaces{{{9, 13},
                                         {0x20, 0x20},
                                         {0x85, 0x85},
                                         {0xa0, 0xa0},
                                         {0x1680, 0x1680},
                                         {0x2000, 0x200a},
                                         {0x2028, 0x2029},
                                         {0x202f, 0x202f},
                                         {0x205f, 0x205f},
                                         {0x3000, 0x3000}}};
constexpr std::array<Range, 9> kDigits{{{'0', '9'},
                                        {0xb2, 0xb3},
                                        {0xb9, 0xb9},
                                        {0xbc, 0xbe},
                                        {0x660, 0x669},
                                        {0x966, 0x96f},
                                        {0x2070, 0x2089},
                                        {0x2150, 0x218b},
                                        {0xff10, 0xff19}}};
// Neither letters nor digits: of ASCII, Latin-1, punctuation, signs, private use, emoji.
constexpr std::array<Range, 19> kOthers{{{0, 0x40},
                                         {0x5b, 0x60},
                                         {0x7b, 0xa9},
                                         {0xab, 0xb4},
                                         {0xb6, 0xb9},
                                         {0xbb, 0xbf},
                                         {0xd7, 0xd7},
                                         {0xf7, 0xf7},
                                         {0x300, 0x36f},
                                         {0x2000, 0x206f},
                                         {0x208a, 0x208e},
                                         {0x20a0, 0x20ff},
                                         {0x2190, 0x2bff},
                                         {0x3001, 0x3004},
                                         {0x3007, 0x3030},
                                         {0xe000, 0xf8ff},
                                         {0xfe00, 0xfe6f},
                                         {0xff00, 0xff20},
                                         {0x1f000, 0x1faff}}};

Kind kind_of(char32_t c) {
  if (within(c, kSpaces)) return Kind::space;
  if (within(c, kDigits)) return Kind::digit;
  return within(c, kOthers) ? Kind::other : Kind::letter;
}

// The text by code points. A byte that is no UTF-8 stands for itself.
class Reader {
 public:
  Reader(std::string_view text, bool thirds) : text_(text), thirds_(thirds) {}

  std::size_t next_word(std::size_t at) const { return thirds_ ? llama_word(at) : gpt2_word(at); }

 private:
  struct Point {
    char32_t code = 0;
    Kind kind = Kind::none;  // past the end
    std::size_t end = 0;
  };
  Point at(std::size_t i) const {
    if (i >= text_.size()) return {};
    const auto byte = [&](std::size_t k) {
      return k < text_.size() ? static_cast<unsigned char>(text_[k]) : 0u;
    };
    const unsigned first = byte(i);
    const std::size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    char32_t code = more == 0 ? first : first & (0x3fu >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80) return {first, kind_of(first), i + 1};
      code = code << 6 | (byte(i + k) & 0x3fu);
    }
    return {code, kind_of(code), i + more + 1};
  }
  static bool breaks(const Point& p) { return p.code == '\r' || p.code == '\n'; }
  // Past those of a kind that follow.
  std::size_t skip(std::size_t i, Kind kind) const {
    for (Point p = at(i); p.kind == kind; p = at(i)) i = p.end;
    return i;
  }

  std::size_t contraction(std::size_t i, bool any_case) const {
    if (text_[i] != '\'') return 0;
    for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      const std::string_view there = text_.substr(i + 1, ending.size());
      if (std::equal(there.begin(), there.end(), ending.begin(), ending.end(),
                     [&](char a, char b) { return a == b || (any_case && (a | 32) == b); })) {
        return i + 1 + ending.size();
      }
    }
    return 0;
  }
  // \s+(?!\S)|\s+: all blanks but the last, which the next word takes, unless it is alone.
  std::size_t blanks(std::size_t i) const {
    std::size_t last = i, end = i;
    for (Point p = at(i); p.kind == Kind::space; p = at(end)) {
      last = end;
      end = p.end;
    }
    return end < text_.size() && last > i ? last : end;
  }

  std::size_t gpt2_word(std::size_t i) const {
    if (const std::size_t end = contraction(i, false)) return end;
    const std::size_t start = text_[i] == ' ' ? i + 1 : i;  // ' ?' of three of the alternatives
    const Kind kind = at(start).kind;
    if (kind != Kind::space && kind != Kind::none) return skip(start, kind);
    return blanks(i);
  }

  std::size_t llama_word(std::size_t i) const {
    if (const std::size_t end = contraction(i, true)) return end;
    const Point first = at(i);
    if (first.kind == Kind::letter) return skip(i, Kind::letter);
    if (first.kind == Kind::digit) {
      std::size_t end = first.end;
      for (int n = 1; n < 3 && at(end).kind == Kind::digit; ++n) end = at(end).end;
      return end;
    }
    if (!breaks(first) && at(first.end).kind == Kind::letter) return skip(first.end, Kind::letter);
    const std::size_t start = text_[i] == ' ' ? i + 1 : i;
    if (at(start).kind == Kind::other) {
      std::size_t end = skip(start, Kind::other);
      while (breaks(at(end))) ++end;
      return end;
    }
    std::size_t after_break = 0;  // \s*[\r\n]+
    for (std::size_t k = i; at(k).kind == Kind::space; k = at(k).end) {
      if (breaks(at(k))) after_break = at(k).end;
    }
    return after_break != 0 ? after_break : blanks(i);
  }

  std::string_view text_;
  bool thirds_;
};

void split(std::string_view text, bool thirds, std::vector<std::string_view>& words) {
  const Reader reader(text, thirds);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = reader.next_word(at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text, std::string_view split_by) {
  std::vector<std::string_view> words;
  if (split_by != "smollm") {
    split(text, split_by == "llama-bpe", words);
    return words;
  }
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool digit = i < text.size() && text[i] >= '0' && text[i] <= '9';
    if (i < text.size() && !digit) continue;
    split(text.substr(begin, i - begin), false, words);
    if (digit) words.push_back(text.substr(i, 1));
    begin = i + 1;
  }
  return words;
}

}  // namespace generate
