// Puts a loaded model together: files, backend, text side, memory plan, prefix cache and scheduler.
#include "heirloom/engine.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/log.h"
#include "base/profiler_report.h"
#include "engine/bundled_models.h"
#include "engine/memory_plan.h"
#include "engine/model_info.h"
#include "engine/model_key.h"
#include "engine/open_backend.h"
#include "engine/prompt_builder.h"
#include "engine/scheduler.h"
#include "engine/text_side.h"
#include "model/model_files.h"

namespace heirloom {
namespace engine {
namespace {

constexpr int kMaxTopLogprobs = 20;
constexpr std::uint64_t kMostFeatureBytes = 64ull << 20;
constexpr std::uint64_t kReadyBytesPerSlot = 32ull << 20;

class LoadedEngine final : public Engine {
 public:
  explicit LoadedEngine(const EngineOptions& options)
      : options_(options),
        files_(model::open_model_files(find_model(options.model), options.mmproj)),
        tokenizer_(open_tokenizer(files_)),
        defaults_(generation_defaults(files_, tokenizer_)),
        prompts_(files_, tokenizer_, {options.strip_volatile_lines, options.downsample}),
        info_(model_info(files_)),
        backend_(open_backend(options, files_, options.timings ? &profiler_ : nullptr)) {
    model_ = model::bind_model(files_, *backend_, [&](double fraction) {
      if (options_.progress) options_.progress(fraction, "loading");
    });
    // Only headers are needed from here on: the packed weights are the backend's.
    plan_ = make_memory_plan(*model_, options_, memory_left(*backend_));
    pool_ = std::make_unique<StatePool>(*backend_, model_->state_shape(plan_.kv_type));
    PrefixCache::Options cache_options;
    cache_options.memory_bytes = plan_.cache_bytes - feature_bytes();
    cache_options.token_operations = 2 * static_cast<double>(model_->active_parameters(false));
    cache_options.block_step = block_step_for(pool_->state_bytes(), cache_options.token_operations);
    cache_options.fixed_step = fixed_step(*backend_);
    if (!options_.cache_dir.empty()) {
      cache_options.disk_folder = options_.cache_dir;
      cache_options.disk_bytes = options_.cache_disk_bytes;
      cache_options.model = model_key(files_, *backend_, options_, pool_->shape());
      cache_options.vocab_size = static_cast<std::size_t>(vocab_size());
    }
    const auto doorbell = std::make_shared<Doorbell>();
    cache_options.on_event = [doorbell] { doorbell->ring(); };
    cache_options.token_text = [this](std::int32_t id) { return tokenizer_.piece(id); };
    cache_ = std::make_unique<PrefixCache>(*pool_, std::move(cache_options));
    Scheduler::Options scheduler_options;
    scheduler_options.slots = options_.parallel;
    scheduler_options.end_tokens = defaults_.end_tokens;
    scheduler_options.doorbell = doorbell;
    scheduler_options.largest_chunk = largest_chunk(*backend_);
    scheduler_options.feature_bytes = feature_bytes();
    scheduler_options.ready_bytes = std::min(plan_.cache_bytes, kReadyBytesPerSlot * static_cast<std::uint64_t>(options_.parallel));
    scheduler_options.most_ready_bytes = plan_.cache_bytes;
    scheduler_options.profiler = options_.timings ? &profiler_ : nullptr;
    scheduler_ = std::make_unique<Scheduler>(*model_, *pool_, *cache_, std::move(scheduler_options));
    if (plan_.cache_bytes < options_.cache_ram_bytes) {
      log::info("prefix cache: {} MiB instead of {} MiB, a quarter of the memory left", plan_.cache_bytes >> 20,
                options_.cache_ram_bytes >> 20);
    }
    log::info("{}: {}, {} KV cache, {} request{} of {} tokens", files_.name, backend_->description(),
              dtype_name(plan_.kv_type), options_.parallel, options_.parallel == 1 ? "" : "s", plan_.context_tokens);
  }

