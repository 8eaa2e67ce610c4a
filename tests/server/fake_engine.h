// A scripted Engine: deterministic text for a request, with delays, errors and slow prefill on demand, so that everything
// but real answers can be tested. One byte is one token; tags and control tokens are tokens of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "heirloom/engine.h"

namespace heirloom::test {

struct FakeAnswer {
  std::string text = "Hello there.";
  std::chrono::microseconds token_delay{0};
  std::chrono::milliseconds prefill{0};
  bool endless = false;               // repeats `text` until cancelled or out of tokens
  int fail_after = -1;                // tokens until an internal error
  std::int64_t cached_tokens = 0;
};

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(int context_tokens = 4096, bool images = true);
  ~FakeEngine() override;

  /// What each request is answered; called on the submitting thread. By default the text after "say:" in the last user
  /// message, else "Hello there.".
  std::function<FakeAnswer(const Request&)> script;
  /// The last request that was submitted (messages, tools, sampling and so on).
  Request last_request() const;
  int running() const { return running_.load(); }
  int cancelled() const { return cancelled_.load(); }

  std::shared_ptr<RequestHandle> submit(Request request, std::function<void(const TokenEvent&)> on_token,
                                        std::function<void(const RequestResult&)> on_done) override;
  PromptInfo inspect_prompt(const Request& request) const override;
  std::vector<std::int32_t> tokenize(std::string_view text, bool parse_special) const override;
  std::string token_text(std::int32_t id) const override;
  int vocab_size() const override;
  std::vector<std::int32_t> end_token_ids() const override;
  int context_tokens() const override { return context_tokens_; }
  bool accepts_images() const override { return images_; }
  std::string model_name() const override { return "fake"; }
  SamplingParams default_sampling() const override { return {}; }
  int default_max_tokens() const override { return 0; }
  Json info() const override { return Json::object(); }
  Json placement() const override { return Json::object(); }
  Json timings_report() const override { return Json::object(); }
  EngineMetrics metrics() const override;

 private:
  struct Job;
  void run(Job& job);

  int context_tokens_;
  bool images_;
  std::atomic<int> running_{0};
  std::atomic<int> cancelled_{0};
  std::atomic<std::uint64_t> total_{0};
  mutable std::mutex mutex_;
  Request last_;
};

}  // namespace heirloom::test
