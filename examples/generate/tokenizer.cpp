#include "tokenizer.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>

namespace generate {
namespace {

constexpr std::string_view kBlank = "\u2581";  // what SentencePiece writes for a blank

std::string utf8(unsigned code) {  // below 2048
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// How byte-level BPE writes each byte: as itself where it is printable Latin-1, else as a character
// from 256 on.
std::array<std::string, 256> written_bytes() {
  std::array<std::string, 256> written;
  unsigned next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    written[b] = utf8(printable ? b : next++);
  }
  return written;
}
const std::array<std::string, 256>& written() {
  static const std::array<std::string, 256> table = written_bytes();
  return table;
}

std::size_t length_of_character(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80) ++end;
  return end - at;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

std::string byte_token(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", unsigned{byte});
  return text;
}

}  // namespace

Tokenizer::Tokenizer(const ModelFile& file) : tokens_(file.texts("tokenizer.ggml.tokens")) {
  const std::string& model = file.text("tokenizer.ggml.model");
  if (model != "gpt2" && model != "llama") {
    throw std::runtime_error("tokenizer.ggml.model is " + model + "; accepted are gpt2 and llama");
  }
  if (tokens_.size() >= std::size_t{1} << 31) throw std::runtime_error("there are 2^31 tokens");
  is_bpe_ = model == "gpt2";
  add_begin_ = file.number("tokenizer.ggml.add_bos_token", is_bpe_ ? 0 : 1) != 0;
  add_space_ = !is_bpe_ && file.number("tokenizer.ggml.add_space_prefix", 1) != 0;
  const auto token = [&](const char* key) {
    const int id = file.has(key) ? file.integer(key, 0) : -1;
    if (id >= size()) {
      throw std::runtime_error(std::string(key) + " is " + std::to_string(id) + "; there are " +
                               std::to_string(size()) + " tokens");
    }
    return id;
  };
  begin_ = token("tokenizer.ggml.bos_token_id");
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (file.has(key)) ends_.push_back(token(key));
  }
  if (add_begin_ && begin_ < 0) throw std::runtime_error("it has no tokenizer.ggml.bos_token_id");

  kinds_ = file.has("tokenizer.ggml.token_type") ? file.numbers("tokenizer.ggml.token_type")
                                                 : std::vector<double>(tokens_.size(), 1);
  if (kinds_.size() != tokens_.size()) {
    throw std::runtime_error("tokenizer.ggml.token_type has " + std::to_string(kinds_.size()) +
                             " entries for " + std::to_string(tokens_.size()) + " tokens");
  }
  for (std::int32_t id = 0; id < size(); ++id) {
    const auto i = static_cast<std::size_t>(id);
    ids_.emplace(tokens_[i], id);
    if ((kinds_[i] == 3 || kinds_[i] == 4) && !tokens_[i].empty()) special_.push_back(id);
  }
  if (is_bpe_) {
    split_by_ = file.has("tokenizer.ggml.pre") ? file.text("tokenizer.ggml.pre") : "gpt2";
    if (split_by_ == "gpt-2") split_by_ = "gpt2";
    if (split_by_ != "gpt2" && split_by_ != "smollm" && split_by_ != "llama-bpe") {
      throw std::runtime_error("tokenizer.ggml.pre is " + split_by_ +
                               "; accepted are gpt-2, smollm and llama-bpe");
    }
    const std::vector<std::string>& merges = file.texts("tokenizer.ggml.merges");
    for (std::size_t i = 0; i < merges.size(); ++i) {
      merges_.emplace(merges[i], static_cast<double>(i));
    }
  } else {
    const std::vector<double>& scores = file.numbers("tokenizer.ggml.scores");
    if (scores.size() != tokens_.size()) {
      throw std::runtime_error("tokenizer.ggml.scores has " + std::to_string(scores.size()) +
                               " entries for " + std::to_string(tokens_.size()) + " tokens");
    }
    for (std::size_t i = 0; i < scores.size(); ++i) merges_.emplace(tokens_[i], -scores[i]);
  }
}

