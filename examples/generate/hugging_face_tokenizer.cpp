// tokenizer.json: byte-level BPE, and BPE over bytes of last resort, as SentencePiece has it.
#include <algorithm>
#include <map>
#include <stdexcept>

#include "hugging_face.hpp"

namespace generate {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

constexpr double kNormal = 1, kControl = 3, kOfUser = 4, kUnused = 5, kByte = 6;

// The parts of a normalizer, pre-tokenizer or post-processor, which may be a Sequence of others.
std::vector<const Json*> parts(const Json& json, const char* key, const char* of_sequence) {
  if (!has(json, key)) return {};
  const Json& whole = member(json, key);
  if (text(whole, "type") != "Sequence") return {&whole};
  std::vector<const Json*> found;
  for (const Json& part : member(whole, of_sequence)) found.push_back(&part);
  return found;
}

// How words are split, in the name that GGUF has for it.
std::string split_of(const Json& json) {
  std::string found;
  for (const Json* part : parts(json, "pre_tokenizer", "pretokenizers")) {
    const std::string& type = text(*part, "type");
    if (type == "Digits" && flag(*part, "individual_digits", false)) {
      found = "smollm";
    } else if (type == "Split") {
      // That of Llama 3; others of its kind differ in how many digits are a word.
      const std::string& expression = text(member(*part, "pattern"), "Regex");
      if (!expression.starts_with("(?i:'s|") ||
          expression.find("|\\p{N}{1,3}|") == expression.npos) {
        fail("its pre_tokenizer splits by " + expression.substr(0, 100) +
             "; accepted is the expression of Llama 3");
      }
      found = "llama-bpe";
    } else if (type == "ByteLevel" && !flag(*part, "add_prefix_space", false) &&
               flag(*part, "use_regex", true) == (found != "llama-bpe")) {
      if (found.empty()) found = "gpt2";
    } else {
      fail("its pre_tokenizer has " + type +
           "; accepted are ByteLevel without add_prefix_space, alone or behind Digits of single "
           "digits, and without its own expression behind a Split");
    }
  }
  if (found.empty()) fail("it has no pre_tokenizer; accepted is ByteLevel");
  return found;
}

// Tokens by number; `kinds` as in GGUF.
void read_tokens(const Json& json, std::int64_t vocabulary, bool is_bytes,
                 std::vector<std::string>& tokens, std::vector<double>& kinds) {
  tokens.resize(static_cast<std::size_t>(vocabulary));
  kinds.assign(tokens.size(), kUnused);
  const Json& vocab = member(member(json, "model"), "vocab");
  if (!vocab.is_object()) fail("vocab is no object");
  for (const auto& [token, number] : vocab.items()) {
    const auto id = static_cast<std::size_t>(integer_below(number, vocabulary, "vocab"));
    const bool is_byte = !is_bytes && token.size() == 6 && token.starts_with("<0x");
    tokens[id] = token;
    kinds[id] = is_byte ? kByte : kNormal;
  }
  if (!has(json, "added_tokens")) return;
  for (const Json& added : member(json, "added_tokens")) {
    const auto id =
        static_cast<std::size_t>(integer_below(member(added, "id"), vocabulary, "added_tokens"));
    tokens[id] = text(added, "content");
    kinds[id] = flag(added, "special", false) ? kControl : kOfUser;
  }
}

// "a b" each; newer files have ["a", "b"].
std::vector<std::string> read_merges(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : member(model, "merges")) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      fail("merges has an entry that is no pair");
    }
  }
  return merges;
}

// SentencePiece merges what has the largest score: the earlier a merge, the larger.
std::vector<double> scores_of(const std::vector<std::string>& merges,
                              const std::vector<std::string>& tokens) {
  std::map<std::string, double> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::size_t blank = merges[i].find(' ');
    ranks.emplace(merges[i].substr(0, blank) + merges[i].substr(blank + 1),
                  -static_cast<double>(i));
  }
  std::vector<double> scores(tokens.size(), -1e9);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (const auto found = ranks.find(tokens[i]); found != ranks.end()) scores[i] = found->second;
  }
  return scores;
}

// Whether a text begins with a token of its own, which is then the value of a beginning.
void read_beginning(const Json& json, const std::vector<std::string>& tokens, ModelContents& to) {
  to.values.insert_or_assign("tokenizer.ggml.add_bos_token", 0.0);
  for (const Json* part : parts(json, "post_processor", "processors")) {
    if (text(*part, "type") != "TemplateProcessing") continue;
    const Json& single = member(*part, "single");
    if (!single.is_array() || single.empty() || !has(single[0], "SpecialToken")) continue;
    const std::string& token = text(member(single[0], "SpecialToken"), "id");
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    if (found == tokens.end()) fail("its post_processor begins with " + token + ", no token");
    to.values.insert_or_assign("tokenizer.ggml.add_bos_token", 1.0);
    to.values.insert_or_assign("tokenizer.ggml.bos_token_id",
                               static_cast<double>(found - tokens.begin()));
  }
}

}  // namespace

void read_ends(const Json& config, std::int64_t vocabulary, ModelContents& to) {
  if (!has(config, "eos_token_id")) return;
  constexpr const char* kKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                   "tokenizer.ggml.eom_token_id"};
  const Json& value = member(config, "eos_token_id");
  const Json ends = value.is_array() ? value : Json::array({value});
  if (ends.size() > std::size(kKeys)) fail("eos_token_id has more than 3 tokens");
  for (std::size_t i = 0; i < ends.size(); ++i) {
    to.values.insert_or_assign(
        kKeys[i], static_cast<double>(integer_below(ends[i], vocabulary, "eos_token_id")));
  }
}

void read_tokenizer(const Json& json, std::int64_t vocabulary, ModelContents& to) {
  const Json& model = member(json, "model");
  if (text(model, "type", "BPE") != "BPE") {
    fail("its model is " + text(model, "type") + "; accepted is BPE");
  }
  const bool is_bytes = !flag(model, "byte_fallback", false);
  std::vector<std::string> tokens;
  std::vector<double> kinds;
  read_tokens(json, vocabulary, is_bytes, tokens, kinds);
  std::vector<std::string> merges = read_merges(model);
  read_beginning(json, tokens, to);
  if (is_bytes) {
    to.values.insert_or_assign("tokenizer.ggml.model", "gpt2");
    to.values.insert_or_assign("tokenizer.ggml.pre", split_of(json));
    to.values.insert_or_assign("tokenizer.ggml.merges", std::move(merges));
  } else {
    bool prepends = false;
    for (const Json* part : parts(json, "normalizer", "normalizers")) {
      prepends = prepends || text(*part, "type") == "Prepend";
    }
    for (const Json* part : parts(json, "pre_tokenizer", "pretokenizers")) {
      prepends = prepends || (text(*part, "type") == "Metaspace" &&
                              text(*part, "prepend_scheme", "always") != "never");
    }
    to.values.insert_or_assign("tokenizer.ggml.model", "llama");
    to.values.insert_or_assign("tokenizer.ggml.add_space_prefix", prepends ? 1.0 : 0.0);
    to.values.insert_or_assign("tokenizer.ggml.scores", scores_of(merges, tokens));
  }
  to.values.insert_or_assign("tokenizer.ggml.tokens", std::move(tokens));
  to.values.insert_or_assign("tokenizer.ggml.token_type", std::move(kinds));
}

}  // namespace generate
