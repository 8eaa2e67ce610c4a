// The public interface of the engine: a loaded model that answers requests. One Engine serves many requests at once
// (continuous batching); the caller hands over the whole conversation each time and the engine reuses what it can.
// No tensor, instruction-set or CUDA type appears here. All functions throw heirloom::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "heirloom/error.h"
#include "heirloom/sampling.h"

namespace heirloom {

using Json = nlohmann::ordered_json;

struct EngineOptions {
  std::string model;                    // .gguf file, Hugging Face folder, or a bundled name (demo-vl, demo-moe)
  std::string mmproj;                   // vision part as llama.cpp keeps it, optional
  std::string device = "auto";          // auto | cpu | cuda[:N]
  int threads = 0;                      // 0 = physical cores
  std::string cpu_isa;                  // empty = best supported tier
  std::string cuda_arch;                // empty = best; "sm20" forces the floor
  std::string profile;                  // "" or "fermi"
  std::string gemm;                     // arithmetic of GPU products with many rows: "" = the card's best, f32, bf16
  std::uint64_t vram_bytes = 0;         // 0 = what is free
  int parallel = 1;                     // slots for concurrent requests
  int context_tokens = 0;               // per request; 0 = the model's, bounded by memory
  std::string kv_type;                  // "" = chosen by the plan; f32, f16, bf16
  std::string downsample;               // "" = as the model's files say; "16x", "4x" (MiniCPM-V)
  std::uint64_t cache_ram_bytes = 1ull << 30;   // prefix snapshots and picture features in memory; 0 = off
  std::string cache_dir;                // prefix snapshots on disk; empty = off
  std::uint64_t cache_disk_bytes = 8ull << 30;
  bool strip_volatile_lines = true;     // documented rule for changing first lines (billing headers)
  bool timings = false;                 // collect per-component timers
  std::function<void(double fraction, std::string_view what)> progress;  // load progress, 0..1; may be empty
};

/// One picture as the user gave it: the encoded bytes of a PNG, JPEG, WebP, BMP or GIF file.
struct ImageInput {
  std::vector<std::byte> bytes;
  std::string name;  // for messages
};

/// Restricts which tokens may come next (grammars, schemas). Called on the engine's thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Clears the bits of forbidden tokens; bit i of word i/32 = token i. Returns false if every token is allowed.
  virtual bool mask(std::span<std::uint32_t> allowed) = 0;
  virtual void accept(std::int32_t token) = 0;
  virtual bool finished() const = 0;  // nothing but an end token may follow
};

struct Request {
  // Exactly one of messages, raw_text, token_ids.
  Json messages;                    // OpenAI-style array; pictures as parts {"type": "image"}, taken from `images` in order
  Json tools;                       // array or null
  Json template_kwargs;             // e.g. {"enable_thinking": true}
  bool add_generation_prompt = true;
  std::optional<std::string> raw_text;                   // tokenised as is, special tokens parsed
  std::optional<std::vector<std::int32_t>> token_ids;    // no pictures
  std::vector<ImageInput> images;

  SamplingParams sampling;
  int max_tokens = 0;               // 0 = generation_config's max_new_tokens, else up to the context
  std::vector<std::string> stop;    // never emitted, not even their first half
  bool ignore_eos = false;
  int top_logprobs = -1;            // -1 = none; n >= 0: log probability of the chosen token and of the n best
  bool keep_special_text = false;   // special tokens appear in `text`
  bool embed_only = false;          // no generation: the mean of the final hidden states is the result
  std::shared_ptr<TokenConstraint> constraint;
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
};

/// One generated token. `text` holds whole characters only and may be empty while a character or a stop string is pending.
struct TokenEvent {
  std::int32_t id = 0;
  std::string text;
  std::optional<TokenLogprob> chosen;
  std::vector<TokenLogprob> top;
};

enum class FinishReason { stop, length, cancelled, error };

struct RequestTimings {
  double queue_ms = 0, image_ms = 0, prefill_ms = 0, decode_ms = 0, first_token_ms = 0;
};

struct RequestResult {
  std::vector<std::int32_t> token_ids;   // end token included
  std::string text;                      // without special tokens (unless kept) and without stop strings
  FinishReason finish_reason = FinishReason::stop;
  std::string stop_string;               // which one matched, if any
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;        // of them, taken from a snapshot
  std::vector<float> embedding;          // embed_only: [hidden_size]
  RequestTimings timings;
  std::optional<Error> error;            // finish_reason == error
};

class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
  virtual void cancel() noexcept = 0;            // takes effect within one step
  virtual const RequestResult& wait() = 0;       // until finished; does not throw
  virtual bool finished() const noexcept = 0;
};

struct PromptInfo {
  std::int64_t prompt_tokens = 0;
  std::vector<std::int32_t> token_ids;  // placeholders expanded
  std::string text;                     // as rendered, placeholders not expanded
};

struct EngineMetrics {
  std::uint64_t requests_total = 0, requests_cancelled = 0, requests_failed = 0;
  std::uint64_t prompt_tokens_total = 0, cached_tokens_total = 0, generated_tokens_total = 0;
  int slots_busy = 0, slots_total = 0, queued = 0;
  std::uint64_t cache_ram_bytes = 0, cache_disk_bytes = 0, kv_bytes = 0;
  std::uint64_t cache_hits = 0, cache_misses = 0, cache_evictions = 0;
};

class Engine {
 public:
  /// Loads the model. Reads the files, packs the weights, makes the plan. Error{bad_file, usage, does_not_fit, device}.
  static std::unique_ptr<Engine> load(const EngineOptions& options);
  virtual ~Engine() = default;

  /// Checks, renders, tokenises and queues a request; bad ones throw here (Error{usage, bad_file, does_not_fit}), before
  /// anything is generated. Callbacks run on the engine's thread and must be quick; on_token may be empty.
  virtual std::shared_ptr<RequestHandle> submit(Request request, std::function<void(const TokenEvent&)> on_token,
                                                std::function<void(const RequestResult&)> on_done) = 0;
  /// The prompt that submit would make, without running it.
  virtual PromptInfo inspect_prompt(const Request& request) const = 0;

  virtual std::vector<std::int32_t> tokenize(std::string_view text, bool parse_special) const = 0;
  virtual std::string token_text(std::int32_t id) const = 0;      // raw bytes of one token
  virtual int vocab_size() const = 0;                              // rows of the logits
  virtual std::vector<std::int32_t> end_token_ids() const = 0;
  virtual int context_tokens() const = 0;
  virtual bool accepts_images() const = 0;
  virtual std::string model_name() const = 0;
  virtual SamplingParams default_sampling() const = 0;             // from generation_config / GGUF keys
  virtual int default_max_tokens() const = 0;                      // generation_config's max_new_tokens or 0
  virtual Json info() const = 0;                                   // `heirloom info --json`
  virtual Json placement() const = 0;                              // where each part lives and runs
  virtual Json timings_report() const = 0;                         // per component, if EngineOptions::timings
  virtual EngineMetrics metrics() const = 0;
};

}  // namespace heirloom
