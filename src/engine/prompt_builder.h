// From a request to a prompt: messages through the chat template, pictures through the image processor, placeholders
// expanded, text to token ids, M-RoPE positions. Control tokens count only where the template wrote them
// (text/prompt_segment.h).
#pragma once

#include <optional>
#include <string>

#include "engine/prompt.h"
#include "heirloom/engine.h"
#include "image/processor.h"
#include "model/model_files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace heirloom::engine {

struct BuiltPrompt {
  Prompt prompt;
  std::string text;      // as rendered, placeholders not expanded
  double image_ms = 0;   // decoding and resizing
};

/// Thread-safe.
class PromptBuilder {
 public:
  struct Options {
    bool strip_volatile_lines = true;
    std::string downsample;  // "" = as the model's files say
  };
  /// `tokenizer` must outlive the builder. Error{bad_file} for an unusable template or processor config.
  PromptBuilder(const model::ModelFiles& files, const text::Tokenizer& tokenizer, Options options);

  /// Error{usage} for a bad request (pictures without a vision part, no template), Error{bad_file} for a bad picture.
  BuiltPrompt build(const Request& request) const;
  bool accepts_images() const { return processor_.has_value(); }

 private:
  std::vector<text::PromptSegment> render(const Request& request) const;
  void place_images(Prompt& prompt, const std::vector<std::shared_ptr<const ProcessedImage>>& images) const;
  void set_boundaries(Prompt& prompt, bool generation_prompt) const;

  const text::Tokenizer& tokenizer_;
  model::ModelConfig config_;
  Options options_;
  std::optional<text::ChatTemplate> template_;
  std::optional<ImageProcessorConfig> processor_;
  std::int32_t image_token_ = -1;
};

}  // namespace heirloom::engine