// Merges two neighbours again and again, always the pair that loses least, the first of equals.
std::vector<std::string> Tokenizer::merge(std::vector<std::string> symbols) const {
  const auto n = static_cast<int>(symbols.size());
  const auto symbol = [&](int i) -> std::string& { return symbols[static_cast<std::size_t>(i)]; };
  std::vector<int> next(symbols.size() + 1), before(symbols.size() + 1);
  for (int i = 0; i <= n; ++i) {
    next[static_cast<std::size_t>(i)] = i + 1;
    before[static_cast<std::size_t>(i)] = i - 1;
  }
  // What is lost, the left symbol, and the lengths of both, by which a pair is told that has merged
  // with another since.
  using Pair = std::tuple<double, int, std::size_t, std::size_t>;
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  const auto consider = [&](int left) {
    const int right = left < 0 ? n : next[static_cast<std::size_t>(left)];
    if (right >= n) return;
    const auto found = merges_.find(symbol(left) + (is_bpe_ ? " " : "") + symbol(right));
    if (found != merges_.end()) {
      pairs.emplace(found->second, left, symbol(left).size(), symbol(right).size());
    }
  };
  for (int i = 0; i + 1 < n; ++i) consider(i);
  while (!pairs.empty()) {
    const auto [lost, left, length_left, length_right] = pairs.top();
    pairs.pop();
    const int right = next[static_cast<std::size_t>(left)];
    if (right >= n || symbol(left).size() != length_left || symbol(right).size() != length_right) {
      continue;
    }
    symbol(left) += symbol(right);
    symbol(right).clear();
    const int after = next[static_cast<std::size_t>(right)];
    next[static_cast<std::size_t>(left)] = after;
    before[static_cast<std::size_t>(after)] = left;
    consider(left);
    consider(before[static_cast<std::size_t>(left)]);
  }
  std::erase(symbols, "");
  return symbols;
}

void Tokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  std::vector<std::string> symbols;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = is_bpe_ ? 1 : length_of_character(word, at);
    symbols.emplace_back(is_bpe_ ? written()[static_cast<unsigned char>(word[at])]
                                 : word.substr(at, length));
    at += length;
  }
  for (const std::string& piece : merge(std::move(symbols))) {
    if (const auto found = ids_.find(piece); found != ids_.end()) {
      out.push_back(found->second);
      continue;
    }
    if (is_bpe_) throw std::runtime_error("the model has no token for " + piece);
    for (const char c : piece) {
      const auto found = ids_.find(byte_token(static_cast<unsigned char>(c)));
      if (found == ids_.end()) throw std::runtime_error("the model has no token for " + piece);
      out.push_back(found->second);
    }
  }
}

void Tokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  if (text.empty()) return;
  if (is_bpe_) {
    for (const std::string_view word : split_words(text, split_by_)) encode_word(word, out);
    return;
  }
  std::string written_text = (add_space_ ? " " : "") + std::string(text);
  replace_all(written_text, " ", kBlank);
  encode_word(written_text, out);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> out;
  if (add_begin_) out.push_back(begin_);
  while (!text.empty()) {
    // The first control token in the text, of several there the longest.
    std::size_t at = std::string_view::npos, length = 0;
    std::int32_t which = -1;
    for (const std::int32_t id : special_) {
      const std::string& token = tokens_[static_cast<std::size_t>(id)];
      const std::size_t found = text.find(token);
      if (found < at || (found == at && found != text.npos && token.size() > length)) {
        at = found;
        length = token.size();
        which = id;
      }
    }
    encode_plain(text.substr(0, at), out);
    if (which < 0) break;
    out.push_back(which);
    text.remove_prefix(at + length);
  }
  return out;
}

bool Tokenizer::ends(std::int32_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

std::string Tokenizer::decode(std::int32_t token) const {
  const auto i = static_cast<std::size_t>(token);
  if (kinds_[i] == 3) return {};
  const std::string& text = tokens_[i];
  if (is_bpe_) {
    static const auto kBytes = [] {
      std::unordered_map<std::string, char> bytes;
      for (unsigned b = 0; b < 256; ++b) bytes.emplace(written()[b], static_cast<char>(b));
      return bytes;
    }();
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::string character = text.substr(at, length_of_character(text, at));
      const auto byte = kBytes.find(character);
      out += byte == kBytes.end() ? character : std::string(1, byte->second);
      at += character.size();
    }
    return out;
  }
  if (kinds_[i] == 6) {
    unsigned byte = 0;
    if (std::sscanf(text.c_str(), "<0x%2X>", &byte) == 1) return {static_cast<char>(byte)};
  }
  std::string out = text;
  replace_all(out, kBlank, " ");
  return out;
}

}  // namespace generate
