// A request's prompt as the scheduler runs it: token ids with pictures in place, M-RoPE positions, and the symbols that
// identify each prefix in the cache. Made by prompt_builder.h; immutable afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace heirloom::engine {

/// What a prefix is keyed by: the id of a text token, or a hash (top bit set) of picture content and place for the tokens
/// that a picture's features replace. Equal symbol sequences have equal states.
using Symbol = std::uint64_t;
inline constexpr Symbol kImageSymbolBit = Symbol{1} << 63;

/// One grid of patches (a Qwen picture, a MiniCPM overview or slice): the unit that the vision tower encodes at once.
struct ImageUnit {
  std::uint64_t content_hash = 0;  // of pixels, grid and processor settings
  std::function<model::VisionInput()> make_input;  // only called when its features are not known
};

/// Tokens [first_token, first_token + count) take features [first_feature, ...) of the unit.
struct ImageSpan {
  std::int64_t first_token = 0;
  std::int64_t count = 0;
  std::int64_t first_feature = 0;
  std::shared_ptr<const ImageUnit> unit;
};

struct Prompt {
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> positions;     // [3, token_ids.size()]: t, h, w
  std::int32_t next_position = 0;          // of the first generated token, in all three rows
  std::vector<ImageSpan> images;           // ascending, without overlap
  std::vector<Symbol> symbols;             // [token_ids.size()]
  std::vector<std::int64_t> boundaries;    // ascending: places worth a snapshot (after the system part, before the suffix)

  std::int64_t size() const { return static_cast<std::int64_t>(token_ids.size()); }
};

/// Fills positions 0, 1, 2, ... in all three rows and next_position.
void set_plain_positions(Prompt& prompt);
/// Fills symbols from token_ids and images.
void set_symbols(Prompt& prompt);
/// Throws Error{internal} unless positions, images and symbols fit token_ids.
void check_prompt(const Prompt& prompt, int vocab_size);

}  // namespace heirloom::engine