  std::shared_ptr<RequestHandle> submit(Request request, std::function<void(const TokenEvent&)> on_token,
                                        std::function<void(const RequestResult&)> on_done) override {
    check_sampling(request.sampling, vocab_size());
    check_stops(request.stop);
    if (request.top_logprobs > kMaxTopLogprobs) {
      fail(ErrorKind::usage, "top_logprobs is {}; expected 0 to {}", request.top_logprobs, kMaxTopLogprobs);
    }
    if (request.max_tokens < 0) fail(ErrorKind::usage, "max_tokens is {}; expected a positive number", request.max_tokens);
    Job job;
    job.submitted = Clock::now();
    BuiltPrompt built = prompts_.build(request);
    job.prompt = std::move(built.prompt);
    job.image_ms = built.image_ms;
    if (job.prompt.size() == 0) fail(ErrorKind::usage, "the prompt is empty; expected at least one token");
    check_prompt(job.prompt, vocab_size());
    job.max_tokens = tokens_for(request, job.prompt.size());
    job.sampling = std::move(request.sampling);
    job.ignore_eos = request.ignore_eos;
    job.top_logprobs = request.top_logprobs;
    job.embed_only = request.embed_only;
    job.constraint = std::move(request.constraint);
    if (!request.embed_only) job.text.emplace(tokenizer_, request.keep_special_text, std::move(request.stop));
    job.on_token = std::move(on_token);
    job.on_done = std::move(on_done);
    return scheduler_->submit(std::move(job));
  }

  PromptInfo inspect_prompt(const Request& request) const override {
    BuiltPrompt built = prompts_.build(request);
    return {built.prompt.size(), std::move(built.prompt.token_ids), std::move(built.text)};
  }

  std::vector<std::int32_t> tokenize(std::string_view text, bool parse_special) const override {
    return tokenizer_.encode(text, parse_special ? text::SpecialTokens::parse : text::SpecialTokens::as_text);
  }
  std::string token_text(std::int32_t id) const override { return std::string(tokenizer_.token_bytes(id)); }
  int vocab_size() const override { return model_->config().text.vocab_size; }
  std::vector<std::int32_t> end_token_ids() const override { return defaults_.end_tokens; }
  int context_tokens() const override { return plan_.context_tokens; }
  bool accepts_images() const override { return prompts_.accepts_images(); }
  std::string model_name() const override { return files_.name; }
  SamplingParams default_sampling() const override { return defaults_.sampling; }
  int default_max_tokens() const override { return defaults_.max_new_tokens; }
  Json info() const override { return info_; }

  Json placement() const override {
    Json json;
    json["backend"] = backend_->description();
    json["parts"] = Json::array({{{"part", "weights"}, {"bytes", model_->weight_bytes()}, {"runs_on", backend_->description()}},
                                 {{"part", "state of a request"}, {"bytes", plan_.bytes_per_request}, {"requests", options_.parallel}},
                                 {{"part", "prefix cache"}, {"bytes", plan_.cache_bytes}}});
    json["kv_type"] = std::string(dtype_name(plan_.kv_type));
    json["context_tokens"] = plan_.context_tokens;
    json["active_weight_bytes"] = model_->active_weight_bytes();
    return json;
  }

  Json timings_report() const override { return heirloom::timings_report(profiler_); }

  EngineMetrics metrics() const override { return scheduler_->metrics(); }

 private:
  /// Of the cache's memory, what keeps picture features: an eighth, where there are pictures.
  std::uint64_t feature_bytes() const { return prompts_.accepts_images() ? std::min(plan_.cache_bytes / 8, kMostFeatureBytes) : 0; }

  /// Tokens that the answer may have. Error{does_not_fit} before anything runs, with both numbers.
  std::int64_t tokens_for(const Request& request, std::int64_t prompt_tokens) const {
    const std::int64_t context = plan_.context_tokens;
    const std::int64_t asked = request.embed_only ? 0 : std::max(request.max_tokens, 1);
    if (prompt_tokens + asked > context) {
      if (request.max_tokens > 0 && !request.embed_only) {
        fail(ErrorKind::does_not_fit,
             "the prompt has {} tokens and max_tokens is {}, {} in all; the context holds {}: shorten the prompt or the answer",
             prompt_tokens, request.max_tokens, prompt_tokens + asked, context);
      }
      fail(ErrorKind::does_not_fit, "the prompt has {} tokens; the context holds {}: shorten the prompt{}", prompt_tokens, context,
           context < model_->config().text.context_length ? " or raise --ctx" : "");
    }
    if (request.embed_only) return 0;
    if (request.max_tokens > 0) return request.max_tokens;
    const std::int64_t room = context - prompt_tokens;
    return defaults_.max_new_tokens > 0 ? std::min<std::int64_t>(defaults_.max_new_tokens, room) : room;
  }

  EngineOptions options_;
  Profiler profiler_;
  model::ModelFiles files_;
  text::Tokenizer tokenizer_;
  GenerationDefaults defaults_;
  PromptBuilder prompts_;
  Json info_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  MemoryPlan plan_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace
}  // namespace engine

std::unique_ptr<Engine> Engine::load(const EngineOptions& options) {
  return std::make_unique<engine::LoadedEngine>(options);
}

}  // namespace heirloom
