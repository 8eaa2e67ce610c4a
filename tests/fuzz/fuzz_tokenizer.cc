// Tokenizer files and texts. The first byte chooses: a tokenizer.json, GGUF metadata made of the input, or a text for a
// small good tokenizer, whose properties are then checked.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "heirloom/error.h"
#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode_nfc.h"
#include "text/utf8.h"

namespace {

using namespace heirloom::text;

void require(bool condition) {
  if (!condition) std::abort();
}

GgufVocabulary small_vocabulary() {
  GgufVocabulary gguf;
  gguf.pre = "qwen35";
  for (int b = 0; b < 256; ++b) gguf.tokens.emplace_back(byte_to_alphabet(static_cast<unsigned char>(b)));
  gguf.token_types.assign(256, 1);
  const std::pair<std::string, std::string> merges[] = {{"a", "a"}, {"aa", "aa"}, {" ", " "}, {"\n", "\n"}, {"\xCC", "\x81"}, {"t", "h"}, {"th", "e"}, {" ", "the"}, {"aa", "a"}};
  for (const auto& [left, right] : merges) {
    gguf.merges.push_back(bytes_to_alphabet(left) + " " + bytes_to_alphabet(right));
    gguf.tokens.push_back(bytes_to_alphabet(left + right));
    gguf.token_types.push_back(1);
  }
  for (const char* added : {"<|im_end|>", "<|im", "<think>"}) {
    gguf.tokens.emplace_back(added);
    gguf.token_types.push_back(added[1] == '|' ? 3 : 4);
  }
  return gguf;
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, SpecialTokens::parse);
  const std::string decoded = tokenizer.decode(ids, false);
  require(is_valid_utf8(decoded));
  Detokenizer detokenizer(tokenizer, false);
  std::string streamed;
  for (const auto id : ids) {
    const std::string piece = detokenizer.push(id);
    require(is_valid_utf8(piece));
    streamed += piece;
  }
  require(streamed + detokenizer.flush() == decoded);
  for (const auto id : tokenizer.encode(text, SpecialTokens::plain_only)) require(!tokenizer.is_special(id));
  const std::string valid = replace_invalid_utf8(text);
  const std::size_t half = valid.size() / 2;
  std::size_t cut = half;
  while (cut < valid.size() && (static_cast<unsigned char>(valid[cut]) & 0xC0) == 0x80) ++cut;
  const PromptSegment parts[] = {{valid.substr(0, cut), true}, {valid.substr(cut), true}};
  require(tokenizer.encode_segments(parts) == ids);
  const PromptSegment untrusted[] = {{valid.substr(0, cut), false}, {valid.substr(cut), false}};
  for (const auto id : tokenizer.encode_segments(untrusted)) require(!tokenizer.is_special(id));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const Tokenizer small = Tokenizer::from_gguf(small_vocabulary());
  try {
    switch (data[0] % 4) {
      case 0: check_text(Tokenizer::from_json(input, "{}"), "the quick <|im_end|> e\xCC\x81"); break;
      case 1: {
        GgufVocabulary gguf = small_vocabulary();
        for (std::size_t i = 0; i + 3 < input.size(); i += 4) {
          const auto at = static_cast<std::size_t>(static_cast<unsigned char>(input[i]));
          if (input[i + 1] & 1) gguf.tokens.emplace_back(input.substr(i + 2, at));
          if (input[i + 1] & 1) gguf.token_types.push_back(input[i + 2] & 7);
          if (input[i + 1] & 2) gguf.merges.emplace_back(input.substr(i + 2, at));
          if (input[i + 1] & 4) gguf.token_types[at % gguf.token_types.size()] = input[i + 3] & 7;
        }
        check_text(Tokenizer::from_gguf(gguf), input);
        break;
      }
      default:
        check_text(small, input);
        const std::string text = replace_invalid_utf8(input);
        require(small.decode(small.encode(text, SpecialTokens::as_text), false) == to_nfc(text));
    }
  } catch (const heirloom::Error&) {
  }
  return 0;
}
