// Text to tokens and back, as a model file says: byte-level BPE (tokenizer.ggml.model "gpt2") or
// SentencePiece ("llama").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model_file.hpp"

namespace generate {

class Tokenizer {
 public:
  explicit Tokenizer(const ModelFile& file);  // throws std::runtime_error

  // Begins with the token of a beginning where the file asks for it. Control tokens that stand in
  // the text, as <|im_start|>, are themselves.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // The bytes of a token; none of a control token.
  std::string decode(std::int32_t token) const;
  bool ends(std::int32_t token) const;
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;
  std::vector<std::string> merge(std::vector<std::string> symbols) const;

  bool is_bpe_ = false, add_begin_ = false, add_space_ = false;
  std::string split_by_{};  // tokenizer.ggml.pre
  std::int32_t begin_ = -1;
  std::vector<std::int32_t> ends_{};
  std::vector<std::string> tokens_{};
  std::vector<double> kinds_{};          // 1: normal, 3: control, 4: of the user, 6: a byte
  std::vector<std::int32_t> special_{};  // of kinds 3 and 4
  std::unordered_map<std::string, std::int32_t> ids_{};
  std::unordered_map<std::string, double> merges_{};  // two symbols and what they lose by merging
};

// The words that BPE takes one by one, as views of the text. split_by: "gpt2", "smollm" or
// "llama-bpe", regular expressions of these models' makers.
std::vector<std::string_view> split_words(std::string_view text, std::string_view split_by);

}  // namespace generate
