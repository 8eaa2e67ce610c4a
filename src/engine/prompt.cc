#include "engine/prompt.h"

#include <xxhash.h>

#include <numeric>

#include "base/check.h"

namespace heirloom::engine {

void set_plain_positions(Prompt& prompt) {
  const std::size_t size = prompt.token_ids.size();
  prompt.positions.resize(3 * size);
  for (std::size_t row = 0; row < 3; ++row) {
    std::iota(prompt.positions.begin() + static_cast<std::ptrdiff_t>(row * size),
              prompt.positions.begin() + static_cast<std::ptrdiff_t>((row + 1) * size), 0);
  }
  prompt.next_position = static_cast<std::int32_t>(size);
}

void set_symbols(Prompt& prompt) {
  prompt.symbols.assign(prompt.token_ids.begin(), prompt.token_ids.end());
  for (const ImageSpan& span : prompt.images) {
    for (std::int64_t i = 0; i < span.count; ++i) {
      const std::uint64_t feature = static_cast<std::uint64_t>(span.first_feature + i);
      const Symbol hash = XXH3_64bits_withSeed(&feature, sizeof(feature), span.unit->content_hash);
      prompt.symbols[static_cast<std::size_t>(span.first_token + i)] = hash | kImageSymbolBit;
    }
  }
}

void check_prompt(const Prompt& prompt, int vocab_size) {
  const auto size = prompt.size();
  std::int64_t next = 0;
  bool ok = prompt.positions.size() == 3 * prompt.token_ids.size() && prompt.symbols.size() == prompt.token_ids.size();
  for (const ImageSpan& span : prompt.images) {
    ok = ok && span.unit && span.count > 0 && span.first_token >= next && span.first_token + span.count <= size;
    next = span.first_token + span.count;
  }
  if (!ok) fail(ErrorKind::internal, "the prompt's pictures or positions do not fit its {} tokens", size);
  for (const std::int32_t id : prompt.token_ids) {
    if (id < 0 || id >= vocab_size) {
      fail(ErrorKind::usage, "token {} is in the prompt; this model has tokens 0 to {}", id, vocab_size - 1);
    }
  }
}

}  // namespace heirloom::engine
