// The parts of a folder of Hugging Face. Each adds the values that GGUF has in its place, and
// throws std::runtime_error, which names what is wrong.
#pragma once

#include <cstdint>

#include "json.hpp"
#include "model_file.hpp"

namespace generate {

// The tokens that end a text, of config.json.
void read_ends(const nlohmann::json& config, std::int64_t vocabulary, ModelContents& to);
// tokenizer.json. vocabulary: tokens of the model, some of which may have no text.
void read_tokenizer(const nlohmann::json& json, std::int64_t vocabulary, ModelContents& to);

}  // namespace generate
