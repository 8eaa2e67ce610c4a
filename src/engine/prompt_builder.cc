#include "engine/prompt_builder.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "engine/live_sequence.h"
#include "engine/volatile_lines.h"
#include "image/decode.h"
#include "image/positions.h"
#include "text/messages.h"

namespace heirloom::engine {
namespace {

using SharedImage = std::shared_ptr<const ProcessedImage>;

std::shared_ptr<const ImageUnit> make_unit(const SharedImage& image, std::size_t tile_index, const ImageProcessorConfig& config) {
  auto unit = std::make_shared<ImageUnit>();
  unit->content_hash = XXH3_64bits_withSeed(image->content_hash.data(), image->content_hash.size(), tile_index);
  unit->make_input = [image, tile_index, config] {
    const ImageTile& tile = image->tiles[tile_index];
    model::VisionInput input;
    const std::span<const std::uint8_t> bytes = std::span(image->pixels_u8).subspan(
        tile.first_patch * config.patch_bytes(), tile.patches() * config.patch_bytes());
    input.pixels.assign(bytes.begin(), bytes.end());
    input.values = normalize_table(config);
    input.grids = {{1, static_cast<int>(tile.grid_h), static_cast<int>(tile.grid_w)}};
    input.downsample_4x = config.kind == ImageProcessorKind::minicpmv && config.downsample_mode == DownsampleMode::x4;
    return input;
  };
  return unit;
}

}  // namespace

PromptBuilder::PromptBuilder(const model::ModelFiles& files, const text::Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), config_(files.config), options_(std::move(options)) {
  const std::string source = files.path.string();
  if (!files.chat_template.empty()) template_.emplace(files.chat_template);
  if (!files.config.vision.present || !files.vision) {
    if (!options_.downsample.empty()) {
      fail(ErrorKind::usage, "--downsample {}: {} has no vision part", options_.downsample, source);
    }
    return;
  }
  processor_ = ImageProcessorConfig::from_json(files.preprocessor_json, source);
  if (!options_.downsample.empty()) {
    if (processor_->kind != ImageProcessorKind::minicpmv) {
      fail(ErrorKind::usage, "--downsample {}: only MiniCPM-V models have this choice", options_.downsample);
    }
    processor_->downsample_mode = parse_downsample_mode(options_.downsample);
  }
  image_token_ = config_.image_token_id >= 0 ? config_.image_token_id
                                             : tokenizer_.token_to_id(PlaceholderTokens{}.image).value_or(-1);
  if (image_token_ < 0) fail(ErrorKind::bad_file, "{}: the tokenizer has no {} token", source, PlaceholderTokens{}.image);
}

std::vector<text::PromptSegment> PromptBuilder::render(const Request& request) const {
  if (request.raw_text) return {{*request.raw_text, true}};
  if (!template_) {
    fail(ErrorKind::usage, "this model's files have no chat template; expected a plain prompt (run --raw) instead of messages");
  }
  text::ChatInput input;
  input.messages = request.messages;
  if (!input.messages.is_array() || input.messages.empty()) {
    fail(ErrorKind::usage, "messages: expected a list with at least one message");
  }
  if (options_.strip_volatile_lines) strip_volatile_lines(input.messages);
  input.messages = text::normalize_messages(input.messages);
  input.tools = request.tools;
  if (!request.template_kwargs.is_null()) input.kwargs = request.template_kwargs;
  input.add_generation_prompt = request.add_generation_prompt;
  const auto text_of = [&](std::optional<std::int32_t> id) { return id ? std::string(tokenizer_.token_bytes(*id)) : std::string(); };
  input.bos_token = text_of(tokenizer_.bos_id());
  input.eos_token = text_of(tokenizer_.eos_id());
  input.pad_token = text_of(tokenizer_.pad_id());
  return template_->render_segments(input);
}

BuiltPrompt PromptBuilder::build(const Request& request) const {
  const int given = (request.messages.is_null() ? 0 : 1) + (request.raw_text ? 1 : 0) + (request.token_ids ? 1 : 0);
  if (given != 1) fail(ErrorKind::usage, "a request needs exactly one of messages, text or token ids; found {}", given);
  BuiltPrompt built;
  Prompt& prompt = built.prompt;
  if (request.token_ids) {
    if (!request.images.empty()) fail(ErrorKind::usage, "a prompt of token ids takes no pictures");
    prompt.token_ids = *request.token_ids;
    built.text = tokenizer_.decode(prompt.token_ids, false);
    set_plain_positions(prompt);
    set_symbols(prompt);
    return built;
  }
  if (!request.images.empty() && !processor_) {
    fail(ErrorKind::usage, "this model has no vision part; found {} picture{}", request.images.size(),
         request.images.size() == 1 ? "" : "s");
  }
  const auto begin = Clock::now();
  std::vector<SharedImage> images;
  std::vector<std::string> replacements;
  for (const ImageInput& input : request.images) {
    try {
      images.push_back(std::make_shared<const ProcessedImage>(process_image(decode_image(input.bytes), *processor_)));
    } catch (const Error& error) {
      throw error.wrap(input.name.empty() ? fmt::format("picture {}", images.size() + 1) : input.name);
    }
    replacements.push_back(placeholder_text(*images.back(), *processor_, images.size() - 1));
  }
  built.image_ms = milliseconds(begin, Clock::now());

  std::vector<text::PromptSegment> segments = render(request);
  built.text = text::join_segments(segments);
  segments = text::expand_placeholders(segments, PlaceholderTokens{}.image, replacements, "pictures");
  prompt.token_ids = tokenizer_.encode_segments(segments);
  if (images.empty()) {
    set_plain_positions(prompt);
  } else {
    place_images(prompt, images);
  }
  set_symbols(prompt);
  if (!request.raw_text) set_boundaries(prompt, request.add_generation_prompt);
  return built;
}

/// Gives each tile its run of placeholder tokens, and all tokens their positions.
void PromptBuilder::place_images(Prompt& prompt, const std::vector<SharedImage>& images) const {
  std::vector<GridThw> grids;
  std::size_t token = 0;
  for (const SharedImage& image : images) {
    for (std::size_t t = 0; t < image->tiles.size(); ++t) {
      const ImageTile& tile = image->tiles[t];
      grids.push_back({1, static_cast<std::int32_t>(tile.grid_h), static_cast<std::int32_t>(tile.grid_w)});
      while (token < prompt.token_ids.size() && prompt.token_ids[token] != image_token_) ++token;
      const std::size_t end = std::min(token + tile.tokens, prompt.token_ids.size());
      const bool whole = end - token == tile.tokens &&
                         std::all_of(prompt.token_ids.begin() + static_cast<std::ptrdiff_t>(token),
                                     prompt.token_ids.begin() + static_cast<std::ptrdiff_t>(end),
                                     [&](std::int32_t id) { return id == image_token_; });
      if (!whole) fail(ErrorKind::internal, "the prompt holds fewer picture tokens than the picture's {} features", tile.tokens);
      prompt.images.push_back({static_cast<std::int64_t>(token), static_cast<std::int64_t>(tile.tokens), 0,
                               make_unit(image, t, *processor_)});
      token = end;
    }
  }
  if (std::find(prompt.token_ids.begin() + static_cast<std::ptrdiff_t>(token), prompt.token_ids.end(), image_token_) !=
      prompt.token_ids.end()) {
    fail(ErrorKind::internal, "the prompt holds more picture tokens than its pictures have features");
  }
  if (config_.family == model::Family::minicpmv4_6) {  // plain 1-D positions
    set_plain_positions(prompt);
    return;
  }
  std::vector<TokenModality> modality(prompt.token_ids.size(), TokenModality::text);
  for (const ImageSpan& span : prompt.images) {
    std::fill_n(modality.begin() + span.first_token, span.count, TokenModality::image);
  }
  MropePositions positions = mrope_positions(modality, grids, {}, config_.vision.spatial_merge_size);
  prompt.positions = std::move(positions.ids);
  prompt.next_position = static_cast<std::int32_t>(prompt.size()) + positions.delta;
}

/// The template opens every message with the same control token: its second occurrence ends the system part (or the first
/// message), its last one begins the generation suffix.
void PromptBuilder::set_boundaries(Prompt& prompt, bool generation_prompt) const {
  if (prompt.token_ids.empty() || !tokenizer_.is_special(prompt.token_ids.front())) return;
  std::vector<std::int64_t> openings;
  for (std::size_t i = 1; i < prompt.token_ids.size(); ++i) {
    if (prompt.token_ids[i] == prompt.token_ids.front()) openings.push_back(static_cast<std::int64_t>(i));
  }
  if (openings.empty()) return;
  prompt.boundaries.push_back(openings.front());
  if (generation_prompt && openings.size() > 1) prompt.boundaries.push_back(openings.back());
}

}  // namespace heirloom::engine
